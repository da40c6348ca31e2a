package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// outside is a system that an external effect changes. It does whatever it is asked to, each time.
type outside struct {
	mu   sync.Mutex
	done []string
}

func (o *outside) do(operation string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = append(o.done, operation)
}

func (o *outside) count(operation string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.done {
		if d == operation {
			n++
		}
	}
	return n
}

// external makes a server with the tool "pay", which is e, on a store of its own, as
// another process would. Its leases are short.
func (f *fixture) external(e guard.Effect[payment, receipt], change func(*guard.Options)) (*mcp.ClientSession, *guard.Guard) {
	f.t.Helper()
	return f.externalOver(f.open(), e, change)
}

func (f *fixture) externalOver(store mcpreplay.Store, e guard.Effect[payment, receipt], change func(*guard.Options)) (*mcp.ClientSession, *guard.Guard) {
	f.t.Helper()
	g := f.guard(store, func(o *guard.Options) {
		o.Lease, o.EffectTimeout, o.ReconcileTimeout, o.Wait = time.Second, 20*time.Second, 2*time.Second, 20*time.Second
		if change != nil {
			change(o)
		}
	})
	server := newServer()
	guard.AddTool(g, server, payTool(), e)
	g.Install(server)
	return connect(f.t, server, nil), g
}

func paid(op *guard.Op, in payment) (receipt, error) {
	return receipt{Operation: op.ID, Paid: in.Amount.String()}, nil
}

// observed is what get_operation_status tells.
func observed(t testing.TB, cs *mcp.ClientSession, id string) mcpreplay.Observation {
	t.Helper()
	res := mustCall(t, cs, "get_operation_status", `{"operation_id":"`+id+`"}`)
	text, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var o mcpreplay.Observation
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// history is the kinds of the events of all operations, read by another connection.
func (f *fixture) history() string {
	db := openRaw(f.t, f.path)
	defer db.Close()
	return strings.Join(strings.Fields(dump(f.t, db, `SELECT kind || iif(outcome = '', '', ':' || outcome) FROM mcpreplay_events ORDER BY position`)), " ")
}

func (f *fixture) row(columns string) string {
	db := openRaw(f.t, f.path)
	defer db.Close()
	return strings.TrimSpace(dump(f.t, db, `SELECT `+columns+` FROM mcpreplay_operations ORDER BY seq`))
}

func isUnknown(res *mcp.CallToolResult) bool {
	said, _ := json.Marshal(res.StructuredContent)
	return res.IsError && strings.Contains(string(said), `"operation_unknown"`)
}

func TestAnExternalEffectIsClaimedBeforeItRuns(t *testing.T) {
	f := newFixture(t)
	var seen string
	cs, _ := f.external(guard.External(func(ctx context.Context, op *guard.Op, in payment) (receipt, error) {
		seen = f.row(`state, owner <> '', attempt, lease_until IS NOT NULL, effect_until > created_at, key_id <> ''`)
		if _, ok := ctx.Deadline(); !ok || op.Attempt != 1 {
			t.Errorf("its context has a deadline: %v, attempt %d", ok, op.Attempt)
		}
		op.Effect("charge/1")
		return paid(op, in)
	}), nil)
	res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":3}`)
	if want := "in_progress | 1 | 1 | 1 | 1 | 1"; seen != want {
		t.Errorf("while the effect ran another connection read %q, want %q", seen, want)
	}
	if replayed(res) || fmt.Sprint(res.StructuredContent) != "map[operation:pay-1 paid:3]" {
		t.Errorf("the result is %v", res.StructuredContent)
	}
	if got := f.row("state, effect, lease_until IS NULL, memo IS NULL"); got != "applied | charge/1 | 1 | 1" {
		t.Errorf("recorded %q", got)
	}
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":3}`); !replayed(res) {
		t.Errorf("sent again: %s", text(res))
	}
	if _, err := call(cs, "pay", `{"operation_id":"pay-1","amount":4}`, nil); reason(err) != "operation_conflict" {
		t.Errorf("with another amount: %v", err)
	}
	if got := f.history(); got != "claim finish" {
		t.Errorf("history: %s", got)
	}
}

// How an effect ends decides what is known, what the record says and whether the same
// call may be sent again. The effect runs as often as is said, however often it is.
func TestHowAnExternalEffectEnds(t *testing.T) {
	boom := errors.New("connection reset")
	huge := strings.Repeat("x", 5<<20)
	tests := []struct {
		name    string
		fn      func(*guard.Op, payment) (receipt, error)
		first   string // part of the text of the first reply
		unknown bool
		isError bool
		state   mcpreplay.State // that status tells
		rec     string          // state in the ledger
		runs    int             // after three calls
		history string
	}{
		{name: "a result", fn: paid, state: "applied", rec: "applied", runs: 1, history: "claim finish"},
		{name: "not applied", fn: func(*guard.Op, payment) (receipt, error) {
			return receipt{}, guard.NotApplied(errors.New("card declined"))
		},
			first: "card declined", isError: true, state: "not_applied", rec: "not_applied", runs: 1, history: "claim finish"},
		{name: "not applied, wrapped", fn: func(*guard.Op, payment) (receipt, error) {
			return receipt{}, fmt.Errorf("pay: %w", guard.NotApplied(errors.New("card declined")))
		}, first: "card declined", isError: true, state: "not_applied", rec: "not_applied", runs: 1, history: "claim finish"},
		{name: "try again", fn: func(*guard.Op, payment) (receipt, error) {
			return receipt{}, guard.TryAgain(errors.New("rate limited"))
		},
			first: "rate limited", isError: true, state: "unknown", rec: "released", runs: 3, history: "claim release claim release claim release"},
		{name: "an error", fn: func(*guard.Op, payment) (receipt, error) { return receipt{}, boom }, unknown: true, state: "unknown", rec: "in_progress", runs: 1, history: "claim doubt"},
		{name: "a panic", fn: func(*guard.Op, payment) (receipt, error) { panic("boom") }, unknown: true, state: "unknown", rec: "in_progress", runs: 1, history: "claim doubt"},
		{name: "goexit", fn: func(*guard.Op, payment) (receipt, error) { runtime.Goexit(); return receipt{}, nil },
			unknown: true, state: "unknown", rec: "in_progress", runs: 1, history: "claim doubt"},
		{name: "a result that is too large", fn: func(op *guard.Op, _ payment) (receipt, error) { return receipt{Operation: huge}, nil },
			first: "too large", isError: true, state: "applied", rec: "applied", runs: 1, history: "claim finish"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			runs := 0
			cs, _ := f.external(guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
				runs++
				return tt.fn(op, in)
			}), nil)
			for i := range 3 {
				res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
				if isUnknown(res) != tt.unknown || res.IsError != (tt.isError || tt.unknown) || !strings.Contains(text(res), tt.first) {
					t.Errorf("call %d: %.300s %v", i, text(res), res.StructuredContent)
				}
			}
			if o := observed(t, cs, "pay-1"); o.State != tt.state || o.ResultIsError != (tt.isError && tt.state == "applied") {
				t.Errorf("status: %s, resultIsError %v: %s", o.State, o.ResultIsError, o.Detail)
			}
			if got := f.row("state"); got != tt.rec || runs != tt.runs {
				t.Errorf("the record is %s after %d runs, want %s after %d", got, runs, tt.rec, tt.runs)
			}
			if got := f.history(); got != tt.history {
				t.Errorf("history: %s, want %s", got, tt.history)
			}
		})
	}
}

func TestAResultThatIsNotAsDeclaredIsRecordedAllTheSame(t *testing.T) {
	f := newFixture(t)
	g := f.guard(f.store, nil)
	server := newServer()
	runs := 0
	tool := payTool()
	tool.OutputSchema = json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
	guard.AddTool(g, server, tool, guard.External(func(context.Context, *guard.Op, json.RawMessage) (map[string]any, error) {
		runs++
		return map[string]any{"n": "five"}, nil
	}))
	whole := payTool()
	whole.Name = "whole"
	guard.AddTool(g, server, whole, guard.ExternalHandler(func(_ context.Context, _ *guard.Op, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		runs++
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "done, with a warning: " + string(req.Params.Arguments)}}}, nil
	}))
	g.Install(server)
	cs := connect(t, server, nil)
	for range 2 {
		if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); !res.IsError || !strings.Contains(text(res), "not as its tool declares it") {
			t.Errorf("not as declared: %s", text(res))
		}
		if res := mustCall(t, cs, "whole", `{"operation_id":"pay-2","amount":1}`); !res.IsError || !strings.Contains(text(res), `done, with a warning: {"amount":1}`) {
			t.Errorf("an error of the tool's own: %s", text(res))
		}
	}
	if got := f.row("state, result_is_error"); got != "applied | 1\napplied | 1" || runs != 2 {
		t.Errorf("recorded %q after %d runs", got, runs)
	}
}

// A claim that was given back stands for its request: the same one goes on, another is
// a conflict, and a fence or a deadline ends it.
func TestWhatWasGivenBackMayBeSentAgain(t *testing.T) {
	f := newFixture(t)
	var attempts []int64
	again := guard.TryAgain(errors.New("rate limited"))
	fail := error(again)
	cs, _ := f.external(guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		attempts = append(attempts, op.Attempt)
		if fail != nil {
			return receipt{}, fail
		}
		return paid(op, in)
	}), nil)
	for _, id := range []string{"pay-1", "pay-2", "pay-3"} {
		mustCall(t, cs, "pay", `{"operation_id":"`+id+`","amount":1}`)
	}
	fail = nil
	if _, err := call(cs, "pay", `{"operation_id":"pay-1","amount":2}`, nil); reason(err) != "operation_conflict" {
		t.Errorf("another amount: %v", err)
	}
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); res.IsError || replayed(res) {
		t.Errorf("sent again: %s", text(res))
	}
	if fmt.Sprint(attempts) != "[1 1 1 2]" {
		t.Errorf("attempts %v", attempts)
	}
	mustCall(t, cs, "fence_operation", `{"operation_id":"pay-2"}`)
	if _, err := call(cs, "pay", `{"operation_id":"pay-2","amount":1}`, nil); reason(err) != "operation_fenced" {
		t.Errorf("fenced: %v", err)
	}
	f.clock.Add(3600)
	if _, err := call(cs, "pay", `{"operation_id":"pay-3","amount":1}`, nil); reason(err) != "operation_authority_expired" {
		t.Errorf("too late: %v", err)
	}
	if len(attempts) != 4 {
		t.Errorf("attempts %v", attempts)
	}
}

// A tool that asks may be asked anew when nothing came of the first time.
func TestWhatWasGivenBackIsAskedAnew(t *testing.T) {
	f := newFixture(t)
	fail := true
	g := f.guard(f.store, nil)
	server := newServer()
	guard.AddTool(g, server, payTool(), guard.Ask(func(context.Context, *guard.Op, payment) (guard.Questions, error) {
		return guard.Questions{"why": {Message: "Why?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"why":{"type":"string"}},"required":["why"]}`)}}, nil
	}, guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		if fail {
			return receipt{}, guard.TryAgain(errors.New("rate limited"))
		}
		return paid(op, in)
	})))
	g.Install(server)
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"why": "rent"}}, nil
	}})
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	fail = false
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); res.IsError || replayed(res) {
		t.Errorf("asked anew: %s", text(res))
	}
	if got := f.history(); got != "claim release claim finish" {
		t.Errorf("history: %s", got)
	}
}

// An effect that does not heed its deadline is not waited for, and what it says in the
// end is recorded all the same.
func TestAnEffectThatIgnoresItsDeadline(t *testing.T) {
	f := newFixture(t)
	release := make(chan struct{})
	cs, _ := f.external(guard.Timeout(50*time.Millisecond, guard.External(func(ctx context.Context, op *guard.Op, in payment) (receipt, error) {
		<-release
		return paid(op, in)
	})), nil)
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); !isUnknown(res) {
		t.Errorf("the reply is %s", text(res))
	}
	if o := observed(t, cs, "pay-1"); o.State != "unknown" || !strings.Contains(o.Detail, "no live owner") {
		t.Errorf("status: %s, %s", o.State, o.Detail)
	}
	close(release)
	eventually(t, "the late outcome", func() bool { return f.row("state") == "applied" })
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`); !replayed(res) || res.IsError {
		t.Errorf("afterwards: %s", text(res))
	}
	if got := f.history(); got != "claim doubt finish" {
		t.Errorf("history: %s", got)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestAnEffectOutlivesTheClientThatAskedForIt(t *testing.T) {
	f := newFixture(t)
	running := make(chan struct{})
	requests := make(chan context.Context, 1)
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.External(func(ctx context.Context, op *guard.Op, in payment) (receipt, error) {
		close(running)
		<-(<-requests).Done() // its client is known to have gone
		if err := ctx.Err(); err != nil {
			t.Errorf("its context ended with the request: %v", err)
		}
		return paid(op, in)
	}))
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "tools/call" {
				requests <- ctx
			}
			return next(ctx, method, req)
		}
	})
	cs := connect(t, server, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"operation_id":"pay-1","amount":1}`)})
		ended <- err
	}()
	<-running
	cancel()
	if err := <-ended; err == nil {
		t.Error("the cancelled call had a reply")
	}
	eventually(t, "the outcome", func() bool { return f.row("state") == "applied" })
}

func TestDuplicatesWaitForTheLiveOwner(t *testing.T) {
	f := newFixture(t)
	var runs atomic.Int64
	effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		runs.Add(1)
		time.Sleep(3 * time.Second) // longer than the lease, which is renewed
		return paid(op, in)
	})
	var wg sync.WaitGroup
	var fresh atomic.Int64
	for range 3 { // processes
		cs, _ := f.external(effect, func(o *guard.Options) { o.Lease = 2 * time.Second })
		for range 5 {
			wg.Go(func() {
				res, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
				if err != nil || res.IsError || fmt.Sprint(res.StructuredContent) != "map[operation:pay-1 paid:1]" {
					t.Errorf("a caller got %v, %v", res, err)
					return
				}
				if !replayed(res) {
					fresh.Add(1)
				}
			})
		}
	}
	wg.Wait()
	if runs.Load() != 1 || fresh.Load() != 1 {
		t.Errorf("%d runs, %d fresh results; want one of each", runs.Load(), fresh.Load())
	}
}

func TestADuplicateThatWaitsTooLongIsToldToComeAgain(t *testing.T) {
	f := newFixture(t)
	running, release := make(chan struct{}), make(chan struct{})
	effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		close(running)
		<-release
		return paid(op, in)
	})
	owner, _ := f.external(effect, func(o *guard.Options) { o.Lease = time.Minute })
	other, _ := f.external(effect, func(o *guard.Options) { o.Wait = 200 * time.Millisecond })
	done := make(chan struct{})
	go func() {
		defer close(done)
		mustCall(t, owner, "pay", `{"operation_id":"pay-1","amount":1}`)
	}()
	<-running
	if _, err := call(other, "pay", `{"operation_id":"pay-1","amount":1}`, nil); reason(err) != "operation_in_progress" {
		t.Errorf("a duplicate: %v", err)
	}
	close(release)
	<-done
}

func TestIdempotencyKeysNameOneOperation(t *testing.T) {
	f := newFixture(t)
	var keys []string
	effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		keys = append(keys, op.IdempotencyKey())
		if len(keys) == 1 {
			return receipt{}, guard.TryAgain(errors.New("later"))
		}
		return paid(op, in)
	})
	alice, _ := f.external(effect, nil)
	mustCall(t, alice, "pay", `{"operation_id":"pay-1","amount":1}`)
	again, _ := f.external(effect, nil) // after a restart
	mustCall(t, again, "pay", `{"operation_id":"pay-1","amount":1}`)
	mustCall(t, again, "pay", `{"operation_id":"pay-2","amount":1}`)
	bob, _ := f.external(effect, func(o *guard.Options) { o.Principal = "bob" })
	mustCall(t, bob, "pay", `{"operation_id":"pay-3","amount":1}`)
	if len(keys) != 4 || keys[0] != keys[1] || keys[1] == keys[2] || keys[2] == keys[3] || len(keys[0]) != 64 {
		t.Errorf("keys %v", keys)
	}
	mixed := map[string]bool{}
	for _, op := range []guard.Op{{ID: "ab", Principal: "c"}, {ID: "b", Principal: "ca"}, {ID: "a,1:b", Principal: "c"}} {
		mixed[op.IdempotencyKey()] = true
	}
	if len(mixed) != 3 {
		t.Error("two operations share a key")
	}
}

func TestMisusedDecoratorsAreRefused(t *testing.T) {
	f := newFixture(t)
	g := f.guard(f.store, nil)
	ask := func(context.Context, *guard.Op, payment) (guard.Finding[receipt], error) {
		return guard.Undecided[receipt]("no"), nil
	}
	external := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) { return paid(op, in) })
	for name, e := range map[string]guard.Effect[payment, receipt]{
		"idempotent atomic": guard.Idempotent(guard.Atomic(f.store, pay)),
		"reconciled atomic": guard.Reconcile(ask, guard.Atomic(f.store, pay)),
		"no time":           guard.Timeout(0, external),
		"idempotent choice": guard.Choose(func(payment) string { return "a" }, map[string]guard.Effect[payment, receipt]{"a": guard.Idempotent(external)}),
		"idempotent mix": guard.Idempotent(guard.Choose(func(payment) string { return "a" },
			map[string]guard.Effect[payment, receipt]{"a": external, "b": guard.Atomic(f.store, pay)})),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was accepted", name)
				}
			}()
			guard.AddTool(g, newServer(), payTool(), e)
		}()
	}
}
