package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

// cut closes the connection of w, without a goodbye if reset.
func cut(w http.ResponseWriter, reset bool) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	if reset {
		c.(*net.TCPConn).SetLinger(0)
	}
	c.Close()
}

// replace answers with something else than the server did.
func replace(status int, contentType, body string) front {
	return func(w http.ResponseWriter, r *http.Request, run func() *httptest.ResponseRecorder) {
		run()
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(body, "$ID", requestID(r)))
	}
}

// requestID is the id of the call: the second request of a session, after
// server/discover.
func requestID(*http.Request) string { return "2" }

// truncate sends the first bytes of the reply, and less than it announced.
func truncate(less int) front {
	return func(w http.ResponseWriter, _ *http.Request, run func() *httptest.ResponseRecorder) {
		rec := run()
		body := bytes.TrimSpace(rec.Body.Bytes())
		c, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(buf, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", rec.Header().Get("Content-Type"), len(body)+2)
		buf.Write(body[:len(body)+less])
		buf.Flush()
		c.Close()
	}
}

// edit changes the bytes of the server's reply.
func edit(change func(body []byte) []byte) front {
	return func(w http.ResponseWriter, _ *http.Request, run func() *httptest.ResponseRecorder) {
		rec := run()
		w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
		w.WriteHeader(rec.Code)
		w.Write(change(rec.Body.Bytes()))
	}
}

func swap(from, to string) front {
	return edit(func(body []byte) []byte {
		if !bytes.Contains(body, []byte(from)) {
			panic("nothing to replace in " + string(body))
		}
		return bytes.Replace(body, []byte(from), []byte(to), 1)
	})
}

const (
	refusal = `{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"operation_conflict","data":{"reason":"operation_conflict","operationId":"op-1"}}}`
	madeUp  = `{"jsonrpc":"2.0","id":$ID,"error":{"code":-32005,"message":"rejected by transport"}}`
	result  = `{"jsonrpc":"2.0","id":$ID,"result":{"resultType":"complete","content":[]}}`
)

// Every way to lose a reply ends in unknown, however the SDK reports it and
// whether or not the effect happened.
func TestCallIsUnknownWhenTheReplyIsLost(t *testing.T) {
	const anyJSON = "application/json"
	tests := []struct {
		name     string
		front    front
		effects  int64
		deadline bool // the SDK waits for ever
	}{
		{"reset before", func(w http.ResponseWriter, _ *http.Request, _ func() *httptest.ResponseRecorder) { cut(w, true) }, 0, false},
		{"drop after", func(w http.ResponseWriter, _ *http.Request, run func() *httptest.ResponseRecorder) {
			run()
			cut(w, false)
		}, 1, false},
		{"reset after", func(w http.ResponseWriter, _ *http.Request, run func() *httptest.ResponseRecorder) {
			run()
			cut(w, true)
		}, 1, false},
		{"500", replace(500, "text/plain", "oops"), 1, false},
		{"502", replace(502, "text/plain", "bad gateway"), 1, false},
		{"503", replace(503, "text/html", "<html>"), 1, false},
		{"504", replace(504, "text/plain", "gateway timeout"), 1, false},
		{"429", replace(429, "text/plain", "slow down"), 1, false},
		{"502 with a refusal", replace(502, anyJSON, refusal), 1, false},
		{"502 with a result", replace(502, anyJSON, result), 1, false},
		{"501 with a refusal", replace(501, anyJSON, refusal), 1, false},
		{"429 with a refusal", replace(429, anyJSON, refusal), 1, false},
		{"401", replace(401, "text/plain", "Unauthorized"), 1, false},
		{"403", replace(403, "text/html", "<html>"), 1, false},
		{"404 that speaks of sessions", replace(404, anyJSON, `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`), 1, false},
		{"400 with a refusal of another request", replace(400, anyJSON, strings.ReplaceAll(refusal, "$ID", "99")), 1, false},
		{"400 with a refusal in HTML", replace(400, "text/html", refusal), 1, false},
		{"400 with an error that no server sends", replace(400, anyJSON, madeUp), 1, false},
		{"400 with a result", replace(400, anyJSON, strings.Replace(result, `"result"`, `"Result"`, 1)), 1, false},
		{"truncated", truncate(-3), 1, false},
		{"truncated after all that matters", truncate(0), 1, false},
		{"empty 200", replace(200, "text/event-stream", ""), 1, false},
		{"empty 202", replace(202, "text/plain", ""), 1, false},
		{"HTML 200", replace(200, "text/html", "<html>please log in</html>"), 1, false},
		{"bad JSON", replace(200, anyJSON, `{"jsonrpc":"2.0","id":$ID,"resu`), 1, false},
		{"no JSON", replace(200, anyJSON, ``), 1, false},
		{"two results in one", replace(200, anyJSON, result+result), 1, false},
		{"an event without an end", replace(200, "text/event-stream", "data: "+result), 1, false},
		{"another event", replace(200, "text/event-stream", "event: news\ndata: "+result+"\n\n"), 1, false},
		{"wrong id", replace(200, anyJSON, strings.ReplaceAll(result, "$ID", "99")), 1, true},
		{"id of another type", replace(200, anyJSON, strings.ReplaceAll(result, "$ID", `"2"`)), 1, true},
		{"unknown content type", replace(200, "application/octet-stream", result), 1, false},
		{"unknown result type", swap(`"resultType":"complete"`, `"resultType":"task"`), 1, false},
		{"two result types", swap(`"resultType":"complete"`, `"resultType":"task","resultType":"complete"`), 1, false},
		{"result type in the wrong case", swap(`"resultType":"complete"`, `"resultType":"task","ResultType":"complete"`), 1, false},
		{"a result and an error", replace(200, anyJSON, strings.Replace(refusal, `"error"`, `"result":{"content":[]},"error"`, 1)), 1, false},
		{"no content", swap(`"content"`, `"Content"`), 1, false},
		{"invalid UTF-8", swap(`done`, "\xff"), 1, false},
		{"a server that does not know", swap(`"content"`, `"isError":true,"structuredContent":{"code":"operation_unknown","operationId":"op-1"},"content"`), 1, false},
		{"a result of another operation", swap(`"_meta":{`, `"_meta":{"mcpreplay/operation":{"operationId":"op-2","state":"applied","replayed":false,"recordedAt":"","ledger":{"instance":"i","incarnation":0,"position":1}},`), 1, false},
	}
	for _, asJSON := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/json=%t", tt.name, asJSON), func(t *testing.T) {
				t.Parallel()
				var effects atomic.Int64
				server := serveHTTP(t, newServer(&effects, nil, nil), asJSON, tt.front)
				session := connectHTTP(t, newClient(nil), server.URL, nil)
				ctx := t.Context()
				if tt.deadline {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
					defer cancel()
				}
				journal := consumer.NewMemoryJournal()
				out := consumer.New(&consumer.Options{Journal: journal}).Call(ctx, session, intent())
				checkUnknown(t, out)
				checkEffects(t, &effects, tt.effects)
				if list, err := journal.Unsettled(); err != nil || len(list) != 1 {
					t.Errorf("in doubt: %v, %v, want the operation", list, err)
				}
			})
		}
	}
}

// What the server did say is a verdict, whichever way it was said.
func TestCallOverHTTPEndsInAVerdict(t *testing.T) {
	refuse := func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32602, Message: "operation_conflict", Data: json.RawMessage(`{"reason":"operation_conflict","operationId":"op-1","retryable":false}`)}
	}
	fail := func(code int64) handler {
		return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: code, Message: "no"}
		}
	}
	tests := []struct {
		name  string
		then  handler
		front front
		kind  consumer.Kind
		want  mcpreplay.VerdictKind
	}{
		{"a result", nil, nil, consumer.KindVerdict, mcpreplay.VerdictResult},
		{"a result with content that the SDK does not know", nil, swap(`"type":"text"`, `"type":"hologram"`), consumer.KindVerdict, mcpreplay.VerdictResult},
		{"a refusal", refuse, nil, consumer.KindVerdict, mcpreplay.VerdictRefused},
		{"a refusal in a 200", nil, replace(200, "application/json", refusal), consumer.KindVerdict, mcpreplay.VerdictRefused},
		{"a refusal in an event of several lines", nil, replace(200, "text/event-stream", ": hello\r\ndata: "+strings.Replace(refusal, `"error"`, "\r\ndata:\"error\"", 1)+"\r\n\r\n"), consumer.KindVerdict, mcpreplay.VerdictRefused},
		{"a reply to somebody else before it", nil, replace(200, "text/event-stream", "data: "+strings.ReplaceAll(result, "$ID", "99")+"\n\ndata: "+refusal+"\n\n"), consumer.KindVerdict, mcpreplay.VerdictRefused},
		{"a notification before it", nil, replace(200, "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\ndata: "+refusal+"\n\n"), consumer.KindVerdict, mcpreplay.VerdictRefused},
		{"a missing capability", fail(-32021), nil, consumer.KindVerdict, mcpreplay.VerdictNotDispatched},
		{"no such method", fail(-32601), nil, consumer.KindVerdict, mcpreplay.VerdictNotDispatched},
		{"another error", fail(-32603), nil, consumer.KindUnknown, mcpreplay.VerdictReply},
		{"an error of the application", fail(1001), nil, consumer.KindUnknown, mcpreplay.VerdictReply},
		{"an error without a code", fail(0), nil, consumer.KindUnknown, mcpreplay.VerdictUnknown},
	}
	for _, asJSON := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/json=%t", tt.name, asJSON), func(t *testing.T) {
				t.Parallel()
				var effects atomic.Int64
				server := serveHTTP(t, newServer(&effects, tt.then, nil), asJSON, tt.front)
				out := consumer.New(nil).Call(t.Context(), connectHTTP(t, newClient(nil), server.URL, nil), intent())
				if out.Kind != tt.kind || out.Verdict.Kind != tt.want {
					t.Fatalf("outcome = %+v, want %q by %q", out, tt.kind, tt.want)
				}
				if got := out.Result != nil; got != (tt.want == mcpreplay.VerdictResult) {
					t.Errorf("result = %s", out.Result)
				}
				checkEffects(t, &effects, 1)
			})
		}
	}
}

func TestCallIsNotSentWhenNobodyListens(t *testing.T) {
	var effects atomic.Int64
	server := serveHTTP(t, newServer(&effects, nil, nil), false, nil)
	session := connectHTTP(t, newClient(nil), server.URL, &http.Transport{DisableKeepAlives: true})
	server.Close()
	journal := consumer.NewMemoryJournal()
	out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), session, intent())
	checkNotSent(t, out)
	if list, err := journal.Unsettled(); err != nil || len(list) != 0 {
		t.Errorf("in doubt: %v, %v, want none", list, err)
	}
}

// Of a RoundTripper that is not net/http's nothing proves that it sent nothing.
func TestCallIsUnknownWhenAStrangeRoundTripperFails(t *testing.T) {
	var effects atomic.Int64
	server := serveHTTP(t, newServer(&effects, nil, nil), false, nil)
	session := connectHTTP(t, newClient(nil), server.URL, roundTripper(http.DefaultTransport.RoundTrip))
	server.Close()
	checkUnknown(t, consumer.New(nil).Call(t.Context(), session, intent()))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A client that sets Idempotency-Key makes net/http send a call twice when a
// kept connection dies before the reply.
func TestStripKeysKeepsACallFromBeingSentTwice(t *testing.T) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		for _, tt := range []struct {
			name    string
			wrap    func(http.RoundTripper) http.RoundTripper
			effects int64
		}{
			{"without it", func(rt http.RoundTripper) http.RoundTripper { return rt }, 2},
			{"with it", consumer.StripKeys, 1},
		} {
			t.Run(name+" "+tt.name, func(t *testing.T) {
				var effects atomic.Int64
				var lose atomic.Bool
				server := serveHTTP(t, newServer(&effects, nil, nil), true,
					func(w http.ResponseWriter, r *http.Request, run func() *httptest.ResponseRecorder) {
						rec := run()
						if lose.Load() {
							cut(w, false)
							return
						}
						w.Header().Set("Content-Type", rec.Header().Get("Content-Type"))
						w.Write(rec.Body.Bytes())
					})
				own := &http.Transport{}
				defer own.CloseIdleConnections()
				inner := tt.wrap(own)
				session := connectHTTP(t, newClient(nil), server.URL, roundTripper(func(r *http.Request) (*http.Response, error) {
					r = r.Clone(r.Context())
					r.Header.Set(name, "op-1")
					return inner.RoundTrip(r)
				}))
				c := consumer.New(nil)
				first := intent()
				first.Scope.OperationID = "op-0"
				if out := c.Call(t.Context(), session, first); out.Kind != consumer.KindVerdict {
					t.Fatalf("outcome = %+v", out)
				}
				effects.Store(0)
				lose.Store(true)
				checkUnknown(t, c.Call(t.Context(), session, intent()))
				checkEffects(t, &effects, tt.effects)
			})
		}
	}
}

func TestConnectLeavesTheHTTPClientOfTheCallerAlone(t *testing.T) {
	var effects atomic.Int64
	server := serveHTTP(t, newServer(&effects, nil, nil), false, nil)
	own := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	before := *own
	transport := &mcp.StreamableClientTransport{Endpoint: server.URL, HTTPClient: own}
	connect(t, newClient(nil), transport)
	if own.Transport != before.Transport || transport.HTTPClient != own {
		t.Error("Connect changed the transport it was given")
	}
}

// A redirect is the server's own way to say where it is; the call is still one.
func TestCallFollowsARedirect(t *testing.T) {
	var effects atomic.Int64
	server := serveHTTP(t, newServer(&effects, nil, nil), false, nil)
	moved := httptest.NewServer(http.RedirectHandler(server.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	out := consumer.New(nil).Call(t.Context(), connectHTTP(t, newClient(nil), moved.URL, nil), intent())
	if out.Kind != consumer.KindVerdict {
		t.Errorf("outcome = %+v, want a verdict", out)
	}
	checkEffects(t, &effects, 1)
}

func TestCallOverLegacyHTTPKeepsTheNegotiatedVersion(t *testing.T) {
	var effects atomic.Int64
	var mu sync.Mutex
	versions := map[string]string{}
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer(&effects, nil, nil) }, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		versions[r.Method] = r.Header.Get("MCP-Protocol-Version")
		mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	session, err := consumer.Connect(t.Context(), newClient(nil), &mcp.StreamableClientTransport{
		Endpoint: server.URL, HTTPClient: &http.Client{Transport: &http.Transport{}}, DisableStandaloneSSE: true,
	}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	out := consumer.New(nil).Call(t.Context(), session, intent())
	if out.Kind != consumer.KindVerdict || out.Verdict.Kind != mcpreplay.VerdictResult {
		t.Errorf("outcome = %+v, want a result", out)
	}
	mu.Lock()
	defer mu.Unlock()
	if versions["POST"] != "2025-11-25" {
		t.Errorf("version of the call = %q", versions["POST"])
	}
}
