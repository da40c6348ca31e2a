package consumer_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

var (
	scope = mcpreplay.Scope{OperationID: "op-1", Principal: "alice", Backend: "issues"}
	known = mcpreplay.LedgerRef{Instance: "i", Incarnation: 1, Position: 7}
)

func intent() consumer.Intent {
	return consumer.Intent{Scope: scope, Tool: "effect", Arguments: json.RawMessage(`{"n":9007199254740993}`)}
}

// handler is a tool that counts its effects.
type handler func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error)

// newServer has the tool "effect", which counts and then does what then says,
// and the tool get_operation_status, if status is not nil.
func newServer(effects *atomic.Int64, then, status handler) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	object := json.RawMessage(`{"type":"object"}`)
	s.AddTool(&mcp.Tool{Name: "effect", InputSchema: object}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		effects.Add(1)
		if then != nil {
			return then(ctx, req)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil
	})
	if status != nil {
		s.AddTool(&mcp.Tool{Name: "get_operation_status", InputSchema: object}, mcp.ToolHandler(status))
	}
	return s
}

// front stands before a server and does something to the calls of tools. run
// lets the server do its work and keeps its reply.
type front func(w http.ResponseWriter, r *http.Request, run func() *httptest.ResponseRecorder)

// serveHTTP serves over HTTP behind a front, which may be nil.
func serveHTTP(t testing.TB, s *mcp.Server, asJSON bool, f front) *httptest.Server {
	t.Helper()
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
		&mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: asJSON})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f == nil || r.Header.Get("Mcp-Method") != "tools/call" {
			h.ServeHTTP(w, r)
			return
		}
		f(w, r, func() *httptest.ResponseRecorder {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			return rec
		})
	}))
	t.Cleanup(server.Close)
	return server
}

func newClient(opts *mcp.ClientOptions) *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, opts)
}

// connectHTTP connects with connections of its own, over base if it is not nil.
func connectHTTP(t testing.TB, client *mcp.Client, url string, base http.RoundTripper) *consumer.Session {
	t.Helper()
	if base == nil {
		own := &http.Transport{}
		t.Cleanup(own.CloseIdleConnections)
		base = own
	}
	return connect(t, client, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: base}})
}

// connectMemory connects without a network.
func connectMemory(t testing.TB, client *mcp.Client, s *mcp.Server) *consumer.Session {
	t.Helper()
	ours, theirs := mcp.NewInMemoryTransports()
	if _, err := s.Connect(t.Context(), theirs, nil); err != nil {
		t.Fatal(err)
	}
	return connect(t, client, ours)
}

func connect(t testing.TB, client *mcp.Client, transport mcp.Transport) *consumer.Session {
	t.Helper()
	session, err := consumer.Connect(t.Context(), client, transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// checkUnknown fails unless out is an honest unknown.
func checkUnknown(t testing.TB, out consumer.Outcome) {
	t.Helper()
	if out.Kind != consumer.KindUnknown || out.Effect != mcpreplay.StateUnknown ||
		out.Action != mcpreplay.ActionReconcile || out.Result != nil || out.FreshWriteAuthorized || out.Detail == "" {
		t.Errorf("outcome = %+v, want unknown", out)
	}
}

func checkNotSent(t testing.TB, out consumer.Outcome) {
	t.Helper()
	if out.Kind != consumer.KindNotSent || out.Err == nil || out.Result != nil || out.FreshWriteAuthorized {
		t.Errorf("outcome = %+v, want not sent", out)
	}
}

func checkEffects(t testing.TB, effects *atomic.Int64, want int64) {
	t.Helper()
	if got := effects.Load(); got != want {
		t.Errorf("%d effects, want %d", got, want)
	}
}
