package faults_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mcpreplay/faults"
)

// What most tests send and get. "Connection: close" lets them
// read to the end.
const (
	body   = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","requestState":"s3aled","arguments":{"a":"<&>"}}}`
	result = `{"jsonrpc":"2.0","id":1,"result":{}}`
	answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 36\r\nConnection: close\r\n\r\n" + result
)

var call = post(body, "Connection: close")

func post(body string, header ...string) string {
	lines := slices.Concat([]string{"POST /mcp HTTP/1.1", "host: example.com", "X-odd:  kept as it is"}, header)
	return fmt.Sprintf("%s\r\nContent-Length: %d\r\n\r\n%s", strings.Join(lines, "\r\n"), len(body), body)
}

// server counts what it executed.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	began  chan string
}

func serve(t *testing.T, h http.HandlerFunc) *server {
	s := &server{began: make(chan string, 10)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error("the server got half a request:", err)
		}
		s.mu.Lock()
		s.bodies = append(s.bodies, string(b))
		s.mu.Unlock()
		s.began <- string(b)
		w.Header()["Date"] = nil
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) executed() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

func (s *server) addr() string { return s.Listener.Addr().String() }

func succeed(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, result)
}

func stand(t *testing.T, upstream string, m faults.Mishap, o *faults.IntermediaryOptions) *faults.Intermediary {
	t.Helper()
	i, err := faults.NewIntermediary(upstream, m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
		everyConnectionEnds(t, i.Log())
	})
	return i
}

// everyConnectionEnds holds for every log that is complete.
func everyConnectionEnds(t *testing.T, log []faults.Entry) {
	t.Helper()
	opened, ended := map[string]int{}, map[string]int{}
	for n, e := range log {
		if n > 0 && e.At < log[n-1].At {
			t.Errorf("entry %d is earlier than the one before", n)
		}
		conn := fmt.Sprint(e.Side, " ", e.Conn)
		switch {
		case e.Event == faults.Opened:
			opened[conn]++
		case e.Event == faults.Closed, e.Event == faults.Reset:
			ended[conn]++
		case e.Event == "" && (opened[conn] != 1 || ended[conn] != 0):
			t.Errorf("%s has bytes while it is not open", conn)
		}
	}
	for conn := range opened {
		if opened[conn] != 1 || ended[conn] != 1 {
			t.Errorf("%s was opened %d times and ended %d times", conn, opened[conn], ended[conn])
		}
	}
}

func dial(t *testing.T, i *faults.Intermediary) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(i.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// readAll is what conn brings until its end, and "reset" if that was one.
func readAll(t *testing.T, conn io.Reader) string {
	t.Helper()
	got, err := io.ReadAll(conn)
	if errors.Is(err, syscall.ECONNRESET) {
		return string(got) + "reset"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// ask sends one request on a connection of its own.
func ask(t *testing.T, i *faults.Intermediary, request string) string {
	t.Helper()
	conn := dial(t, i)
	say(t, conn, request)
	return readAll(t, conn)
}

// tell is a log as lines, with names for bytes that are known.
func tell(log []faults.Entry, names map[string]string) []string {
	var lines []string
	for _, e := range log {
		text := string(e.Event)
		if e.Event == "" {
			text = fmt.Sprintf("%s %q", e.Dir, e.Bytes)
			if name, ok := names[string(e.Bytes)]; ok {
				text = string(e.Dir) + " " + name
			}
		}
		lines = append(lines, fmt.Sprintf("%s %d %s", e.Side, e.Conn, text))
	}
	return lines
}

var known = map[string]string{call: "call", answer: "answer"}

func wantLog(t *testing.T, i *faults.Intermediary, want []string) {
	t.Helper()
	i.Close()
	if got := tell(i.Log(), known); !slices.Equal(got, want) {
		t.Errorf("the record is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// forwarded is how the record of a request that the server executed begins, and
// goes on with more.
func forwarded(more ...string) []string {
	return slices.Concat([]string{"client 1 opened", "client 1 > call", "client 1 struck",
		"upstream 1 opened", "upstream 1 > call", "upstream 1 < answer", "upstream 1 closed"}, more)
}

func instead(status, header, text string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\n%s\r\nContent-Length: %d\r\n\r\n%s", status, header, len(text), text)
}

const (
	plain = "Content-Type: text/plain; charset=utf-8"
	page  = "<!doctype html>\n<title>Error</title>\n<p>The service cannot be reached.\n"
)

func TestMishapsLeaveTheClientTheServerAndTheRecordAsTheySay(t *testing.T) {
	t.Parallel()
	half := strings.TrimSuffix(answer, result[len(result)/2:])
	answered := func(with string) []string {
		return forwarded("client 1 dropped", fmt.Sprintf("client 1 < %q", with), "client 1 closed")
	}
	unseen := []string{"client 1 opened", "client 1 > call", "client 1 struck", "client 1 dropped", "client 1 reset"}
	stripped := strings.Replace(body, `"requestState":"s3aled",`, "", 1)

	type test struct {
		mishap   faults.Mishap
		gets     string
		executed int
		record   []string
	}
	tests := []test{
		{faults.NoMishap, answer, 1, []string{"client 1 opened", "client 1 > call", "upstream 1 opened", "upstream 1 > call",
			"upstream 1 < answer", "client 1 < answer", "upstream 1 closed", "client 1 closed"}},
		{faults.DropReply, "", 1, forwarded("client 1 dropped", "client 1 closed")},
		{faults.CutReply, half, 1, forwarded(fmt.Sprintf("client 1 < %q", half), "client 1 dropped", "client 1 closed")},
		{faults.ResetBeforeBody, "reset", 0, []string{"client 1 opened", fmt.Sprintf("client 1 > %q", strings.TrimSuffix(call, body)),
			"client 1 struck", "client 1 dropped", "client 1 reset"}},
		{faults.ResetAfterBody, "reset", 0, unseen},
		{faults.ResetAfterForward, "reset", 1, forwarded("client 1 dropped", "client 1 reset")},
		{faults.StripState, answer, 1, []string{"client 1 opened", "client 1 > call", "client 1 struck", "upstream 1 opened",
			fmt.Sprintf("upstream 1 > %q", post(stripped, "Connection: close")),
			"upstream 1 < answer", "client 1 < answer", "upstream 1 closed", "client 1 closed"}},
		{faults.DuplicateRequest, answer, 2, forwarded("upstream 2 opened", "upstream 2 > call", "upstream 2 < answer",
			"upstream 2 dropped", "upstream 2 closed", "client 1 < answer", "client 1 closed")},
	}
	for mishap, gets := range map[faults.Mishap]string{
		faults.Answer401:  instead("401 Unauthorized", "WWW-Authenticate: Bearer\r\n"+plain, "Unauthorized\n"),
		faults.Answer404:  instead("404 Not Found", plain, "Not Found\n"),
		faults.Answer502:  instead("502 Bad Gateway", plain, "Bad Gateway\n"),
		faults.Answer503:  instead("503 Service Unavailable", plain, "Service Unavailable\n"),
		faults.Answer504:  instead("504 Gateway Timeout", plain, "Gateway Timeout\n"),
		faults.AnswerHTML: instead("200 OK", "Content-Type: text/html; charset=utf-8", page),
	} {
		tests = append(tests, test{mishap, gets, 1, answered(gets)})
	}
	for _, tt := range tests {
		t.Run(string(tt.mishap), func(t *testing.T) {
			t.Parallel()
			s := serve(t, succeed)
			i := stand(t, s.addr(), tt.mishap, nil)
			if got := ask(t, i, call); got != tt.gets {
				t.Errorf("the client got %q, want %q", got, tt.gets)
			}
			if got := s.executed(); len(got) != tt.executed {
				t.Errorf("the server executed %q, want %d", got, tt.executed)
			}
			struck := 1
			if tt.mishap == faults.NoMishap {
				struck = 0
			}
			if got := i.Strikes(); got != struck {
				t.Errorf("it struck %d times, want %d", got, struck)
			}
			wantLog(t, i, tt.record)
		})
	}
}

// A client that is told the length of the whole cannot take the half for it.
func TestCutReplyIsNoWholeReply(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"with a length": succeed,
		"chunked": func(w http.ResponseWriter, r *http.Request) {
			succeed(w, r)
			w.(http.Flusher).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := stand(t, serve(t, handler).addr(), faults.CutReply, nil)
			resp, err := http.Post(i.URL(), "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != io.ErrUnexpectedEOF || string(got) != result[:len(result)/2] || resp.ContentLength != int64(len(result)) {
				t.Errorf("got %q of %d, %v", got, resp.ContentLength, err)
			}
		})
	}
}

// The reset comes although the body is still to be sent.
func TestResetBeforeBodyNeedsNoBody(t *testing.T) {
	t.Parallel()
	s := serve(t, succeed)
	asked := make(chan string, 1)
	i := stand(t, s.addr(), faults.ResetBeforeBody, &faults.IntermediaryOptions{Selects: func(body []byte, h http.Header) bool {
		asked <- fmt.Sprintln(body == nil, h.Get("Mcp-Name"))
		return true
	}})
	head := strings.TrimSuffix(post(body, "Mcp-Name: pay"), body)
	if got := ask(t, i, head); got != "reset" {
		t.Errorf("the client got %q", got)
	}
	if got := <-asked; got != "true pay\n" {
		t.Errorf("selected by %q", got)
	}
	if got := ask(t, i, call); got != answer {
		t.Errorf("after the reset the client got %q", got)
	}
	if got := s.executed(); !slices.Equal(got, []string{body}) {
		t.Errorf("the server executed %q", got)
	}
}

func TestMishapStrikesWhatIsSelectedAndAsOftenAsItIsTold(t *testing.T) {
	t.Parallel()
	get := "GET /mcp HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n"
	other := post(`{"method":"other"}`, "Connection: close")
	for _, tt := range []struct{ count, passed int }{{0, 4}, {1, 4}, {2, 3}, {-1, 2}} {
		t.Run(fmt.Sprint(tt.count), func(t *testing.T) {
			t.Parallel()
			s := serve(t, succeed)
			i := stand(t, s.addr(), faults.ResetAfterBody, &faults.IntermediaryOptions{
				Count:   tt.count,
				Selects: func(body []byte, h http.Header) bool { return bytes.Contains(body, []byte("pay")) },
			})
			got := map[string]int{}
			for _, request := range []string{get, other, call, call, call} {
				got[ask(t, i, request)]++
			}
			if got[answer] != tt.passed || got["reset"] != 5-tt.passed || i.Strikes() != 5-tt.passed {
				t.Errorf("got %v and %d strikes, want %d answers and the others reset", got, i.Strikes(), tt.passed)
			}
		})
	}
}

func TestMishapStrikesOnlyWhereItCan(t *testing.T) {
	t.Parallel()
	for mishap, request := range map[faults.Mishap]string{
		faults.StripState:              post(`{"params":{"arguments":{"requestState":"of a tool"}}}`, "Connection: close"),
		faults.CloseKeptAlive:          call,
		faults.CloseKeptAliveForwarded: call,
	} {
		t.Run(string(mishap), func(t *testing.T) {
			t.Parallel()
			s := serve(t, succeed)
			i := stand(t, s.addr(), mishap, nil)
			if got := ask(t, i, request); got != answer || i.Strikes() != 0 {
				t.Errorf("got %q and %d strikes", got, i.Strikes())
			}
			if got := s.executed(); len(got) != 1 || !strings.HasSuffix(request, got[0]) {
				t.Errorf("the server executed %q", got)
			}
		})
	}
}

func TestUnknownMishapIsRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "drop-replies", "DROP-REPLY"} {
		_, err := faults.ParseMishap(name)
		if err == nil || !strings.Contains(err.Error(), "close-kept-alive, close-kept-alive-forwarded, cut-reply") {
			t.Errorf("ParseMishap(%q) = %v, want an error that lists the mishaps", name, err)
		}
		if i, err := faults.NewIntermediary("127.0.0.1:1", faults.Mishap(name), nil); err == nil {
			i.Close()
			t.Errorf("NewIntermediary took %q", name)
		}
	}
	if m, err := faults.ParseMishap("answer-html"); err != nil || m != faults.AnswerHTML {
		t.Errorf("ParseMishap of a known one = %q, %v", m, err)
	}
	if _, err := faults.NewIntermediary("localhost", faults.NoMishap, nil); err == nil {
		t.Error("an upstream without a port was taken")
	}
}

func readReply(t *testing.T, in *bufio.Reader) string {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return readAll(t, resp.Body)
}
