package guard_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// withDefault is the pay tool as a later deploy may have it: with one more
// member, which has a default.
func withDefault(currency string) *mcp.Tool {
	t := payTool()
	t.InputSchema = json.RawMessage(`{"type":"object","properties":{"amount":{"type":"number"},"currency":{"type":"string","default":"` + currency + `"}},"required":["amount"],"additionalProperties":false}`)
	return t
}

// A deploy that adds or changes a default does not make an old request another
// one, neither when it starts over nor when it continues.
func TestADeployWithOtherDefaultsDoesNotLoseAnEarlierResult(t *testing.T) {
	f := newFixture(t)
	raw := &mcp.ClientOptions{MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}}
	serve := func(tool *mcp.Tool) *mcp.ClientSession {
		server := newServer()
		guard.AddTool(f.guard(f.store, nil), server, tool, guard.Atomic(f.store, pay))
		return connect(t, server, raw)
	}
	before := serve(payTool())
	mustCall(t, before, "pay", `{"operation_id":"pay-1","amount":1}`)
	asked := mustCall(t, before, "pay", `{"amount":2}`)

	for _, currency := range []string{"EUR", "USD"} {
		after := serve(withDefault(currency))
		if res := mustCall(t, after, "pay", `{"operation_id":"pay-1","amount":1}`); !replayed(res) {
			t.Errorf("default %s: the same bytes were not a repeat: %s", currency, text(res))
		}
		if _, err := call(after, "pay", `{"operation_id":"pay-1","amount":1,"currency":"CHF"}`, nil); reason(err) != "operation_conflict" {
			t.Errorf("default %s: another currency: %v, want a conflict", currency, err)
		}
	}
	res, err := serve(withDefault("EUR")).CallTool(t.Context(), &mcp.CallToolParams{
		Name: "pay", Arguments: json.RawMessage(`{"amount":2}`), RequestState: asked.RequestState})
	if err != nil || res.IsError {
		t.Errorf("a continuation over the deploy: %+v, %v", res, err)
	}
	if n := strings.Count(f.payments(""), "\n"); n != 2 {
		t.Errorf("%d effects, want 2:\n%s", n, f.payments(""))
	}
}

// With today's defaults a default written out is the same request.
func TestADefaultWrittenOutIsTheSameRequest(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, withDefault("EUR"), guard.Atomic(f.store, pay))
	cs := connect(t, server, nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1,"currency":"EUR"}`); !replayed(res) {
		t.Error("not a repeat")
	}
}

// Request state that expired still names the request whose result is there: a
// keyless client that repeats its continuation is given it, not told to start
// over, which would do the work once more.
func TestExpiredStateOfAnAppliedOperationIsAnswered(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, func(o *guard.Options) { o.StateTTL, o.AuthorityTTL, o.Retention = time.Minute, time.Hour, 2*time.Hour })
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	cs := connect(t, server, &mcp.ClientOptions{MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}})
	done, open := mustCall(t, cs, "pay", `{"amount":5}`), mustCall(t, cs, "pay", `{"amount":6}`)
	again := func(asked *mcp.CallToolResult, args string) (*mcp.CallToolResult, error) {
		return cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(args), RequestState: asked.RequestState})
	}
	if _, err := again(done, `{"amount":5}`); err != nil {
		t.Fatal(err)
	}
	f.clock.Add(60)
	if res, err := again(done, `{"amount":5}`); err != nil || !replayed(res) {
		t.Errorf("applied, state expired: %+v, %v, want the result", res, err)
	}
	if _, err := again(open, `{"amount":6}`); reason(err) != "invalid_request_state" {
		t.Errorf("never applied, state expired: %v, want a refusal", err)
	}
	f.clock.Add(3600)
	if _, err := again(done, `{"amount":5}`); reason(err) != "invalid_request_state" {
		t.Errorf("past the record's authority: %v, want a refusal", err)
	}
	if n := strings.Count(f.payments(""), "\n"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// Past retention a tool asks again; what stops the call then must not sound as if
// the operation had not been done.
func TestPastRetentionNothingSoundsUndone(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, func(o *guard.Options) { o.AuthorityTTL, o.Retention = time.Minute, time.Minute })
	guard.AddTool(g, server, payTool(), guard.Ask(askTwice, guard.Atomic(f.store, pay)))
	dismiss := false
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		if dismiss {
			return &mcp.ElicitResult{Action: "cancel"}, nil
		}
		return elicit(new([]string))(ctx, req)
	}})
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	f.clock.Add(61)
	dismiss = true
	if _, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil); reason(err) != "operation_retention_expired" {
		t.Errorf("a dismissed question: %v, want operation_retention_expired", err)
	}
}

// The first continuation of two, repeated after the end, is a conflict: the record
// knows the answers of all rounds together, so nobody can tell whether it brings
// the one that was given. A first round is given the result.
func TestARepeatOfAnEarlierRoundAfterTheEndIsAConflict(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Ask(askTwice, guard.Atomic(f.store, pay)))
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: elicit(new([]string)), MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}})
	args := json.RawMessage(`{"operation_id":"pay-1","amount":1}`)
	first := mustCall(t, cs, "pay", string(args))
	second, err := answered(t, cs, args, first, "account", "name", "savings")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := answered(t, cs, args, second, "confirm", "word", "yes"); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"savings", "checking"} {
		if _, err := answered(t, cs, args, first, "account", "name", value); reason(err) != "operation_conflict" {
			t.Errorf("the first continuation again with %s: %v, want a conflict", value, err)
		}
	}
	if _, err := answered(t, cs, args, second, "confirm", "word", "no"); reason(err) != "operation_conflict" {
		t.Errorf("another last answer: %v, want a conflict", err)
	}
	if res := mustCall(t, cs, "pay", string(args)); !replayed(res) {
		t.Errorf("a first round: %s, want the result", text(res))
	}
	if got := f.payments(""); got != "pay-1 | 1\n" {
		t.Errorf("effects: %q", got)
	}
}

// answered continues asked with one answer.
func answered(t *testing.T, cs *mcp.ClientSession, args json.RawMessage, asked *mcp.CallToolResult, name, field string, value any) (*mcp.CallToolResult, error) {
	t.Helper()
	return cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "pay", Arguments: args, RequestState: asked.RequestState,
		InputResponses: mcp.InputResponseMap{name: &mcp.ElicitResult{Action: "accept", Content: map[string]any{field: value}}}})
}

// An answer that makes the tool ask more is another answer, too, once the
// operation is done.
func TestAnotherAnswerIsAConflictThoughItWouldLeadToMoreQuestions(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	form := func(field, kind string) *mcp.ElicitParams {
		return &mcp.ElicitParams{Message: field + "?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"` + field + `":{"type":"` + kind + `"}},"required":["` + field + `"]}`)}
	}
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Ask(func(_ context.Context, op *guard.Op, _ payment) (guard.Questions, error) {
		asked := guard.Questions{"sum": form("n", "number")}
		var sum struct{ N float64 }
		if op.Answered("sum") {
			if err := op.Answer("sum", &sum); err != nil {
				return nil, err
			}
		}
		if sum.N > 100 {
			asked["confirm"] = form("word", "string")
		}
		return asked, nil
	}, guard.Atomic(f.store, pay)))
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: elicit(new([]string)), MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}})
	args := json.RawMessage(`{"operation_id":"pay-1","amount":1}`)
	asked := mustCall(t, cs, "pay", string(args))
	for i := range 2 {
		if res, err := answered(t, cs, args, asked, "sum", "n", 50); err != nil || replayed(res) != (i == 1) {
			t.Fatalf("attempt %d: %+v, %v", i, res, err)
		}
	}
	for _, n := range []int{60, 5000} {
		if res, err := answered(t, cs, args, asked, "sum", "n", n); reason(err) != "operation_conflict" {
			t.Errorf("%d instead of 50: %+v, %v, want a conflict", n, res, err)
		}
	}
}

// What a user agreed to is what the schema filled in when he was asked.
func TestAnAnswerIsNotForDefaultsThatChangedSince(t *testing.T) {
	f := newFixture(t)
	raw := &mcp.ClientOptions{ElicitationHandler: elicit(new([]string)), MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}}
	serve := func(currency string) *mcp.ClientSession {
		server := newServer()
		guard.AddTool(f.guard(f.store, nil), server, withDefault(currency), guard.Ask(askFor("confirm"), guard.Atomic(f.store, pay)))
		return connect(t, server, raw)
	}
	euros, dollars := serve("EUR"), serve("USD")
	done, open := json.RawMessage(`{"operation_id":"pay-1","amount":1}`), json.RawMessage(`{"operation_id":"pay-2","amount":2}`)
	asked := mustCall(t, euros, "pay", string(done))
	if _, err := answered(t, euros, done, asked, "confirm", "x", "yes"); err != nil {
		t.Fatal(err)
	}
	if res, err := answered(t, dollars, done, asked, "confirm", "x", "yes"); err != nil || !replayed(res) {
		t.Errorf("a repeat over the deploy: %+v, %v, want the result", res, err)
	}
	pending := mustCall(t, euros, "pay", string(open))
	if _, err := answered(t, dollars, open, pending, "confirm", "x", "yes"); reason(err) != "invalid_request_state" {
		t.Errorf("an answer about euros, for dollars: %v, want a refusal", err)
	}
	if got := f.payments(""); got != "pay-1 | 1\n" {
		t.Errorf("effects: %q", got)
	}
}

// State of an earlier version is not for this one. If its operation has happened,
// the client hears of a conflict: told to start over, one that never chose an id
// would do the work again.
func TestAContinuationOfAnEarlierVersion(t *testing.T) {
	f := newFixture(t)
	raw := &mcp.ClientOptions{MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}}
	serve := func(version string) *mcp.ClientSession {
		server := newServer()
		guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Version(version, guard.Atomic(f.store, pay)))
		return connect(t, server, raw)
	}
	first, second := serve("1"), serve("2")
	send := func(cs *mcp.ClientSession, args, state string) (*mcp.CallToolResult, error) {
		return cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(args), RequestState: state})
	}
	done := mustCall(t, first, "pay", `{"amount":1}`).RequestState
	open := mustCall(t, first, "pay", `{"amount":2}`).RequestState
	if _, err := send(first, `{"amount":1}`, done); err != nil {
		t.Fatal(err)
	}

	if res, err := send(second, `{"amount":1}`, done); reason(err) != "operation_conflict" {
		t.Errorf("the state of what happened: %+v, %v, want a conflict", res, err)
	}
	if res, err := send(second, `{"amount":2}`, open); reason(err) != "invalid_request_state" {
		t.Errorf("the state of what never happened: %+v, %v, want a refusal", res, err)
	}
	if n := strings.Count(f.payments(""), "\n"); n != 1 {
		t.Errorf("%d effects, want 1:\n%s", n, f.payments(""))
	}
}
