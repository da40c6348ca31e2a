package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// askTwice wants a first answer, and a second one that depends on it.
func askTwice(_ context.Context, op *guard.Op, _ payment) (guard.Questions, error) {
	form := func(field, message string) *mcp.ElicitParams {
		return &mcp.ElicitParams{Message: message, RequestedSchema: json.RawMessage(fmt.Sprintf(
			`{"type":"object","properties":{%q:{"type":"string"}},"required":[%q]}`, field, field))}
	}
	if !op.Answered("account") {
		return guard.Questions{"account": form("name", "Which account?")}, nil
	}
	var account struct{ Name string }
	if err := op.Answer("account", &account); err != nil {
		return nil, err
	}
	return guard.Questions{"confirm": form("word", "Type the word for "+account.Name)}, nil
}

// elicit answers every question by its one field. The SDK asks those of one round
// at once.
func elicit(asked *[]string) func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	var mu sync.Mutex
	return func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		mu.Lock()
		*asked = append(*asked, req.Params.Message)
		mu.Unlock()
		schema, _ := req.Params.RequestedSchema.(map[string]any)
		content := map[string]any{}
		for field := range schema["properties"].(map[string]any) {
			content[field] = "savings"
		}
		return &mcp.ElicitResult{Action: "accept", Content: content}, nil
	}
}

func TestQuestionsMayTakeSeveralRounds(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Ask(askTwice, guard.Atomic(f.store, pay)))
	var asked []string
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: elicit(&asked)})

	for i := range 2 { // the second is a host that starts over
		res := mustCall(t, cs, "pay", `{"operation_id":"two-rounds","amount":1}`)
		if res.IsError || replayed(res) != (i == 1) {
			t.Fatalf("attempt %d: %s", i, text(res))
		}
	}
	if got := strings.Join(asked, "; "); got != "Which account?; Type the word for savings" {
		t.Errorf("asked %q", got)
	}
	if got := f.payments(""); got != "two-rounds | 1\n" {
		t.Errorf("effects: %q", got)
	}
}

// No round of questions runs the effect, however often it is repeated, and a later
// round cannot be had without the earlier one.
func TestNoRoundRunsTheEffectEarly(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Ask(askTwice, guard.Atomic(f.store, pay)))
	cs := connect(t, server, &mcp.ClientOptions{
		ElicitationHandler: elicit(new([]string)),
		MultiRoundTrip:     &mcp.MultiRoundTripOptions{Disabled: true},
	})
	args := json.RawMessage(`{"operation_id":"two-rounds","amount":1}`)
	first := mustCall(t, cs, "pay", string(args))
	answer := func(name, field, state string) (*mcp.CallToolResult, error) {
		return cs.CallTool(context.Background(), &mcp.CallToolParams{Name: "pay", Arguments: args, RequestState: state,
			InputResponses: mcp.InputResponseMap{name: &mcp.ElicitResult{Action: "accept", Content: map[string]any{field: "x"}}}})
	}
	var second *mcp.CallToolResult
	for range 3 {
		var err error
		if second, err = answer("account", "name", first.RequestState); err != nil || second.InputRequests["confirm"] == nil {
			t.Fatalf("the second round: %+v, %v", second, err)
		}
	}
	if skipped, err := answer("confirm", "word", first.RequestState); err != nil || skipped.InputRequests["account"] == nil {
		t.Errorf("the answer to the second question in the first round: %+v, %v", skipped, err)
	}
	if got := f.payments("") + f.operations(); got != "" {
		t.Errorf("something is recorded before the last answer:\n%s", got)
	}
	for i := range 2 {
		res, err := answer("confirm", "word", second.RequestState)
		if err != nil || res.IsError || replayed(res) != (i == 1) {
			t.Fatalf("the last round, attempt %d: %+v, %v", i, res, err)
		}
	}
	if got := f.payments(""); got != "two-rounds | 1\n" {
		t.Errorf("effects: %q", got)
	}
}

func TestAToolThatNeverStopsAskingIsStopped(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(f.store, nil)
	n := 0
	guard.AddTool(g, server, payTool(), guard.Ask(func(context.Context, *guard.Op, payment) (guard.Questions, error) {
		n++
		return guard.Questions{fmt.Sprint("q", n): {Message: "And?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)}}, nil
	}, guard.Atomic(f.store, pay)))
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
	}, MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}})
	p := &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"operation_id":"endless","amount":1}`)}
	for round := 0; ; round++ {
		res, err := cs.CallTool(context.Background(), p)
		if err != nil {
			t.Fatal(err)
		}
		if !res.NeedsInput() {
			if !res.IsError || round != 10 {
				t.Errorf("after %d rounds: %s", round, text(res))
			}
			break
		}
		p = &mcp.CallToolParams{Name: "pay", Arguments: p.Arguments, RequestState: res.RequestState, InputResponses: mcp.InputResponseMap{}}
		for name := range res.InputRequests {
			p.InputResponses[name] = &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}
		}
	}
	if got := f.payments("") + f.operations(); got != "" {
		t.Errorf("something is recorded:\n%s", got)
	}
}

func TestAQuestionThatCannotBePosedRunsNothing(t *testing.T) {
	tests := []struct {
		name string
		ask  func(context.Context, *guard.Op, payment) (guard.Questions, error)
		want string
	}{
		{"an error", func(context.Context, *guard.Op, payment) (guard.Questions, error) {
			return nil, errors.New("closed today")
		}, "closed today"},
		{"a panic", func(context.Context, *guard.Op, payment) (guard.Questions, error) { panic("secret") }, "Nothing was done"},
		{"no schema", func(context.Context, *guard.Op, payment) (guard.Questions, error) {
			return guard.Questions{"q": {Message: "?"}}, nil
		}, ""},
		{"a link", func(context.Context, *guard.Op, payment) (guard.Questions, error) {
			return guard.Questions{"q": {Mode: "url", URL: "https://example.test", RequestedSchema: json.RawMessage(`{}`)}}, nil
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			server := newServer()
			g := f.guard(f.store, nil)
			guard.AddTool(g, server, payTool(), guard.Ask(tt.ask, guard.Atomic(f.store, pay)))
			g.Install(server)
			cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: elicit(new([]string))})
			res, err := call(cs, "pay", `{"operation_id":"asked","amount":1}`, nil)
			said := fmt.Sprint(err)
			if err == nil {
				said = text(res)
			}
			if err == nil && !res.IsError || !strings.Contains(said, tt.want) || strings.Contains(said, "secret") {
				t.Errorf("the client was told %q", said)
			}
			if got := f.payments("") + f.operations(); got != "" {
				t.Errorf("something is recorded:\n%s", got)
			}
		})
	}
}
