package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Whatever an atomic effect does wrong, nothing happened, nothing is recorded,
// and the same id may be sent again.
func TestFailedEffectsLeaveNothing(t *testing.T) {
	type effect = func(context.Context, *sqlite.Tx, *guard.Op, payment) (*mcp.CallToolResult, error)
	after := func(do func() (*mcp.CallToolResult, error)) effect {
		return func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in payment) (*mcp.CallToolResult, error) {
			if _, err := pay(ctx, tx, op, in); err != nil {
				return nil, err
			}
			return do()
		}
	}
	tests := []struct {
		name   string
		effect effect
		want   string // in the text of an isError result, or the message of an error
		hidden string // that must not reach the wire
	}{
		{"an error", after(func() (*mcp.CallToolResult, error) { return nil, errors.New("the account is closed") }), "the account is closed", "\x00"},
		{"an error of the ledger", after(func() (*mcp.CallToolResult, error) {
			return nil, errors.Join(errors.New("/var/lib/secret.db"), mcpreplay.ErrUnavailable)
		}), "Nothing was done", "secret"},
		{"a panic", after(func() (*mcp.CallToolResult, error) { panic("secret detail") }), "Nothing was done", "secret"},
		{"the end of its goroutine", after(func() (*mcp.CallToolResult, error) { runtime.Goexit(); return nil, nil }), "Nothing was done", "Goexit"},
		{"a result with isError", after(func() (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "no funds"}}}, nil
		}), "no funds", "\x00"},
		{"a JSON-RPC error", after(func() (*mcp.CallToolResult, error) { return nil, &jsonrpc.Error{Code: 4711, Message: "mine"} }), "mine", "\x00"},
		{"a question", after(func() (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{}}, nil
		}), "an effect cannot ask", "\x00"},
		{"too large a result", after(func() (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 2<<20)}}}, nil
		}), "more than the 1048576 that can be kept", "\x00"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			server := newServer()
			g := f.guard(f.store, nil)
			fail := true
			guard.AddTool(g, server, payTool(), guard.Atomic(f.store, func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, in payment) (*mcp.CallToolResult, error) {
				if fail {
					return tt.effect(ctx, tx, op, in)
				}
				_, err := pay(ctx, tx, op, in)
				return nil, err // nil is a result without content
			}))
			g.Install(server)
			cs := connect(t, server, nil)

			res, err := call(cs, "pay", `{"operation_id":"again","amount":1}`, nil)
			said := ""
			switch {
			case err != nil:
				said = err.Error()
			case !res.IsError:
				t.Fatalf("the failure was told as a success: %s", text(res))
			default:
				said = text(res)
			}
			if !strings.Contains(said, tt.want) || strings.Contains(said, tt.hidden) {
				t.Errorf("the client was told %q, want %q", said, tt.want)
			}
			if got := f.payments("") + f.operations(); got != "" {
				t.Errorf("something is left:\n%s", got)
			}
			fail = false
			if res := mustCall(t, cs, "pay", `{"operation_id":"again","amount":1}`); res.IsError || replayed(res) {
				t.Errorf("the same id was not tried again: %s", text(res))
			}
			if got := f.payments(""); got != "again | 1\n" {
				t.Errorf("effects: %q", got)
			}
		})
	}
}

// The SDK validates output after its handler ran; here it is the last thing that
// can still stop the commit.
func TestInvalidOutputIsFoundBeforeTheCommit(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	tool := payTool()
	tool.OutputSchema = json.RawMessage(`{"type":"object","properties":{"paid":{"type":"string","maxLength":2}}}`)
	guard.AddTool(g, server, tool, guard.Atomic(f.store, pay))
	res := mustCall(t, connect(t, server, nil), "pay", `{"operation_id":"long","amount":12345}`)
	if !res.IsError || !strings.Contains(text(res), "does not fit its schema") {
		t.Errorf("result: %s", text(res))
	}
	if got := f.payments("") + f.operations(); got != "" {
		t.Errorf("something is left:\n%s", got)
	}
}

// A result is replayed as the bytes that were stored, whatever is in it.
func TestReplaysAreTheStoredBytes(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, func(o *guard.Options) { o.NoReplayNote = true })
	guard.AddTool(g, server, &mcp.Tool{Name: "odd"}, guard.Atomic(f.store, func(context.Context, *sqlite.Tx, *guard.Op, any) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{
			Meta: mcp.Meta{"n": json.RawMessage(`9007199254740993`), "a": []int{1}},
			Content: []mcp.Content{&mcp.TextContent{Text: "<sent> & done é \u2028 \x00", Meta: mcp.Meta{"id": json.RawMessage(`9007199254740995`)}},
				&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "x:y", Text: "t", Meta: mcp.Meta{"id": json.RawMessage(`9007199254740997`)}}},
				&mcp.ImageContent{MIMEType: "image/png", Data: []byte{0, 1, 255}}},
			StructuredContent: json.RawMessage(`{"id":9007199254740993,"amt":1.10,"html":"<&>"}`),
		}, nil
	}))
	first, again := rawReplies(t, server, `{"name":"odd","arguments":{"operation_id":"odd-1"}}`)
	first = bytes.Replace(first, []byte(`"replayed":false`), []byte(`"replayed":true`), 1)
	if !bytes.Equal(first, again) {
		t.Errorf("the replay differs:\n%s\n%s", first, again)
	}
	for _, exact := range []string{`"id":9007199254740993`, `"amt":1.10`, `"n":9007199254740993`, `"id":9007199254740995`, `"id":9007199254740997`} {
		if !bytes.Contains(again, []byte(exact)) {
			t.Errorf("the replay lost %s: %s", exact, again)
		}
	}
}

// rawReplies sends the same tools/call twice and returns the raw results.
func rawReplies(t *testing.T, server *mcp.Server, params string) (first, second []byte) {
	t.Helper()
	params = `{` + metaModern + `,` + strings.TrimPrefix(params, "{")
	in := ""
	for range 2 {
		in += `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + "}\n"
	}
	// The second line must not overtake the first, so each is a run of its own.
	lines := strings.SplitAfter(in, "\n")
	var out [2]bytes.Buffer
	for i := range out {
		if err := (&guard.Stdio{In: strings.NewReader(lines[i]), Out: &out[i]}).Run(context.Background(), server); err != nil {
			t.Fatal(err)
		}
	}
	return out[0].Bytes(), out[1].Bytes()
}

func TestLowLevelHandlersCanBeGuarded(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.AtomicHandler(f.store, func(ctx context.Context, tx *sqlite.Tx, op *guard.Op, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var in payment
		if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
			return nil, err
		}
		_, err := pay(ctx, tx, op, in)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: req.Params.Name + " " + string(req.Params.Arguments)}}}, err
	}))
	cs := connect(t, server, nil)
	for i := range 2 {
		res := mustCall(t, cs, "pay", `{"operation_id":"low-1","amount":1e2}`)
		if !strings.HasPrefix(text(res), `pay {"amount":1e2}`) || replayed(res) != (i == 1) {
			t.Errorf("attempt %d: %s", i, text(res))
		}
	}
	if n := strings.Count(f.payments(""), "\n"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

func TestAToolThatCannotWorkIsRefusedWhenAdded(t *testing.T) {
	f, other := newFixture(t), newFixture(t)
	g := f.guard(f.store, nil)
	tests := []struct {
		name string
		add  func(*mcp.Server)
		want string
	}{
		{"an effect on another ledger", func(s *mcp.Server) { guard.AddTool(g, s, payTool(), guard.Atomic(other.store, pay)) }, "ledger"},
		{"no effect", func(s *mcp.Server) { guard.AddTool(g, s, payTool(), guard.Effect[payment, receipt]{}) }, "guard.Atomic"},
		{"a schema that is no object", func(s *mcp.Server) {
			guard.AddTool(g, s, &mcp.Tool{Name: "pay", InputSchema: json.RawMessage(`{"type":"array"}`)}, guard.Atomic(f.store, pay))
		}, "object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(p.(string), tt.want) {
					t.Errorf("panic = %v, want one that speaks of %q", p, tt.want)
				}
			}()
			tt.add(newServer())
		})
	}
}

// Models mint a new id on every retry if the description tells them to.
func TestDescriptionsTellModelsToReuseTheID(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	g.Install(server)
	tools, err := connect(t, server, nil).ListTools(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools {
		schema, _ := json.Marshal(tool.InputSchema)
		if tool.Name == "pay" && (!bytes.Contains(schema, []byte("reuse the same id on every retry")) || bytes.Contains(bytes.ToLower(schema), []byte("unique for every"))) {
			t.Errorf("the schema of operation_id says: %s", schema)
		}
		if tool.Name == "pay" {
			continue
		}
		a := tool.Annotations
		if a == nil || a.Title == "" || a.DestructiveHint == nil || a.OpenWorldHint == nil || tool.OutputSchema == nil {
			t.Errorf("%s lacks a title, a hint or an output schema", tool.Name)
		}
	}
	if len(tools.Tools) != 5 {
		t.Errorf("%d tools, want 5", len(tools.Tools))
	}
}
