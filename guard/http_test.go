package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const testToken = "token-of-alice-0001"

// httpServer is a server of RunHTTP and a client of raw bytes.
type httpServer struct {
	t    *testing.T
	addr string
	stop context.CancelFunc
	done chan error
}

type httpReply struct {
	*http.Response
	body string
}

func startHTTP(t *testing.T, server *mcp.Server, o *HTTPOptions) *httpServer {
	t.Helper()
	h, err := HTTPHandler(server, o)
	if err != nil {
		t.Fatal(err)
	}
	listening := make(chan net.Addr, 1)
	o.Listening = func(a net.Addr) { listening <- a }
	ctx, stop := context.WithCancel(context.Background())
	s := &httpServer{t: t, stop: stop, done: make(chan error, 1)}
	go func() { s.done <- RunHTTP(ctx, ":0", h, o) }()
	t.Cleanup(stop)
	select {
	case a := <-listening:
		s.addr = a.String()
	case err := <-s.done:
		t.Fatal(err)
	}
	return s
}

// request is a well-formed POST of a tools/call; each line replaces the header of
// its name, adds one if it begins with +, or removes it if it has no value.
func request(method, body string, lines ...string) string {
	headers := []string{
		"Host: localhost", "Content-Type: application/json", "Accept: application/json, text/event-stream",
		"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: effect",
		"Authorization: Bearer " + testToken, fmt.Sprint("Content-Length: ", len(body)), "Connection: close",
	}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ":")
		if add, ok := strings.CutPrefix(l, "+"); ok {
			headers = append(headers, add)
			continue
		}
		var kept []string
		for _, h := range headers {
			if n, _, _ := strings.Cut(h, ":"); !strings.EqualFold(n, name) {
				kept = append(kept, h)
			}
		}
		headers = kept
		if value != "" {
			headers = append(headers, l)
		}
	}
	return method + " / HTTP/1.1\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n" + body
}

func (s *httpServer) dial(text string) net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, text)
	return conn
}

func (s *httpServer) receive(conn net.Conn) httpReply {
	s.t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return httpReply{res, string(body)}
}

func (s *httpServer) raw(text string) httpReply {
	s.t.Helper()
	return s.receive(s.dial(text))
}

func (s *httpServer) post(body string, lines ...string) httpReply {
	s.t.Helper()
	return s.raw(request("POST", body, lines...))
}

func (s *httpServer) ended() {
	s.t.Helper()
	if err := <-s.done; err != nil {
		s.t.Errorf("RunHTTP() = %v", err)
	}
}

func TestHTTPRefusesBeforeDispatch(t *testing.T) {
	var effects atomic.Int64
	s := startHTTP(t, newEffectServer(func(context.Context) { effects.Add(1) }), &HTTPOptions{
		Tokens: map[string]string{testToken: "alice"}, MaxBody: 4096,
		AllowedHosts: []string{"mcp.example"}, AllowedOrigins: []string{"https://app.example"},
		ResourceMetadata: "https://mcp.example/.well-known/x",
	})
	large := strings.Replace(effectCall(1), `"arguments":{}`, `"arguments":{"x":"`+strings.Repeat("x", 5000)+`"}`, 1)
	tests := []struct {
		name   string
		text   string
		status int
		want   string // in the body
	}{
		{"no token", request("POST", effectCall(1), "Authorization:"), 401, `"code":-32600`},
		{"wrong token", request("POST", effectCall(1), "Authorization: Bearer "+testToken+"x"), 401, `"code":-32600`},
		{"another scheme", request("POST", effectCall(1), "Authorization: Basic "+testToken), 401, `"code":-32600`},
		{"empty token", request("POST", effectCall(1), "Authorization: Bearer "), 401, `"code":-32600`},
		{"two tokens", request("POST", effectCall(1), "+Authorization: Bearer "+testToken), 400, `"code":-32600`},
		{"no token for a broken body", request("POST", "{", "Authorization:"), 401, `"code":-32600`},

		{"foreign origin", request("POST", effectCall(1), "Origin: http://evil.example"), 403, "origin"},
		{"origin null", request("POST", effectCall(1), "Origin: null"), 403, "origin"},
		{"origin of another port", request("POST", effectCall(1), "Origin: http://localhost:81"), 403, "origin"},
		{"two origins", request("POST", effectCall(1), "+Origin: https://app.example", "+Origin: http://evil.example"), 403, "origin"},
		{"cross site", request("POST", effectCall(1), "Sec-Fetch-Site: cross-site"), 403, "origin"},
		{"foreign host", request("POST", effectCall(1), "Host: evil.example"), 403, "host"},
		{"host that rebinds", request("POST", effectCall(1), "Host: evil.example:80", "Origin: http://evil.example:80"), 403, "host"},
		{"host that begins well", request("POST", effectCall(1), "Host: localhost.evil.example"), 403, "host"},

		{"get", request("GET", "", "Content-Length:"), 405, "POST"},
		{"get without a token", request("GET", "", "Content-Length:", "Authorization:"), 405, "POST"},
		{"delete", request("DELETE", "", "Content-Length:"), 405, "POST"},
		{"put", request("PUT", effectCall(1)), 405, "POST"},

		{"body too large", request("POST", large), 413, `"reason":"limit_exceeded"`},
		{"chunked body too large", request("POST", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(large), large), "Content-Length:", "Transfer-Encoding: chunked"), 413, `"reason":"limit_exceeded"`},
		{"no body", request("POST", ""), 400, `"code":-32700`},
		{"not json", request("POST", "hello"), 400, `"code":-32700`},
		{"trailing garbage", request("POST", effectCall(1)+"x"), 400, `"code":-32700`},
		{"second message", request("POST", effectCall(1)+effectCall(2)), 400, `"code":-32700`},
		{"batch", request("POST", "["+effectCall(1)+"]"), 400, `"code":-32600`},
		{"batch of an old client", request("POST", "["+effectCall(1)+"]", "MCP-Protocol-Version: 2025-03-26"), 400, `"code":-32600`},
		{"id null", request("POST", strings.Replace(effectCall(1), `"id":1`, `"id":null`, 1)), 400, `"code":-32600`},
		{"id that would be rounded", request("POST", strings.Replace(effectCall(1), `"id":1`, `"id":9007199254740993`, 1)), 400, `"code":-32600`},
		{"call without an id", request("POST", strings.Replace(effectCall(1), `"id":1,`, ``, 1)), 400, `"code":-32600`},
		{"duplicate member", request("POST", strings.Replace(effectCall(1), `"arguments":{}`, `"arguments":{"a":1,"a":2}`, 1)), 400, `"reason":"invalid_arguments"`},
		{"empty state", request("POST", strings.Replace(effectCall(1), `"arguments":{}`, `"requestState":""`, 1)), 400, `"message":"Invalid or expired requestState"`},

		{"no version", request("POST", effectCall(1), "MCP-Protocol-Version:"), 400, "-32020"},
		{"no method header", request("POST", effectCall(1), "Mcp-Method:"), 400, "-32020"},
		{"another method header", request("POST", effectCall(1), "Mcp-Method: tools/list"), 400, "-32020"},
		{"no name header", request("POST", effectCall(1), "Mcp-Name:"), 400, "-32020"},
		{"another name header", request("POST", effectCall(1), "Mcp-Name: other"), 400, "-32020"},
		{"two name headers", request("POST", effectCall(1), "+Mcp-Name: other"), 400, "-32020"},
		{"content type of a form", request("POST", effectCall(1), "Content-Type: text/plain"), 415, ""},
		{"accepts no stream", request("POST", effectCall(1), "Accept: application/json"), 400, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := s.raw(tt.text)
			if res.StatusCode != tt.status || !strings.Contains(res.body, tt.want) {
				t.Errorf("status %d, body %s", res.StatusCode, res.body)
			}
			if challenge := res.Header.Get("WWW-Authenticate"); (tt.status == 401) != strings.HasPrefix(challenge, "Bearer") && tt.name != "two tokens" {
				t.Errorf("WWW-Authenticate: %s", challenge)
			} else if tt.status == 401 && !strings.Contains(challenge, `resource_metadata="https://mcp.example/.well-known/x"`) {
				t.Errorf("WWW-Authenticate: %s", challenge)
			}
			if tt.status == 405 && res.Header.Get("Allow") != "POST" {
				t.Errorf("Allow: %s", res.Header.Get("Allow"))
			}
		})
	}
	if n := effects.Load(); n != 0 {
		t.Errorf("%d effects", n)
	}

	for _, lines := range [][]string{
		{}, {"Host: 127.0.0.1:99"}, {"Host: [::1]"}, {"Host: LOCALHOST:1"}, {"Host: mcp.example"}, {"Host: mcp.example:8443"},
		{"Origin: http://localhost"}, {"Origin: https://app.example"}, {"Authorization: bearer  " + testToken},
	} {
		if res := s.post(effectCall(1), lines...); res.StatusCode != 200 || !isReply(res.body+"\n", 1) {
			t.Errorf("%v: status %d, body %s", lines, res.StatusCode, res.body)
		}
	}
	if n := effects.Load(); n != 9 {
		t.Errorf("%d effects", n)
	}
}

func TestHTTPPrincipal(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "effect", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			who := "nobody"
			if info := req.Extra.TokenInfo; info != nil && info == auth.TokenInfoFromContext(ctx) {
				who = info.UserID
			}
			var keys []string
			for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
				keys = append(keys, req.Extra.Header.Values(name)...)
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("for %s, allowed %v, keys %v", who, unauthenticatedAllowed(ctx), keys)}}}, nil
		})
	verifier := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		later := time.Now().Add(time.Hour)
		switch token {
		case "good":
			return &auth.TokenInfo{UserID: "issuer|bob", Expiration: later}, nil
		case "bad":
			return nil, fmt.Errorf("secret: %w", auth.ErrInvalidToken)
		case "oauth":
			return nil, fmt.Errorf("secret: %w", auth.ErrOAuth)
		case "outage":
			return nil, errors.New("secret")
		case "nameless":
			return &auth.TokenInfo{Expiration: later}, nil
		case "expired":
			return &auth.TokenInfo{UserID: "bob", Expiration: time.Now().Add(-time.Second)}, nil
		case "endless":
			return &auth.TokenInfo{UserID: "bob"}, nil
		}
		return nil, nil
	}
	static := &HTTPOptions{Tokens: map[string]string{testToken: "alice", "token-of-bobby-0002": "bobby"}}
	tests := []struct {
		name    string
		options *HTTPOptions
		auth    string
		status  int
		want    string
	}{
		{"static", static, "Bearer " + testToken, 200, "for alice, allowed false, keys []"},
		{"static, another", static, "Bearer token-of-bobby-0002", 200, "for bobby, allowed false, keys []"},
		{"unauthenticated", &HTTPOptions{AllowUnauthenticated: true}, "", 200, "for nobody, allowed true, keys []"},
		{"unauthenticated with a token", &HTTPOptions{AllowUnauthenticated: true}, "Bearer " + testToken, 200, "for nobody, allowed true, keys []"},
		{"verified", &HTTPOptions{Verifier: verifier}, "Bearer good", 200, "for issuer|bob, allowed false, keys []"},
		{"invalid", &HTTPOptions{Verifier: verifier}, "Bearer bad", 401, "invalid token"},
		{"oauth error", &HTTPOptions{Verifier: verifier}, "Bearer oauth", 400, "invalid authorization"},
		{"verifier fails", &HTTPOptions{Verifier: verifier}, "Bearer outage", 503, "unavailable"},
		{"nobody", &HTTPOptions{Verifier: verifier}, "Bearer nameless", 401, "invalid token"},
		{"expired", &HTTPOptions{Verifier: verifier}, "Bearer expired", 401, "invalid token"},
		{"without expiration", &HTTPOptions{Verifier: verifier}, "Bearer endless", 401, "invalid token"},
		{"nothing", &HTTPOptions{Verifier: verifier}, "Bearer other", 401, "invalid token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := startHTTP(t, server, tt.options)
			header := "Authorization:"
			if tt.auth != "" {
				header += " " + tt.auth
			}
			res := s.post(effectCall(1), header, "Idempotency-Key: k", "X-Idempotency-Key: k", "Last-Event-ID: 1", "Mcp-Session-Id: s")
			if res.StatusCode != tt.status || !strings.Contains(res.body, tt.want) || strings.Contains(res.body, "secret") {
				t.Errorf("status %d, body %s", res.StatusCode, res.body)
			}
			if res.Header.Get("X-Accel-Buffering") != "no" {
				t.Error("proxies may buffer")
			}
		})
	}
}

func newProgressServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "effect", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 3 {
				req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i)})
			}
			if len(req.Params.Arguments) > 2 {
				return nil, &jsonrpc.Error{Code: -32602, Message: "after progress"}
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "context alive"}}}, nil
		})
	return server
}

func TestHTTPProgress(t *testing.T) {
	s := startHTTP(t, newProgressServer(), &HTTPOptions{AllowUnauthenticated: true})
	withToken := strings.Replace(effectCall(1), `"_meta":{`, `"_meta":{"progressToken":"p",`, 1)

	res := s.post(withToken)
	if res.Header.Get("Content-Type") != "text/event-stream" || strings.Count(res.body, "notifications/progress") != 3 || !strings.Contains(res.body, "context alive") {
		t.Errorf("asked for progress, got %v\n%s", res.Header, res.body)
	}
	res = s.post(effectCall(1))
	if res.Header.Get("Content-Type") != "application/json" || res.ContentLength != int64(len(res.body)) || !isReply(res.body, 1) {
		t.Errorf("asked for nothing, got %v\n%s", res.Header, res.body)
	}
	// An error with an HTTP status of its own, but the stream has begun.
	res = s.post(strings.Replace(withToken, `"arguments":{}`, `"arguments":{"fail":1}`, 1))
	events := strings.Split(strings.TrimSuffix(res.body, "\n\n"), "\n\n")
	if last := events[len(events)-1]; res.StatusCode != 200 || len(events) != 4 || !strings.HasPrefix(last, "event: message\ndata: {") || !strings.Contains(last, "after progress") {
		t.Errorf("status %d, last event %q", res.StatusCode, last)
	}
	// The same error before anything was sent keeps its status.
	res = s.post(strings.Replace(effectCall(1), `"arguments":{}`, `"arguments":{"fail":1}`, 1))
	if res.StatusCode != 400 || res.Header.Get("Content-Type") != "application/json" || !strings.Contains(res.body, "after progress") {
		t.Errorf("status %d, body %s", res.StatusCode, res.body)
	}

	s = startHTTP(t, newProgressServer(), &HTTPOptions{AllowUnauthenticated: true, Stream: true})
	if res := s.post(effectCall(1)); res.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("with Stream, got %v", res.Header)
	}
}

func TestHTTPDisconnectDoesNotCancelTheEffect(t *testing.T) {
	started, gate, finished := make(chan bool), make(chan bool), make(chan error, 1)
	s := startHTTP(t, newEffectServer(func(ctx context.Context) {
		started <- true
		<-gate
		finished <- ctx.Err()
	}), &HTTPOptions{AllowUnauthenticated: true})
	conn := s.dial(request("POST", effectCall(1), "Connection:"))
	<-started
	conn.(*net.TCPConn).SetLinger(0) // a reset
	conn.Close()
	s.stop() // the server drains and still waits for the effect
	select {
	case err := <-s.done:
		t.Fatalf("RunHTTP() = %v with an effect running", err)
	default:
	}
	close(gate)
	if err := <-finished; err != nil {
		t.Errorf("the effect's context: %v", err)
	}
	s.ended()
}

func TestHTTPDrainDeliversTheReply(t *testing.T) {
	for _, more := range []string{"", `"progressToken":1,`} { // one JSON body, an event stream
		started, gate := make(chan bool), make(chan bool)
		s := startHTTP(t, newEffectServer(func(context.Context) { started <- true; <-gate }), &HTTPOptions{AllowUnauthenticated: true})
		conn := s.dial(request("POST", strings.Replace(effectCall(1), `"_meta":{`, `"_meta":{`+more, 1), "Connection:"))
		<-started
		s.stop()
		for { // until the server accepts no more
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				break
			}
			c.Close()
		}
		close(gate)
		if res := s.receive(conn); res.StatusCode != 200 || !strings.Contains(res.body, "context alive") {
			t.Errorf("status %d, body %s", res.StatusCode, res.body)
		}
		s.ended()
	}
}

func TestHTTPSubscriptionDoesNotHoldUpTheDrain(t *testing.T) {
	s := startHTTP(t, newEffectServer(func(context.Context) {}), &HTTPOptions{AllowUnauthenticated: true})
	conn := s.dial(request("POST", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{`+modernMeta+`,"notifications":{"toolsListChanged":true}}}`,
		"Mcp-Method: subscriptions/listen", "Mcp-Name:", "Connection:"))
	r := bufio.NewReader(conn)
	for line := ""; !strings.Contains(line, "acknowledged"); {
		var err error
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	s.stop()
	s.ended()
}

func TestHTTPDrainTimesOut(t *testing.T) {
	started, gate := make(chan bool), make(chan bool)
	defer close(gate)
	s := startHTTP(t, newEffectServer(func(context.Context) { started <- true; <-gate }), &HTTPOptions{AllowUnauthenticated: true, DrainTimeout: time.Millisecond})
	s.dial(request("POST", effectCall(1)))
	<-started
	s.stop()
	if err := <-s.done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("RunHTTP() = %v", err)
	}
}

func TestHTTPLegacyClient(t *testing.T) {
	s := startHTTP(t, newEffectServer(func(context.Context) {}), &HTTPOptions{AllowUnauthenticated: true})
	if res := s.post(legacyInitialize, "MCP-Protocol-Version:", "Mcp-Method:", "Mcp-Name:"); res.StatusCode != 200 || !strings.Contains(res.body, `"protocolVersion":"2025-11-25"`) {
		t.Errorf("status %d, body %s", res.StatusCode, res.body)
	}
	if res := s.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "MCP-Protocol-Version: 2025-11-25", "Mcp-Method:", "Mcp-Name:"); res.StatusCode != 202 {
		t.Errorf("status %d, body %s", res.StatusCode, res.body)
	}
	if res := s.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"effect"}}`, "MCP-Protocol-Version: 2025-11-25", "Mcp-Method:", "Mcp-Name:"); res.StatusCode != 200 || !isReply(res.body, 2) {
		t.Errorf("status %d, body %s", res.StatusCode, res.body)
	}
}

func TestHTTPListensOnLoopback(t *testing.T) {
	tests := []struct {
		addr string
		open bool // unauthenticated
		want string
	}{
		{":0", true, "127.0.0.1:"},
		{":0", false, "127.0.0.1:"},
		{"localhost:0", true, ":"},
		{"127.0.0.1:0", true, "127.0.0.1:"},
		{"0.0.0.0:0", true, ""},
		{"[::]:0", true, ""},
		{"mcp.example:0", true, ""},
		{"0.0.0.0:0", false, ":"},
		{"no-port", false, ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.addr, " ", tt.open), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			got := ""
			o := &HTTPOptions{AllowUnauthenticated: tt.open, Listening: func(a net.Addr) { got = a.String(); cancel() }}
			if !tt.open {
				o.Tokens = map[string]string{testToken: "alice"}
			}
			err := RunHTTP(ctx, tt.addr, http.NotFoundHandler(), o)
			if (err == nil) != (tt.want != "") || !strings.Contains(got, tt.want) {
				t.Errorf("listened on %q, error %v", got, err)
			}
		})
	}
}

func TestHTTPOptionsAreChecked(t *testing.T) {
	tests := []struct {
		name    string
		options *HTTPOptions
		want    string
	}{
		{"none", nil, "exactly one is needed (got 0)"},
		{"no way in", &HTTPOptions{}, "exactly one is needed (got 0)"},
		{"two ways in", &HTTPOptions{Tokens: map[string]string{testToken: "a"}, AllowUnauthenticated: true}, "exactly one is needed (got 2)"},
		{"short token", &HTTPOptions{Tokens: map[string]string{"short": "a"}}, "at least 16"},
		{"token with a space", &HTTPOptions{Tokens: map[string]string{"a token with spaces": "a"}}, "no spaces"},
		{"no principal", &HTTPOptions{Tokens: map[string]string{testToken: ""}}, "names nobody"},
		{"negative", &HTTPOptions{AllowUnauthenticated: true, MaxBody: -1}, "must not be negative"},
		{"bad origin", &HTTPOptions{AllowUnauthenticated: true, AllowedOrigins: []string{"app.example"}}, "AllowedOrigins"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := HTTPHandler(nil, tt.options); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("HTTPHandler() = %v, want %q", err, tt.want)
			} else if strings.Contains(err.Error(), "short") && tt.name == "short token" && strings.Contains(err.Error(), `"short"`) {
				t.Errorf("the token is in the error: %v", err)
			}
		})
	}
}
