package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// badPanic panics once more when it is printed.
type badPanic struct{}

func (badPanic) Error() string { panic("again") }

var sharedMeta = mcp.Meta{"k": "v"}

// containCases are handlers of tools and what their clients must get to see. The
// texts "secret" must not get there.
var containCases = []struct {
	name    string
	handler func() (*mcp.CallToolResult, error)
	want    string // part of the reply
}{
	{"panics", func() (*mcp.CallToolResult, error) { panic("secret") }, `"error":{"code":-32603,"message":"internal error"}`},
	{"panics_with_an_error", func() (*mcp.CallToolResult, error) { panic(errors.New("secret")) }, `"error":{"code":-32603,"message":"internal error"}`},
	{"panics_while_panicking", func() (*mcp.CallToolResult, error) { panic(badPanic{}) }, `"error":{"code":-32603,"message":"internal error"}`},
	{"panics_with_nil_pointer", func() (*mcp.CallToolResult, error) { var r *mcp.CallToolResult; r.IsError = true; return r, nil }, `"error":{"code":-32603,"message":"internal error"}`},
	{"returns_nothing", func() (*mcp.CallToolResult, error) { return nil, nil }, `"content":[],"resultType":"complete"}`},
	{"fails", func() (*mcp.CallToolResult, error) { return nil, errors.New("secret") }, `"error":{"code":-32603,"message":"internal error"}`},
	{"fails_with_a_code", func() (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: 7, Message: "exact", Data: json.RawMessage(`{"n":9007199254740993}`)}
	}, `"error":{"code":7,"message":"exact","data":{"n":9007199254740993}}`},
	{"fails_with_a_wrapped_code", func() (*mcp.CallToolResult, error) {
		return nil, fmt.Errorf("secret: %w", &jsonrpc.Error{Code: 7, Message: "inner", Data: json.RawMessage(`[1]`)})
	}, `"error":{"code":7,"message":"inner","data":[1]}`},
	{"fails_with_broken_data", func() (*mcp.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: 7, Message: "inner", Data: json.RawMessage(`{secret`)}
	}, `"error":{"code":7,"message":"inner"}`},
	{"fails_with_no_error_in_an_error", func() (*mcp.CallToolResult, error) {
		var none *jsonrpc.Error
		return nil, none
	}, `"error":{"code":-32603,"message":"internal error"}`},
	{"cannot_be_encoded", func() (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: json.RawMessage(`{secret`)}, nil
	}, `"error":{"code":-32603,"message":"internal error"}`},
	{"result_and_error", func() (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{}, &jsonrpc.Error{Code: 7, Message: "exact"}
	}, `"error":{"code":7,"message":"exact"}`},
	{"is_an_error", func() (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "said on purpose"}}}, nil
	}, `said on purpose`},
	{"works", func() (*mcp.CallToolResult, error) { return &mcp.CallToolResult{Meta: sharedMeta}, nil }, `"k":"v"`},
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newContainServer() (*mcp.Server, *lockedBuffer) {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	for _, c := range containCases {
		server.AddTool(&mcp.Tool{Name: c.name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return c.handler() })
	}
	server.AddPrompt(&mcp.Prompt{Name: "p"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) { return nil, nil })
	log := new(lockedBuffer)
	server.AddReceivingMiddleware(containMiddleware(slog.New(slog.NewTextHandler(log, nil))))
	return server, log
}

func toolCall(id int, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s,"name":%q}}`, id, modernMeta, tool)
}

// testContained sends every call twice: what follows the first shows that the
// process and the session are alive.
func testContained(t *testing.T, log *lockedBuffer, exchange func(tool, call string) string) {
	for range 2 {
		for i, tt := range containCases {
			t.Run(tt.name, func(t *testing.T) {
				reply := exchange(tt.name, toolCall(i, tt.name))
				if !strings.Contains(reply, fmt.Sprintf(`"id":%d,`, i)) || !strings.Contains(reply, tt.want) {
					t.Errorf("reply %s", reply)
				}
				if strings.Contains(reply, "secret") {
					t.Errorf("internal text in reply %s", reply)
				}
			})
		}
	}
	for _, text := range []string{"handler panicked", "goroutine ", "secret", "tool=panics", "handler failed", "handler returned nothing", "result cannot be encoded"} {
		if !strings.Contains(log.String(), text) {
			t.Errorf("%q is not in the log", text)
		}
	}
}

func TestContainOverStdio(t *testing.T) {
	server, log := newContainServer()
	s := serveStdio(t, t.Context(), server)
	testContained(t, log, func(_, call string) string {
		s.send(call)
		return s.read()
	})
	s.in.Close()
	s.ended()
}

func TestContainOverHTTP(t *testing.T) {
	server, log := newContainServer()
	h := startHTTP(t, server, &HTTPOptions{AllowUnauthenticated: true})
	testContained(t, log, func(tool, call string) string {
		res := h.post(call, "Mcp-Name: "+tool)
		return res.body
	})
}

func TestContainLegacyResultHasNoType(t *testing.T) {
	server, _ := newContainServer()
	s := serveStdio(t, t.Context(), server)
	s.send(legacyInitialize)
	s.read()
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"returns_nothing"}}`)
	if line := s.read(); strings.TrimSpace(line) != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
		t.Errorf("reply %s", line)
	}
}

func TestContainOtherMethods(t *testing.T) {
	server, _ := newContainServer()
	s := serveStdio(t, t.Context(), server)
	for _, tt := range []struct{ method, more, want string }{
		{"prompts/get", `,"name":"p"`, `"error":{"code":-32603,"message":"internal error"}`},
		{"prompts/get", `,"name":"q"`, `"code":-32602`},
		{"tools/list", ``, `"tools":[`},
		{"no/such", ``, `"code":-32601`},
	} {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s%s}}`, tt.method, modernMeta, tt.more))
		if line := s.read(); !strings.Contains(line, tt.want) {
			t.Errorf("%s%s: reply %s", tt.method, tt.more, line)
		}
	}
}

// A handler may keep the _meta of its results. The SDK writes into it, so that two
// calls at once would end the process.
func TestContainSharedMeta(t *testing.T) {
	server, _ := newContainServer()
	s := serveStdio(t, t.Context(), server)
	const calls = 200
	go func() {
		for i := range calls {
			s.send(toolCall(i, "works"))
		}
	}()
	for range calls {
		if line := s.read(); !strings.Contains(line, `"k":"v"`) {
			t.Errorf("reply %s", line)
		}
	}
	if len(sharedMeta) != 1 {
		t.Errorf("the handler's own _meta became %v", sharedMeta)
	}
}
