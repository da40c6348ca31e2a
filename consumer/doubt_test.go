package consumer_test

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/consumer"
)

type (
	httpWriter  = http.ResponseWriter
	httpRequest = http.Request
)

// An error says what the attempt did that it answers. It says nothing about the
// attempt before, whose reply was lost.
func TestUnknownIsNotEndedByALaterError(t *testing.T) {
	elsewhere, older := known, known
	elsewhere.Instance, older.Position = "j", 6
	tests := []struct {
		name    string
		then    handler
		verdict mcpreplay.VerdictKind
		settles bool
	}{
		{"a conflict", refuseWith(mcpreplay.ReasonConflict), "refused", false},
		{"expired", refuseWith(mcpreplay.ReasonAuthorityExpired), "refused", false},
		{"fenced", refuseWith(mcpreplay.ReasonFenced), "refused", false},
		{"no such method", answer(nil, &jsonrpc.Error{Code: -32601, Message: "no"}), "not_dispatched", false},
		{"another error", answer(nil, &jsonrpc.Error{Code: 1001, Message: "no"}), "reply", false},
		{"lost again", answer(nil, errors.New("no")), "unknown", false},
		{"a result", answer(&mcp.CallToolResult{}, nil), "result", true},
		{"a result of the same ledger", answer(marked("op-1", "applied", known), nil), "result", true},
		{"a result of another ledger", answer(marked("op-1", "applied", elsewhere), nil), "result", false},
		{"a result of an older ledger", answer(marked("op-1", "applied", older), nil), "result", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := func(effects *atomic.Int64) *mcp.Server { return newServer(effects, tt.then, nil) }
			overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, _ *atomic.Int64) {
				in := intent()
				in.Ledger = &known
				out := consumer.New(&consumer.Options{Journal: &spy{doubt: true}}).Call(t.Context(), open(newClient(nil)), in)
				if out.Verdict.Kind != tt.verdict {
					t.Errorf("verdict = %+v, want %q", out.Verdict, tt.verdict)
				}
				if tt.settles {
					if out.Kind != consumer.KindVerdict || out.Result == nil {
						t.Errorf("outcome = %+v, want a result", out)
					}
					return
				}
				checkUnknown(t, out)
			})
		})
	}
}

func TestMemoryJournalDoubt(t *testing.T) {
	ctx := t.Context()
	verdict := func(kind mcpreplay.VerdictKind) func(*consumer.MemoryJournal) {
		return func(j *consumer.MemoryJournal) {
			if err := j.Received(ctx, scope, mcpreplay.Verdict{Kind: kind}, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	send := func(j *consumer.MemoryJournal) {
		if _, err := j.Sending(ctx, scope, []byte(`{"name":"effect","arguments":{}}`)); err != nil {
			t.Fatal(err)
		}
	}
	settle := func(j *consumer.MemoryJournal) {
		if err := j.Settled(ctx, scope, mcpreplay.StateApplied, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	type steps []func(*consumer.MemoryJournal)
	for _, tt := range []struct {
		name  string
		steps steps
		want  bool
	}{
		{"nothing", nil, false},
		{"sent", steps{send}, true},
		{"refused", steps{send, verdict("refused")}, false},
		{"not dispatched", steps{send, verdict("not_dispatched")}, false},
		{"asked", steps{send, verdict("input_required")}, false},
		{"answered", steps{send, verdict("input_required"), send}, true},
		{"an error", steps{send, verdict("reply")}, true},
		{"lost", steps{send, verdict("unknown")}, true},
		{"lost, then refused", steps{send, verdict("unknown"), send, verdict("refused")}, true},
		{"lost, then asked about in vain", steps{send, verdict("unknown"), verdict("unknown")}, true},
		{"settled", steps{send, verdict("result"), settle}, false},
		{"lost, then settled", steps{send, verdict("unknown"), settle}, false},
		{"two at once, one refused", steps{send, send, verdict("refused")}, true},
		{"settled, then lost", steps{send, verdict("result"), settle, send, verdict("unknown")}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := consumer.NewMemoryJournal()
			for _, step := range tt.steps {
				step(j)
			}
			list, err := j.Unsettled()
			if err != nil || (len(list) == 1) != tt.want {
				t.Errorf("Unsettled() = %v, %v, want doubt %t", list, err, tt.want)
			}
			doubt, err := j.Sending(ctx, scope, []byte(`{}`))
			if err != nil || doubt != tt.want {
				t.Errorf("Sending() = %t, %v, want doubt %t", doubt, err, tt.want)
			}
		})
	}
}

func TestMemoryJournalKeepsTheHighestPosition(t *testing.T) {
	j := consumer.NewMemoryJournal()
	if _, err := j.Sending(t.Context(), scope, []byte(`{"name":"effect"}`)); err != nil {
		t.Fatal(err)
	}
	higher, lower, elsewhere := known, known, known
	higher.Position, lower.Position, elsewhere.Instance = 9, 8, "j"
	for _, l := range []*mcpreplay.LedgerRef{&known, nil, &higher, &lower, &elsewhere} {
		if err := j.Received(t.Context(), scope, mcpreplay.Verdict{Kind: mcpreplay.VerdictUnknown}, nil, l); err != nil {
			t.Fatal(err)
		}
	}
	in, found, err := j.Intent(scope)
	if err != nil || !found || in.Ledger == nil || *in.Ledger != higher {
		t.Errorf("ledger = %+v, %t, %v, want %+v", in.Ledger, found, err, higher)
	}
	if _, found, err := j.Intent(mcpreplay.Scope{}); found || err != nil {
		t.Errorf("Intent() of nothing = %t, %v", found, err)
	}
}
