package guard_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
)

// serveHTTP runs a guarded server on a loopback port. stop makes it drain and
// returns what RunHTTP returned and how long it took.
func serveHTTP(t *testing.T, f *fixture) (addr string, stop func() (time.Duration, error)) {
	t.Helper()
	listening := make(chan string, 1)
	o := &guard.HTTPOptions{Tokens: map[string]string{aliceToken: "alice"}, DrainTimeout: 20 * time.Second,
		Listening: func(a net.Addr) { listening <- a.String() }}
	handler, err := guard.HTTPHandler(payServer(f, nil), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- guard.RunHTTP(ctx, "127.0.0.1:0", handler, o) }()
	select {
	case addr = <-listening:
	case err := <-ended:
		t.Fatal(err)
	}
	return addr, func() (time.Duration, error) {
		start := time.Now()
		cancel()
		err := <-ended
		return time.Since(start), err
	}
}

// A client that announces a body and never sends it is refused, answered and let
// go, and does not hold up the end of the server.
func TestABodyThatNeverComesHoldsNothing(t *testing.T) {
	t.Parallel()
	addr, stop := serveHTTP(t, newFixture(t))
	for range 2 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		r := bufio.NewReader(conn)
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != http.StatusUnauthorized {
			t.Fatalf("the client without a token got %v, %v, want 401", res, err)
		}
		if _, err := io.ReadAll(res.Body); err != nil {
			t.Fatal(err)
		}
		// A reset is an end too: the server does not wait for the body.
		if _, err := r.ReadByte(); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the connection is kept: %v", err)
		}
	}
	if took, err := stop(); err != nil || took > 10*time.Second {
		t.Errorf("the server ended with %v after %v", err, took)
	}
}

// A message that has begun when the server drains has a moment left to come.
func TestABodyThatStopsDoesNotHoldADrain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := serveHTTP(t, f)
	body := func(id string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s,"name":"pay","arguments":{"operation_id":"%s","amount":1}}}`, metaModern, id)
	}
	begin := func(id string) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nAccept: */*\r\nAuthorization: Bearer %s\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: pay\r\nContent-Length: %d\r\n\r\n",
			aliceToken, len(body(id)))
		r := bufio.NewReader(conn)
		if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusContinue {
			t.Fatalf("%v, %v, want 100", res, err)
		}
		io.WriteString(conn, body(id)[:100])
		return conn, r
	}
	_, stuck := begin("pay-stuck")
	late, served := begin("pay-late")
	time.AfterFunc(100*time.Millisecond, func() { io.WriteString(late, body("pay-late")[100:]) })
	if took, err := stop(); err != nil || took > 10*time.Second {
		t.Errorf("the server ended with %v after %v", err, took)
	}
	if res, err := http.ReadResponse(stuck, nil); err != nil || res.StatusCode != http.StatusBadRequest || f.payments("pay-stuck") != "" {
		t.Errorf("what stopped got %v, %v, and paid %q", res, err, f.payments("pay-stuck"))
	}
	if res, err := http.ReadResponse(served, nil); err != nil || res.StatusCode != http.StatusOK || f.payments("pay-late") == "" {
		t.Errorf("what came got %v, %v, and paid %q", res, err, f.payments("pay-late"))
	}
}

// Everything that HTTP itself is about is refused in JSON, before anything ran.
func TestMediaThatIsNotPlainJSONIsRefused(t *testing.T) {
	f := newFixture(t)
	addr, stop := serveHTTP(t, f)
	defer stop()
	tests := []struct {
		name, header, value string
		status              int
	}{
		{"no content type", "Content-Type", "", 415},
		{"text", "Content-Type", "text/plain", 415},
		{"another charset", "Content-Type", "application/json; charset=utf-16", 415},
		{"compressed", "Content-Encoding", "gzip", 415},
		{"takes no stream", "Accept", "application/json", 400},
		{"takes nothing", "Accept", "", 400},
		{"a wildcard", "Accept", "*/*", 200},
		{"charset spelt out", "Content-Type", `application/json; charset="UTF-8"`, 200},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s,"name":"pay","arguments":{"operation_id":"pay-%d","amount":1}}}`, metaModern, i)
			req, err := http.NewRequest(http.MethodPost, "http://"+addr, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range map[string]string{
				"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + aliceToken,
				"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "pay",
			} {
				req.Header.Set(k, v)
			}
			req.Header.Set(tt.header, tt.value)
			if tt.value == "" {
				req.Header.Del(tt.header)
			}
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != tt.status {
				t.Fatalf("%d %s (%v), want %d", res.StatusCode, text, err, tt.status)
			}
			if v := mcpreplay.ClassifyResponse(text, "1"); tt.status != 200 && res.Header.Get("Content-Type") != "application/json" {
				t.Errorf("refused in %s: %s (%v)", res.Header.Get("Content-Type"), text, v)
			}
			if ran := f.payments(fmt.Sprintf("pay-%d", i)) != ""; ran != (tt.status == 200) {
				t.Errorf("the effect ran: %v", ran)
			}
		})
	}
}

// A client that does not read its replies does not hold up the end of the server.
func TestAClientThatDoesNotReadHoldsNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := serveHTTP(t, f)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{%s}}`, metaModern)
	request := fmt.Sprintf("POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: */*\r\nAuthorization: Bearer %s\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nContent-Length: %d\r\n\r\n%s", aliceToken, len(body), body)
	// Ask until nothing more can be sent: the server is stuck with its replies.
	for {
		conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		if _, err := io.WriteString(conn, request); err != nil {
			break
		}
	}
	if took, err := stop(); err != nil {
		t.Errorf("the server ended with %v after %v", err, took)
	}
}
