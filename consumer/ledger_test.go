package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

// The reply is lost after the work was done in one ledger. A server with another
// one, or with an older state of the same, may call the operation what it likes:
// it does not know.
func TestALostReplyIsNotSettledByAnotherLedger(t *testing.T) {
	elsewhere, restored, older, newer := known, known, known, known
	elsewhere.Instance, restored.Incarnation, older.Position, newer.Position = "j", 2, 6, 9
	// How the first server names its ledger before the reply is lost.
	asks := marked("op-1", mcpreplay.StateUnknown, known)
	asks.Content, asks.RequestState = nil, "state-1"
	asks.InputRequests = mcp.InputRequestMap{"sure": &mcp.ElicitParams{Message: "Sure?", RequestedSchema: json.RawMessage(`{"type":"object"}`)}}
	firsts := map[string]func(*atomic.Int64) *mcp.Server{
		"asked before": func(effects *atomic.Int64) *mcp.Server {
			return newServer(effects, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				if req.Params.InputResponses == nil {
					return asks, nil
				}
				return nil, errors.New("lost")
			}, nil)
		},
		"does not know": func(effects *atomic.Int64) *mcp.Server {
			res := notRecorded(known)
			res.StructuredContent = map[string]any{"code": mcpreplay.ReasonUnknown, "operationId": "op-1"}
			return newServer(effects, answer(res, nil), nil)
		},
	}
	status := func(state string, l mcpreplay.LedgerRef) string {
		stored, rest := "null", ""
		switch state {
		case "applied":
			stored = storedResult
		case "not_applied":
			rest = `,"newOperationSafe":true,"nextAction":"start_new_operation"`
		}
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Replace(observation(state, stored, rest), `{"instance":"i","incarnation":1,"position":8}`, string(text), 1)
	}
	seconds := []struct {
		name    string
		ledger  mcpreplay.LedgerRef
		settles bool
	}{
		{"another ledger", elsewhere, false},
		{"a restored ledger", restored, false},
		{"an older state", older, false},
		{"the same ledger", known, true},
		{"a newer state", newer, true},
	}
	for first, server := range firsts {
		for _, second := range seconds {
			for _, state := range []string{"applied", "not_applied"} {
				t.Run(first+"/"+second.name+"/"+state, func(t *testing.T) {
					overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, _ *atomic.Int64) {
						journal := consumer.NewMemoryJournal()
						c := consumer.New(&consumer.Options{Journal: journal})
						// The caller keeps the intent that he called with, which knows no ledger.
						checkUnknown(t, c.Call(t.Context(), open(newClient(&mcp.ClientOptions{ElicitationHandler: yes})), intent()))
						if k, err := journal.Known(t.Context(), scope); err != nil || !k.Doubt || k.Ledger == nil || *k.Ledger != known {
							t.Fatalf("Known() = %+v, %v, want a doubt in %+v", k, err, known)
						}
						var effects atomic.Int64
						later := connectMemory(t, newClient(nil), newServer(&effects,
							answer(marked("op-1", mcpreplay.State(state), second.ledger), nil), telling(status(state, second.ledger))))
						out, err := c.Reconcile(t.Context(), later, intent())
						var oe *mcpreplay.ObservationError
						switch {
						case second.settles && (err != nil || out.Kind != consumer.KindObserved || string(out.Effect) != state):
							t.Errorf("Reconcile() = %+v, %v, want %s", out, err, state)
						case !second.settles && (!errors.As(err, &oe) || oe.Rule != "ledger_changed"):
							t.Errorf("Reconcile() = %+v, %v, want ledger_changed", out, err)
						case !second.settles:
							checkUnknown(t, out)
							checkUnknown(t, c.Call(t.Context(), later, intent()))
						}
						want := 1
						if second.settles {
							want = 0
						}
						if list, err := journal.Unsettled(); err != nil || len(list) != want {
							t.Errorf("in doubt: %+v, %v, want %d", list, err, want)
						}
					})
				})
			}
		}
	}
}

// What the caller knows of the ledger outlives him in the journal.
func TestTheJournalKeepsTheLedgerOfTheIntent(t *testing.T) {
	var effects atomic.Int64
	journal := consumer.NewMemoryJournal()
	in := intent()
	in.Ledger = &known
	session := connectMemory(t, newClient(nil), newServer(&effects, answer(nil, errors.New("lost")), nil))
	checkUnknown(t, consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), session, in))
	list, err := journal.Unsettled()
	if err != nil || len(list) != 1 || list[0].Ledger == nil || *list[0].Ledger != known {
		t.Errorf("in doubt: %+v, %v, want it in %+v", list, err, known)
	}
}
