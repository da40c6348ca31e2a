package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
)

// A middleware takes a call out of the hands of the SDK and posts it by itself.
// Whoever cannot read what it posted cannot say that the call never left.
func TestCallIsUnknownWhenWhatWasPostedCannotBeRead(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"effect"}}`
	body := func() io.ReadCloser { return io.NopCloser(strings.NewReader(call)) }
	broken := errors.New("broken")
	for name, change := range map[string]func(*http.Request){
		"no second body":     func(r *http.Request) { r.GetBody = nil },
		"the second fails":   func(r *http.Request) { r.GetBody = func() (io.ReadCloser, error) { return nil, broken } },
		"it breaks off":      func(r *http.Request) { r.GetBody = func() (io.ReadCloser, error) { return failing{broken}, nil } },
		"it is a batch":      func(r *http.Request) { r.GetBody = readable("[" + call + "]") },
		"it is not JSON":     func(r *http.Request) { r.GetBody = readable("\x1f\x8b") },
		"it is another call": func(r *http.Request) { r.GetBody = readable(call) },
	} {
		t.Run(name, func(t *testing.T) {
			posts := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { posts++ }))
			defer server.Close()
			var session *Session
			client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil)
			client.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
				return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
					if method != methodCall {
						return next(ctx, method, req)
					}
					post, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, body())
					if err != nil {
						return nil, err
					}
					change(post)
					resp, err := (&recordingTripper{rec: session.rec}).RoundTrip(post)
					if err != nil {
						return nil, err
					}
					resp.Body.Close()
					return nil, errors.New("no reply")
				}
			})
			ours, theirs := mcp.NewInMemoryTransports()
			if _, err := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil).Connect(t.Context(), theirs, nil); err != nil {
				t.Fatal(err)
			}
			var err error
			if session, err = Connect(t.Context(), client, ours, nil); err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			out := New(nil).Call(t.Context(), session, Intent{
				Scope: mcpreplay.Scope{OperationID: "op-1", Principal: "alice", Backend: "b"}, Tool: "effect", Arguments: json.RawMessage(`{}`),
			})
			if out.Kind != KindUnknown || posts != 1 {
				t.Errorf("outcome = %+v after %d posts, want unknown after 1", out, posts)
			}
		})
	}
}

func readable(text string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
func (f failing) Close() error             { return nil }
