package consumer_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
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
	type test struct {
		name    string
		then    handler
		verdict mcpreplay.VerdictKind
		known   string // to whom the ledger is known
		settles bool
	}
	tests := []test{
		{"a conflict", refuseWith(mcpreplay.ReasonConflict), "refused", "", false},
		{"expired", refuseWith(mcpreplay.ReasonAuthorityExpired), "refused", "", false},
		{"fenced", refuseWith(mcpreplay.ReasonFenced), "refused", "", false},
		{"no such method", answer(nil, &jsonrpc.Error{Code: -32601, Message: "no"}), "not_dispatched", "", false},
		{"another error", answer(nil, &jsonrpc.Error{Code: 1001, Message: "no"}), "reply", "", false},
		{"lost again", answer(nil, errors.New("no")), "unknown", "", false},
		{"a result", answer(&mcp.CallToolResult{}, nil), "result", "", true},
		{"a result of some ledger", answer(marked("op-1", "applied", known), nil), "result", "", true},
		{"a result that left no record", answer(notRecorded(known), nil), "result", "", false},
		{"a result that left no record in the ledger known", answer(notRecorded(known), nil), "result", "journal", false},
	}
	for _, who := range []string{"caller", "journal"} {
		tests = append(tests, []test{
			{"a result of any ledger", answer(&mcp.CallToolResult{}, nil), "result", who, false},
			{"a result of the same ledger", answer(marked("op-1", "applied", known), nil), "result", who, true},
			{"a result of another ledger", answer(marked("op-1", "applied", elsewhere), nil), "result", who, false},
			{"a result of an older ledger", answer(marked("op-1", "applied", older), nil), "result", who, false},
		}...)
	}
	for _, tt := range tests {
		t.Run(strings.TrimSpace(tt.name+" "+tt.known), func(t *testing.T) {
			server := func(effects *atomic.Int64) *mcp.Server { return newServer(effects, tt.then, nil) }
			overBoth(t, server, func(t *testing.T, open func(*mcp.Client) *consumer.Session, _ *atomic.Int64) {
				in, journal := intent(), &spy{known: consumer.Known{Doubt: true}}
				switch tt.known {
				case "caller":
					in.Ledger = &known
				case "journal":
					journal.known.Ledger = &known
				}
				out := consumer.New(&consumer.Options{Journal: journal}).Call(t.Context(), open(newClient(nil)), in)
				if got := slices.ContainsFunc(journal.told, func(s string) bool { return strings.HasPrefix(s, "settled") }); got != tt.settles {
					t.Errorf("the journal was told %q, want settled %t", journal.told, tt.settles)
				}
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
		if _, err := j.Sending(ctx, scope, []byte(`{"name":"effect","arguments":{}}`), nil); err != nil {
			t.Fatal(err)
		}
	}
	settle := func(j *consumer.MemoryJournal) {
		if err := j.Settled(ctx, scope, mcpreplay.StateApplied, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	observe := func(j *consumer.MemoryJournal) {
		if err := j.Observed(ctx, scope, nil, nil); err != nil {
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
		{"lost, then asked about in vain", steps{send, verdict("unknown"), observe}, true},
		{"asked about while it is under way", steps{send, observe}, true},
		{"two at once, one refused, asked about in vain", steps{send, send, observe, verdict("refused")}, true},
		{"refused after it was asked about in vain", steps{send, observe, verdict("refused")}, false},
		{"settled", steps{send, verdict("result"), settle}, false},
		{"lost, then settled", steps{send, verdict("unknown"), settle}, false},
		{"two at once, one refused", steps{send, send, verdict("refused")}, true},
		{"settled, then sent", steps{send, verdict("result"), settle, send}, true},
		{"settled, then lost", steps{send, verdict("result"), settle, send, verdict("unknown")}, true},
		{"settled while it is under way", steps{send, settle}, true},
		{"settled while it is under way, then refused", steps{send, settle, verdict("refused")}, false},
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
			if k, err := j.Known(ctx, scope); err != nil || k.Doubt != tt.want {
				t.Errorf("Known() = %+v, %v, want doubt %t", k, err, tt.want)
			}
			if k, err := j.Sending(ctx, scope, []byte(`{}`), nil); err != nil || k.Doubt != tt.want {
				t.Errorf("Sending() = %+v, %v, want doubt %t", k, err, tt.want)
			}
		})
	}
}

func TestMemoryJournalKeepsTheHighestPosition(t *testing.T) {
	ctx, j := t.Context(), consumer.NewMemoryJournal()
	higher, lower, elsewhere := known, known, known
	higher.Position, lower.Position, elsewhere.Instance = 9, 8, "j"
	steps := []struct {
		name string
		tell func(*mcpreplay.LedgerRef) error
		says *mcpreplay.LedgerRef
		want *mcpreplay.LedgerRef
	}{
		{"sending", func(l *mcpreplay.LedgerRef) error {
			_, err := j.Sending(ctx, scope, []byte(`{"name":"effect"}`), l)
			return err
		}, &known, &known},
		{"received", func(l *mcpreplay.LedgerRef) error {
			return j.Received(ctx, scope, mcpreplay.Verdict{Kind: mcpreplay.VerdictUnknown}, nil, l)
		}, &lower, &lower},
		{"observed nothing", func(l *mcpreplay.LedgerRef) error { return j.Observed(ctx, scope, nil, l) }, nil, &lower},
		{"observed", func(l *mcpreplay.LedgerRef) error { return j.Observed(ctx, scope, nil, l) }, &higher, &higher},
		{"observed an older one", func(l *mcpreplay.LedgerRef) error { return j.Observed(ctx, scope, nil, l) }, &lower, &higher},
		{"settled by another", func(l *mcpreplay.LedgerRef) error {
			return j.Settled(ctx, scope, mcpreplay.StateApplied, nil, l)
		}, &elsewhere, &higher},
	}
	for _, step := range steps {
		if err := step.tell(step.says); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		k, err := j.Known(ctx, scope)
		if err != nil || k.Ledger == nil || *k.Ledger != *step.want {
			t.Errorf("%s: Known() = %+v, %v, want %+v", step.name, k.Ledger, err, step.want)
		}
	}
	in, found, err := j.Intent(scope)
	if err != nil || !found || in.Ledger == nil || *in.Ledger != higher {
		t.Errorf("ledger = %+v, %t, %v, want %+v", in.Ledger, found, err, higher)
	}
	if _, found, err := j.Intent(mcpreplay.Scope{}); found || err != nil {
		t.Errorf("Intent() of nothing = %t, %v", found, err)
	}
	if k, err := j.Known(ctx, mcpreplay.Scope{}); k != (consumer.Known{}) || err != nil {
		t.Errorf("Known() of nothing = %+v, %v", k, err)
	}
}

// The same id may be sent again after an attempt that left no record. What becomes
// of the repeat is not known before somebody says it.
func TestALostReplyIsNotForgottenAfterAResultThatLeftNoRecord(t *testing.T) {
	replies := []struct {
		name  string
		then  handler
		kind  consumer.Kind
		doubt int
	}{
		{"not recorded", answer(notRecorded(known), nil), consumer.KindVerdict, 0},
		{"lost", answer(nil, errors.New("lost")), consumer.KindUnknown, 1},
		{"not recorded after a loss", answer(notRecorded(known), nil), consumer.KindUnknown, 1},
		{"expired", refuseWith(mcpreplay.ReasonAuthorityExpired), consumer.KindUnknown, 1},
		{"applied", answer(marked("op-1", mcpreplay.StateApplied, known), nil), consumer.KindVerdict, 0},
		{"lost after it was settled", answer(nil, errors.New("lost")), consumer.KindUnknown, 1},
	}
	var effects atomic.Int64
	server := newServer(&effects, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return replies[effects.Load()-1].then(ctx, req)
	}, nil)
	journal := consumer.NewMemoryJournal()
	c, session := consumer.New(&consumer.Options{Journal: journal}), connectMemory(t, newClient(nil), server)
	for _, r := range replies {
		out := c.Call(t.Context(), session, intent())
		if out.Kind != r.kind {
			t.Errorf("%s: outcome = %+v, want %q", r.name, out, r.kind)
		}
		if list, err := journal.Unsettled(); err != nil || len(list) != r.doubt {
			t.Errorf("%s: in doubt: %v, %v, want %d", r.name, list, err, r.doubt)
		}
	}
}
