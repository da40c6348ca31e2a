package faults_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"mcpreplay/faults"
)

// watched collects events, to wait for one.
func watched(o faults.IntermediaryOptions) (*faults.IntermediaryOptions, func(want string)) {
	events := make(chan string, 100)
	o.OnEvent = func(e faults.Entry) { events <- fmt.Sprintf("%s %d %s", e.Side, e.Conn, e.Event) }
	return &o, func(want string) {
		for got := range events {
			if got == want {
				return
			}
		}
	}
}

// The limit of the client passes while the reply is held: that is what ends it.
func TestDelayedReplyIsDroppedWhenTheClientHasGone(t *testing.T) {
	t.Parallel()
	s := serve(t, succeed)
	o, wait := watched(faults.IntermediaryOptions{})
	i := stand(t, s.addr(), faults.DelayReply, o)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { wait("client 1 held"); cancel() }()
	req, err := http.NewRequestWithContext(ctx, "POST", i.URL(), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	wait("client 1 closed")
	got := tell(i.Log(), known)
	if end := got[len(got)-3:]; !slices.Equal(end[1:], []string{"client 1 dropped", "client 1 closed"}) || !strings.HasPrefix(end[0], "client 1 peer-") {
		t.Errorf("the record ends with %q", end)
	}
	if !slices.ContainsFunc(i.Log(), func(e faults.Entry) bool {
		return e.Side == faults.UpstreamSide && e.Dir == faults.ToClient && strings.HasSuffix(string(e.Bytes), result)
	}) {
		t.Error("the reply is not on the record")
	}
	if len(s.executed()) != 1 {
		t.Errorf("the server executed %q", s.executed())
	}
}

func TestDelayedReplyIsPassedOnWhenReleased(t *testing.T) {
	t.Parallel()
	s := serve(t, succeed)
	o, wait := watched(faults.IntermediaryOptions{})
	i := stand(t, s.addr(), faults.DelayReply, o)
	go func() { wait("client 1 held"); i.Release() }()
	if got := ask(t, i, call); got != answer {
		t.Errorf("the client got %q", got)
	}
	wantLog(t, i, forwarded("client 1 held", "client 1 released", "client 1 < answer", "client 1 closed"))
}

func TestCloseDropsWhatIsHeld(t *testing.T) {
	t.Parallel()
	for _, mishap := range []faults.Mishap{faults.DelayReply, faults.Reorder} {
		t.Run(string(mishap), func(t *testing.T) {
			t.Parallel()
			o, wait := watched(faults.IntermediaryOptions{})
			i := stand(t, serve(t, succeed).addr(), mishap, o)
			conn := dial(t, i)
			say(t, conn, call)
			wait("client 1 held")
			i.Close()
			if got := readAll(t, conn); got != "" {
				t.Errorf("the client got %q", got)
			}
			if !slices.Contains(tell(i.Log(), known), "client 1 dropped") {
				t.Errorf("the record is %q", tell(i.Log(), known))
			}
		})
	}
}

func TestReorderLetsTheSecondRequestOvertake(t *testing.T) {
	t.Parallel()
	s := serve(t, succeed)
	o, wait := watched(faults.IntermediaryOptions{Count: 2})
	i := stand(t, s.addr(), faults.Reorder, o)
	for pair := range 2 {
		first := dial(t, i)
		say(t, first, post("first", "Connection: close"))
		wait(fmt.Sprintf("client %d held", 2*pair+1))
		if got := ask(t, i, post("second", "Connection: close")); got != answer {
			t.Errorf("the second got %q", got)
		}
		if got := readAll(t, first); got != answer {
			t.Errorf("the first got %q", got)
		}
	}
	if got, want := s.executed(), []string{"second", "first", "second", "first"}; !slices.Equal(got, want) {
		t.Errorf("the server executed %q, want %q", got, want)
	}
	i.Close()
	order := slices.DeleteFunc(tell(i.Log()[:17], known), func(line string) bool { return strings.Contains(line, `"POST`) })
	want := []string{"client 1 opened", "client 1 struck", "client 1 held", "client 2 opened", "client 2 struck",
		"upstream 1 opened", "upstream 1 < answer", "upstream 1 closed", "client 2 < answer"}
	if got := order[:len(want)]; !slices.Equal(got, want) {
		t.Errorf("the record begins with %q, want %q", got, want)
	}
}

// A request can arrive long after its client stopped waiting for it.
func TestReorderedRequestArrivesThoughItsClientHasGone(t *testing.T) {
	t.Parallel()
	s := serve(t, succeed)
	o, wait := watched(faults.IntermediaryOptions{})
	i := stand(t, s.addr(), faults.Reorder, o)
	first := dial(t, i)
	say(t, first, post("first"))
	wait("client 1 held")
	first.Close()
	wait("client 1 peer-closed")
	if got := ask(t, i, post("second", "Connection: close")); got != answer {
		t.Errorf("the second got %q", got)
	}
	wait("client 1 dropped")
	if got, want := s.executed(), []string{"second", "first"}; !slices.Equal(got, want) {
		t.Errorf("the server executed %q, want %q", got, want)
	}
}

func TestReorderWithoutASecondRequestIsReleased(t *testing.T) {
	t.Parallel()
	o, wait := watched(faults.IntermediaryOptions{})
	i := stand(t, serve(t, succeed).addr(), faults.Reorder, o)
	go func() { wait("client 1 held"); i.Release() }()
	if got := ask(t, i, call); got != answer {
		t.Errorf("the client got %q", got)
	}
}

// Neither of two concurrent requests can be answered before both are there.
func TestDuplicateConcurrentIsConcurrent(t *testing.T) {
	t.Parallel()
	var there atomic.Int32
	both := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if there.Add(1) == 2 {
			close(both)
		}
		<-both
		succeed(w, r)
	})
	i := stand(t, s.addr(), faults.DuplicateConcurrent, nil)
	if got := ask(t, i, call); got != answer {
		t.Errorf("the client got %q", got)
	}
	if got := s.executed(); !slices.Equal(got, []string{body, body}) {
		t.Errorf("the server executed %q", got)
	}
	i.Close()
	if got := tell(i.Log(), known); !slices.Contains(got, "upstream 2 dropped") || slices.Contains(got, "upstream 1 dropped") {
		t.Errorf("the record is %q", got)
	}
}

// The trap: the very header that asks for no repetition makes net/http repeat a
// POST by itself, if the connection it was written on had been used before.
func TestTransportRepeatsAPostThatHasAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mishap   faults.Mishap
		key      bool
		executed int
		err      error
	}{
		{faults.CloseKeptAliveForwarded, true, 2, nil},
		{faults.CloseKeptAliveForwarded, false, 1, io.EOF},
		{faults.CloseKeptAlive, true, 1, nil},
		{faults.CloseKeptAlive, false, 0, io.EOF},
	} {
		t.Run(fmt.Sprintf("%s key %v", tt.mishap, tt.key), func(t *testing.T) {
			t.Parallel()
			s := serve(t, succeed)
			i := stand(t, s.addr(), tt.mishap, nil)
			tr := &http.Transport{}
			t.Cleanup(tr.CloseIdleConnections)
			do := func(text string) error {
				req, err := http.NewRequestWithContext(t.Context(), "POST", i.URL(), strings.NewReader(text))
				if err != nil {
					t.Fatal(err)
				}
				if tt.key {
					req.Header.Set("Idempotency-Key", "k1")
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				if got := readAll(t, resp.Body); got != result {
					t.Errorf("the client got %q", got)
				}
				return nil
			}
			if err := do("first on the connection"); err != nil {
				t.Fatal(err)
			}
			if err := do("pay"); (err == nil) != (tt.err == nil) {
				t.Errorf("the client got %v, want %v", err, tt.err)
			}
			if got := len(s.executed()) - 1; got != tt.executed {
				t.Errorf("the server executed it %d times, want %d", got, tt.executed)
			}
			i.Close()
			sent := 0
			for _, e := range i.Log() {
				if e.Side == faults.ClientSide && strings.HasSuffix(string(e.Bytes), "\r\n\r\npay") {
					sent++
				}
			}
			if want := map[bool]int{true: 2, false: 1}[tt.key]; sent != want || i.Strikes() != 1 {
				t.Errorf("the client sent it %d times, want %d; %d strikes", sent, want, i.Strikes())
			}
		})
	}
}

// An event stream passes event by event: each is only sent when the one before
// has arrived.
func TestEventStreamPassesAsItComes(t *testing.T) {
	t.Parallel()
	for _, mishap := range []faults.Mishap{faults.NoMishap, faults.DropReply} {
		t.Run(string(mishap), func(t *testing.T) {
			t.Parallel()
			arrived := make(chan struct{})
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for n := range 3 {
					fmt.Fprintf(w, "data: %d\n\n", n)
					w.(http.Flusher).Flush()
					<-arrived
				}
			})
			i := stand(t, s.addr(), mishap, &faults.IntermediaryOptions{Selects: func([]byte, http.Header) bool { return false }})
			resp, err := http.Post(i.URL(), "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			in := bufio.NewReader(resp.Body)
			for n := range 3 {
				event, err := in.ReadString('\n')
				if err != nil || event != fmt.Sprintf("data: %d\n", n) {
					t.Fatalf("got %q, %v", event, err)
				}
				in.ReadString('\n')
				arrived <- struct{}{}
			}
			if rest := readAll(t, in); rest != "" {
				t.Errorf("got %q after the last event", rest)
			}
		})
	}
}

func TestClientThatGoesAwayEndsItsStream(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	})
	i := stand(t, s.addr(), faults.NoMishap, nil)
	conn := dial(t, i)
	say(t, conn, call)
	if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	<-ended
}

// A body without a length gets one, and one connection serves request after
// request, each with a connection to the server of its own.
func TestKeptConnectionPassesEveryRequest(t *testing.T) {
	t.Parallel()
	s := serve(t, succeed)
	i := stand(t, s.addr(), faults.NoMishap, nil)
	conn := dial(t, i)
	in := bufio.NewReader(conn)
	chunked := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
	for _, request := range []string{post("one"), chunked, post("two") + post("three")} {
		say(t, conn, request)
		if got := readReply(t, in); got != result {
			t.Errorf("got %q", got)
		}
	}
	if got := readReply(t, in); got != result {
		t.Errorf("got %q for the request that was sent early", got)
	}
	if got, want := s.executed(), []string{"one", "abcdefg", "two", "three"}; !slices.Equal(got, want) {
		t.Errorf("the server executed %q, want %q", got, want)
	}
	i.Close()
	log := tell(i.Log(), known)
	for _, want := range []string{
		fmt.Sprintf("client 1 > %q", chunked),
		fmt.Sprintf("upstream 2 > %q", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nA: b\r\n\r\nabcdefg"),
	} {
		if !slices.Contains(log, want) {
			t.Errorf("the record is %q, want %s in it", log, want)
		}
	}
}

func TestUnreachableServerEndsTheConnection(t *testing.T) {
	t.Parallel()
	// The near end of a connection is a port where nobody listens, and nobody can.
	taken, err := net.Dial("tcp", serve(t, succeed).addr())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, mishap := range []faults.Mishap{faults.NoMishap, faults.DropReply, faults.DuplicateConcurrent} {
		i := stand(t, taken.LocalAddr().String(), mishap, nil)
		if got := ask(t, i, call); got != "" {
			t.Errorf("%s: the client got %q", mishap, got)
		}
		if !slices.Contains(tell(i.Log(), known), "upstream 1 unreachable") {
			t.Errorf("%s: the record is %q", mishap, tell(i.Log(), known))
		}
	}
}

// What the server sent before it broke off is passed on, and nothing is made up.
func TestServerThatBreaksOffEndsTheConnection(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	i := stand(t, s.addr(), faults.NoMishap, nil)
	if got := ask(t, i, call); !strings.HasSuffix(got, "\r\n\r\nhalf") {
		t.Errorf("the client got %q", got)
	}
	i.Close()
	if log := tell(i.Log(), known); !slices.ContainsFunc(log, func(l string) bool { return strings.HasPrefix(l, "upstream 1 peer-") }) {
		t.Errorf("the record is %q", log)
	}
}
