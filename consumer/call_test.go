package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

// marked is the result of a guarded server.
func marked(id string, state mcpreplay.State, ledger mcpreplay.LedgerRef) *mcp.CallToolResult {
	return &mcp.CallToolResult{
		Meta: mcp.Meta{mcpreplay.MetaOperation: mcpreplay.Mark{
			OperationID: id, State: state, RecordedAt: "2026-08-01T12:00:00Z", Ledger: ledger,
		}},
		Content: []mcp.Content{&mcp.TextContent{Text: "done"}},
	}
}

// notRecorded is how a guarded server answers a call whose effect failed and was
// rolled back, or whose question was dismissed.
func notRecorded(ledger mcpreplay.LedgerRef) *mcp.CallToolResult {
	res := marked("op-1", mcpreplay.StateUnknown, ledger)
	res.IsError = true
	return res
}

func answer(res *mcp.CallToolResult, err error) handler {
	return func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return res, err }
}

func refuseWith(reason mcpreplay.Reason) handler {
	return answer(nil, &jsonrpc.Error{
		Code: mcpreplay.CodeRefused, Message: string(reason),
		Data: json.RawMessage(fmt.Sprintf(`{"reason":%q,"operationId":"op-1","retryable":false}`, reason)),
	})
}

func TestCallReturnsTheWholeResult(t *testing.T) {
	tests := []struct {
		name   string
		then   handler
		effect mcpreplay.State
		action mcpreplay.Action
		marked bool
	}{
		{"unmarked", answer(&mcp.CallToolResult{StructuredContent: json.RawMessage(`{"id":9007199254740993}`)}, nil), "unknown", "return_stored_result", false},
		{"an error of the tool", answer(&mcp.CallToolResult{IsError: true}, nil), "unknown", "return_stored_result", false},
		{"applied", answer(marked("op-1", "applied", known), nil), "applied", "return_stored_result", true},
		{"partial", answer(marked("op-1", "partial", known), nil), "partial", "stop", true},
		{"declined", answer(marked("op-1", "not_applied", known), nil), "not_applied", "stop", true},
		{"not recorded", answer(notRecorded(known), nil), "unknown", "return_stored_result", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var effects atomic.Int64
			session := connectMemory(t, newClient(nil), newServer(&effects, tt.then, nil))
			out := consumer.New(nil).Call(t.Context(), session, intent())
			if out.Kind != consumer.KindVerdict || out.Verdict.Kind != mcpreplay.VerdictResult || out.Err != nil {
				t.Fatalf("outcome = %+v, want a result", out)
			}
			if out.Effect != tt.effect || out.Action != tt.action || (out.Mark != nil) != tt.marked {
				t.Errorf("outcome = %q, %q, mark %v, want %q, %q", out.Effect, out.Action, out.Mark, tt.effect, tt.action)
			}
			if tt.marked && *out.Ledger() != known {
				t.Errorf("ledger = %+v, want %+v", out.Ledger(), known)
			}
			var whole struct{ Content, StructuredContent json.RawMessage }
			if err := json.Unmarshal(out.Result, &whole); err != nil || whole.Content == nil {
				t.Errorf("result = %s, %v", out.Result, err)
			}
			if tt.name == "unmarked" && string(whole.StructuredContent) != `{"id":9007199254740993}` {
				t.Errorf("structured content = %s", whole.StructuredContent)
			}
		})
	}
}

func TestCallSendsTheRequestAsItIs(t *testing.T) {
	var effects atomic.Int64
	var got mcp.CallToolParamsRaw
	session := connectMemory(t, newClient(nil), newServer(&effects, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		got = *req.Params
		return &mcp.CallToolResult{}, nil
	}, nil))
	in := intent()
	in.Arguments = json.RawMessage(`{"n":9007199254740993,"amount":1.10,"text":"a<b&c"}`)
	consumer.New(nil).Call(t.Context(), session, in)
	if string(got.Arguments) != string(in.Arguments) {
		t.Errorf("arguments = %s, want %s", got.Arguments, in.Arguments)
	}
	if got.Meta[mcpreplay.MetaOperationID] != "op-1" {
		t.Errorf("operation id = %v", got.Meta[mcpreplay.MetaOperationID])
	}
}

func TestCallOfARefusedOperation(t *testing.T) {
	for reason, action := range map[mcpreplay.Reason]mcpreplay.Action{
		mcpreplay.ReasonConflict: "stop", mcpreplay.ReasonUnavailable: "stop", mcpreplay.ReasonFenced: "reconcile",
	} {
		t.Run(string(reason), func(t *testing.T) {
			var effects atomic.Int64
			session := connectMemory(t, newClient(nil), newServer(&effects, refuseWith(reason), nil))
			out := consumer.New(nil).Call(t.Context(), session, intent())
			if out.Kind != consumer.KindVerdict || out.Verdict.Kind != mcpreplay.VerdictRefused || out.Verdict.Reason != reason {
				t.Fatalf("outcome = %+v, want refused by %q", out, reason)
			}
			if out.Action != action || out.Effect != mcpreplay.StateUnknown || out.Result != nil {
				t.Errorf("outcome = %+v, want %q", out, action)
			}
		})
	}
}

// What names another operation is no answer to this call, whoever mixed them up.
func TestCallIsUnknownWhenTheReplyIsAboutAnotherOperation(t *testing.T) {
	other := func(code int64) handler {
		return answer(nil, &jsonrpc.Error{Code: code, Message: "operation_conflict",
			Data: json.RawMessage(`{"reason":"operation_conflict","operationId":"op-2","retryable":false}`)})
	}
	question := marked("op-2", mcpreplay.StateUnknown, known)
	question.RequestState, question.Content = "s", nil
	question.InputRequests = mcp.InputRequestMap{"sure": &mcp.ElicitParams{Message: "Sure?", RequestedSchema: json.RawMessage(`{"type":"object"}`)}}
	for name, then := range map[string]handler{
		"a result":          answer(marked("op-2", mcpreplay.StateApplied, known), nil),
		"a refusal":         other(mcpreplay.CodeRefused),
		"another proof":     other(-32600),
		"another error":     other(1001),
		"a question":        answer(question, nil),
		"not of our states": answer(marked("op-1", "bogus", known), nil),
		"not told outside":  answer(marked("op-1", mcpreplay.StateInProgress, known), nil),
	} {
		t.Run(name, func(t *testing.T) {
			server := func(effects *atomic.Int64) *mcp.Server { return newServer(effects, then, nil) }
			overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, effects *atomic.Int64) {
				journal := consumer.NewMemoryJournal()
				out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), open(newClient(&mcp.ClientOptions{ElicitationHandler: yes})), intent())
				checkUnknown(t, out)
				if out.Verdict.Kind != mcpreplay.VerdictUnknown {
					t.Errorf("verdict = %+v, want unknown", out.Verdict)
				}
				checkEffects(t, effects, 1)
				if list, err := journal.Unsettled(); err != nil || len(list) != 1 {
					t.Errorf("in doubt: %v, %v, want the operation", list, err)
				}
			})
		})
	}
}

func TestCallOfAServerThatDoesNotKnow(t *testing.T) {
	for _, reason := range []mcpreplay.Reason{mcpreplay.ReasonUnknown, mcpreplay.ReasonInProgress} {
		t.Run(string(reason), func(t *testing.T) {
			var effects atomic.Int64
			res := &mcp.CallToolResult{IsError: true, StructuredContent: map[string]any{"code": reason, "operationId": "op-1", "state": "unknown"}}
			session := connectMemory(t, newClient(nil), newServer(&effects, answer(res, nil), nil))
			out := consumer.New(nil).Call(t.Context(), session, intent())
			checkUnknown(t, out)
			if out.Verdict.Reason != reason || out.Verdict.OperationID != "op-1" {
				t.Errorf("verdict = %+v", out.Verdict)
			}
		})
	}
	t.Run("as an error", func(t *testing.T) {
		var effects atomic.Int64
		session := connectMemory(t, newClient(nil), newServer(&effects, refuseWith(mcpreplay.ReasonInProgress), nil))
		checkUnknown(t, consumer.New(nil).Call(t.Context(), session, intent()))
	})
}

func TestCallIsUnknownWhenThePipeCloses(t *testing.T) {
	ours, theirs := net.Pipe()
	var effects atomic.Int64
	server := newServer(&effects, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		theirs.Close()
		return &mcp.CallToolResult{}, nil
	}, nil)
	if _, err := server.Connect(t.Context(), &mcp.IOTransport{Reader: theirs, Writer: theirs}, nil); err != nil {
		t.Fatal(err)
	}
	session := connect(t, newClient(nil), &mcp.IOTransport{Reader: ours, Writer: ours})
	c := consumer.New(nil)
	checkUnknown(t, c.Call(t.Context(), session, intent()))
	checkEffects(t, &effects, 1)

	t.Run("and what follows is not sent", func(t *testing.T) {
		next := intent()
		next.Scope.OperationID = "op-2"
		checkNotSent(t, c.Call(t.Context(), session, next))
	})
	t.Run("but stays unknown under the same id", func(t *testing.T) {
		checkUnknown(t, c.Call(t.Context(), session, intent()))
	})
	t.Run("and its status is not known", func(t *testing.T) {
		out, err := c.Reconcile(t.Context(), session, intent())
		checkUnknown(t, out)
		if err == nil {
			t.Error("Reconcile() says nothing of the closed session")
		}
	})
}

// An error that the SDK puts into the place of a reply may wrap one that a server
// could have sent.
func TestCallIsUnknownWhenTheSDKMakesUpTheError(t *testing.T) {
	var effects atomic.Int64
	refused := &jsonrpc.Error{Code: mcpreplay.CodeRefused, Data: json.RawMessage(`{"reason":"operation_conflict"}`)}
	for name, change := range map[string]func(*jsonrpc.Response){
		"wrapped":              func(r *jsonrpc.Response) { r.Result, r.Error = nil, fmt.Errorf("request terminated: %w", refused) },
		"beside a result":      func(r *jsonrpc.Response) { r.Error = refused },
		"made up":              func(r *jsonrpc.Response) { r.Result, r.Error = nil, errors.New("request terminated without response") },
		"of no server":         func(r *jsonrpc.Response) { r.Result, r.Error = nil, &jsonrpc.Error{Code: -32005} },
		"neither, and nothing": func(r *jsonrpc.Response) { r.Result = nil },
	} {
		t.Run(name, func(t *testing.T) {
			effects.Store(0)
			ours, theirs := mcp.NewInMemoryTransports()
			if _, err := newServer(&effects, nil, nil).Connect(t.Context(), theirs, nil); err != nil {
				t.Fatal(err)
			}
			session := connect(t, newClient(nil), &changing{Transport: ours, change: change})
			checkUnknown(t, consumer.New(nil).Call(t.Context(), session, intent()))
			checkEffects(t, &effects, 1)
		})
	}
}

// changing changes the response to a tool call: the one with content.
type changing struct {
	mcp.Transport
	change func(*jsonrpc.Response)
}

func (c *changing) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := c.Transport.Connect(ctx)
	return &changingConn{conn, c.change}, err
}

type changingConn struct {
	mcp.Connection
	change func(*jsonrpc.Response)
}

func (c *changingConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if resp, ok := msg.(*jsonrpc.Response); ok && bytes.Contains(resp.Result, []byte(`"content"`)) {
		c.change(resp)
	}
	return msg, err
}

func TestCallIsUnknownWhenItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var effects atomic.Int64
	session := connectMemory(t, newClient(nil), newServer(&effects, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		cancel()
		<-ctx.Done() // the server is told
		return &mcp.CallToolResult{}, nil
	}, nil))
	out := consumer.New(nil).Call(ctx, session, intent())
	checkUnknown(t, out)
	if !errors.Is(out.Err, context.Canceled) {
		t.Errorf("error = %v", out.Err)
	}
	checkEffects(t, &effects, 1)
}

func TestCallIsNotSent(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	with := func(change func(*consumer.Intent)) consumer.Intent {
		in := intent()
		change(&in)
		return in
	}
	tests := []struct {
		name    string
		ctx     context.Context
		in      consumer.Intent
		journal consumer.Journal
	}{
		{"its context has ended", ended, intent(), nil},
		{"a bad id", t.Context(), with(func(in *consumer.Intent) { in.Scope.OperationID = "a b" }), nil},
		{"no tool", t.Context(), with(func(in *consumer.Intent) { in.Tool = "" }), nil},
		{"arguments that are not JSON", t.Context(), with(func(in *consumer.Intent) { in.Arguments = json.RawMessage(`{"a":`) }), nil},
		{"arguments that are no object", t.Context(), with(func(in *consumer.Intent) { in.Arguments = json.RawMessage(`[1]`) }), nil},
		{"arguments with duplicates", t.Context(), with(func(in *consumer.Intent) { in.Arguments = json.RawMessage(`{"a":1,"a":2}`) }), nil},
		{"a journal that fails", t.Context(), intent(), &spy{fail: map[int]error{0: errors.New("disk full"), 1: errors.New("disk full")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var effects atomic.Int64
			server := newServer(&effects, nil, nil)
			web := serveHTTP(t, newServer(&effects, nil, nil), false, nil)
			for name, session := range map[string]*consumer.Session{
				"memory": connectMemory(t, newClient(nil), server), "http": connectHTTP(t, newClient(nil), web.URL, nil),
			} {
				t.Run(name, func(t *testing.T) {
					c := consumer.New(&consumer.Options{Journal: tt.journal})
					checkNotSent(t, c.Call(tt.ctx, session, tt.in))
				})
			}
			checkEffects(t, &effects, 0)
		})
	}
}

// A middleware that sends a call again would do the work twice.
func TestCallIsSentOnceWhateverAMiddlewareDoes(t *testing.T) {
	twice := func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "tools/call" {
				next(ctx, method, req)
			}
			return next(ctx, method, req)
		}
	}
	var effects atomic.Int64
	web := serveHTTP(t, newServer(&effects, nil, nil), false, nil)
	for name, open := range map[string]func(*mcp.Client) *consumer.Session{
		"memory": func(c *mcp.Client) *consumer.Session { return connectMemory(t, c, newServer(&effects, nil, nil)) },
		"http":   func(c *mcp.Client) *consumer.Session { return connectHTTP(t, c, web.URL, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			effects.Store(0)
			client := newClient(nil)
			client.AddSendingMiddleware(twice)
			session := open(client)
			for i := range 2 { // the session lives on
				in := intent()
				in.Scope.OperationID = fmt.Sprintf("op-%d", i)
				out := consumer.New(nil).Call(t.Context(), session, in)
				if out.Kind != consumer.KindVerdict || out.Err == nil {
					t.Errorf("outcome = %+v, want the verdict of the first and the error of the second", out)
				}
			}
			checkEffects(t, &effects, 2)
		})
		t.Run(name+" with another context", func(t *testing.T) {
			effects.Store(0)
			client := newClient(nil)
			client.AddSendingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
				return func(_ context.Context, method string, req mcp.Request) (mcp.Result, error) {
					res, err := next(context.Background(), method, req)
					if method == "tools/call" && err == nil {
						err = errors.New("lost")
					}
					return res, err
				}
			})
			checkUnknown(t, consumer.New(nil).Call(t.Context(), open(client), intent()))
			checkEffects(t, &effects, 1)
		})
	}
}

func TestCallsAtOnceGetTheirOwnReplies(t *testing.T) {
	var effects atomic.Int64
	echo := func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: req.Params.Arguments}, nil
	}
	web := serveHTTP(t, newServer(&effects, echo, nil), false, nil)
	for name, session := range map[string]*consumer.Session{
		"memory": connectMemory(t, newClient(nil), newServer(&effects, echo, nil)),
		"http":   connectHTTP(t, newClient(nil), web.URL, nil),
	} {
		t.Run(name, func(t *testing.T) {
			c := consumer.New(nil)
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					in := intent()
					in.Scope.OperationID = fmt.Sprintf("op-%d", i)
					in.Arguments = json.RawMessage(fmt.Sprintf(`{"i":%d}`, i))
					out := c.Call(t.Context(), session, in)
					var got struct{ StructuredContent struct{ I int } }
					if err := json.Unmarshal(out.Result, &got); err != nil || got.StructuredContent.I != i {
						t.Errorf("call %d: outcome = %+v", i, out)
					}
				})
			}
			wg.Wait()
		})
	}
}
