package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type finding = guard.Finding[receipt]

// lost is an external effect whose reply is always lost, after it did what it does.
func lost(o *outside) guard.Effect[payment, receipt] {
	return guard.External(func(_ context.Context, op *guard.Op, _ payment) (receipt, error) {
		o.do(op.ID)
		return receipt{}, errors.New("connection reset")
	})
}

// later lets the ledger's time pass beyond anything that may still be running.
func (f *fixture) later() { f.clock.Add(120) }

func TestReconcilersSettleWhatNobodyKnew(t *testing.T) {
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	for _, tt := range []struct {
		name    string
		ask     func(op *guard.Op, in payment) (finding, error)
		state   mcpreplay.State // at once
		settled mcpreplay.State // after the effect can no longer be running
		history string
	}{
		{"found", func(op *guard.Op, in payment) (finding, error) {
			return guard.Found(receipt{Operation: op.ID, Paid: in.Amount.String()}, "charge 7"), nil
		}, "applied", "applied", "claim doubt reconcile:attempted settle"},
		{"absent", func(*guard.Op, payment) (finding, error) { return guard.Absent[receipt]("no charge"), nil },
			"unknown", "not_applied", "claim doubt reconcile:attempted reconcile:failed reconcile:attempted settle"},
		{"fenced", func(*guard.Op, payment) (finding, error) { return guard.Fenced[receipt]("cancelled there"), nil },
			"not_applied", "not_applied", "claim doubt reconcile:attempted settle"},
		{"undecided", func(*guard.Op, payment) (finding, error) { return guard.Undecided[receipt]("not indexed yet"), nil },
			"unknown", "unknown", "claim doubt reconcile:attempted reconcile:failed reconcile:attempted reconcile:failed"},
		{"an error", func(*guard.Op, payment) (finding, error) { return finding{}, errors.New("503") },
			"unknown", "unknown", "claim doubt reconcile:attempted reconcile:failed reconcile:attempted reconcile:failed"},
		{"a panic", func(*guard.Op, payment) (finding, error) { panic("boom") },
			"unknown", "unknown", "claim doubt reconcile:attempted reconcile:failed reconcile:attempted reconcile:failed"},
		{"a hang", func(*guard.Op, payment) (finding, error) { <-forever; return finding{}, nil },
			"unknown", "unknown", "claim doubt reconcile:attempted reconcile:failed reconcile:attempted reconcile:failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var o outside
			cs, _ := f.external(guard.Reconcile(func(_ context.Context, op *guard.Op, in payment) (finding, error) { return tt.ask(op, in) }, lost(&o)),
				func(o *guard.Options) { o.ReconcileTimeout = 300 * time.Millisecond })
			if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`); !isUnknown(res) {
				t.Errorf("the first reply: %s", text(res))
			}
			if got := observed(t, cs, "pay-1"); got.State != tt.state {
				t.Errorf("status: %s, %s", got.State, got.Detail)
			}
			if got := observed(t, cs, "pay-1"); got.State != tt.state { // too early to ask again
				t.Errorf("status again: %s, %s", got.State, got.Detail)
			}
			f.later()
			res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`)
			if isUnknown(res) != (tt.settled == "unknown") || replayed(res) != (tt.settled != "unknown") {
				t.Errorf("sent again: %s", text(res))
			}
			if got := observed(t, cs, "pay-1"); got.State != tt.settled {
				t.Errorf("status in the end: %s, %s", got.State, got.Detail)
			}
			if got := f.history(); got != tt.history {
				t.Errorf("history: %s\nwant:    %s", got, tt.history)
			}
			if n := o.count("pay-1"); n != 1 {
				t.Errorf("the effect ran %d times", n)
			}
		})
	}
}

// Who was asked again and again while the effect could be running is asked at once
// when it cannot be any more, and not as late as the pauses have become by then.
func TestWhatWasAbsentIsSettledAsSoonAsItCanBe(t *testing.T) {
	f := newFixture(t)
	var o outside
	cs, _ := f.external(guard.Reconcile(func(context.Context, *guard.Op, payment) (finding, error) {
		return guard.Absent[receipt]("no charge"), nil
	}, lost(&o)), nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`)
	asked := 0
	for second := range 60 {
		state := observed(t, cs, "pay-1").State
		if state == mcpreplay.StateNotApplied {
			// 20 s of its own, 2 s of grace, a lease of 1 s, and 5 s for the clocks.
			if asked = strings.Count(f.history(), "attempted"); second > 29 || asked > 7 {
				t.Errorf("settled in second %d, asked %d times", second, asked)
			}
			return
		}
		f.clock.Add(1)
	}
	t.Error("it is never settled")
}

// A reconciler runs in another process than the effect did, and has what it needs.
func TestAReconcilerHasWhatTheLedgerKept(t *testing.T) {
	f := newFixture(t)
	var o outside
	var got string
	questions := func(context.Context, *guard.Op, payment) (guard.Questions, error) {
		return guard.Questions{"why": {Message: "Why?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"why":{"type":"string"}},"required":["why"]}`)}}, nil
	}
	effect := guard.Ask(questions, guard.Reconcile(func(_ context.Context, op *guard.Op, in payment) (finding, error) {
		var a struct{ Why string }
		err := op.Answer("why", &a)
		got = fmt.Sprint(op.ID, " ", op.Principal, " ", in.Amount, " ", a.Why, " ", op.Attempt, " ", len(op.IdempotencyKey()), " ", err)
		op.Effect("charge/9")
		return guard.Found(receipt{Operation: op.ID, Paid: in.Amount.String()}, "charge 9"), nil
	}, lost(&o)))
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), effect)
	cs := connect(t, server, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"why": "rent"}}, nil
	}})
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":9007199254740993}`)

	_, g := f.external(effect, nil)
	var told []string
	r, err := g.Recover(t.Context(), func(rec mcpreplay.Record) { told = append(told, rec.ID+" "+string(rec.State)) })
	if err != nil || r != (guard.Recovery{Looked: 1, Settled: 1}) || fmt.Sprint(told) != "[pay-1 applied]" {
		t.Errorf("Recover() = %+v, %v, told %v", r, err, told)
	}
	if want := "pay-1 alice 9007199254740993 rent 1 64 <nil>"; got != want {
		t.Errorf("the reconciler had %q, want %q", got, want)
	}
	if got := f.row("state, effect, memo IS NULL"); got != "applied | charge/9 | 1" {
		t.Errorf("recorded %q", got)
	}
}

func TestAReconcilerIsNeverAskedTwiceAtOnce(t *testing.T) {
	f := newFixture(t)
	var o outside
	var now, most, asked atomic.Int64
	effect := guard.Reconcile(func(_ context.Context, op *guard.Op, in payment) (finding, error) {
		asked.Add(1)
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		time.Sleep(200 * time.Millisecond)
		r, err := paid(op, in)
		return guard.Found(r, "charge"), err
	}, lost(&o))
	cs, _ := f.external(effect, nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`)
	var wg sync.WaitGroup
	for range 3 {
		cs, g := f.external(effect, nil)
		for range 4 {
			wg.Go(func() { observed(t, cs, "pay-1") })
			wg.Go(func() {
				if _, err := g.Recover(context.Background(), nil); err != nil {
					t.Errorf("Recover(): %v", err)
				}
			})
			wg.Go(func() {
				if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`); !replayed(res) { // waits for who asks
					t.Errorf("sent again: %s", text(res))
				}
			})
		}
	}
	wg.Wait()
	if most.Load() != 1 || asked.Load() != 1 {
		t.Errorf("asked %d times, %d at once", asked.Load(), most.Load())
	}
}

// A process that dies while it asks leaves a lease that ends, and the next one asks.
func TestAReconcilerThatDiesIsReplaced(t *testing.T) {
	f := newFixture(t)
	var o outside
	effect := guard.Reconcile(func(_ context.Context, op *guard.Op, in payment) (finding, error) {
		r, err := paid(op, in)
		return guard.Found(r, "charge"), err
	}, lost(&o))
	cs, _ := f.external(effect, nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`)
	rec, err := f.store.Get(t.Context(), mcpreplay.Key{Principal: "alice", ID: "pay-1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.store.Advance(t.Context(), mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Owner: "the dead", Lease: 300 * time.Millisecond,
		Event: mcpreplay.Event{Kind: mcpreplay.EventReconcile, Outcome: mcpreplay.OutcomeAttempted, Actor: "the dead"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := observed(t, cs, "pay-1"); got.State != "unknown" {
		t.Errorf("while it lives: %s", got.State)
	}
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`); !replayed(res) {
		t.Errorf("sent again: %s", text(res))
	}
}

// sleeper is a store that its owner cannot reach for as long as he sleeps.
type sleeper struct {
	mcpreplay.Store
	mu     sync.Mutex
	asleep bool
}

func (s *sleeper) sleep(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = yes
}

func (s *sleeper) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	s.mu.Lock()
	asleep := s.asleep
	s.mu.Unlock()
	if asleep {
		return mcpreplay.Record{}, fmt.Errorf("asleep: %w", mcpreplay.ErrUnavailable)
	}
	return s.Store.Advance(ctx, c)
}

// An owner that sleeps beyond his lease wakes up to a record that was settled without
// him. What he knows is told beside it: as a confirmation, or as a contradiction, after
// which nobody is told that anything is certain.
func TestAnOwnerThatWakesUpLate(t *testing.T) {
	for _, tt := range []struct {
		name    string
		found   func(op *guard.Op, in payment) (finding, error)
		ends    error
		last    string
		state   mcpreplay.State // that status tells in the end
		unknown bool            // the late caller is told
	}{
		{"applied, and it is", func(op *guard.Op, in payment) (finding, error) {
			r, err := paid(op, in)
			return guard.Found(r, "charge"), err
		}, nil, "confirmation", "applied", false},
		{"not applied, and it is", func(*guard.Op, payment) (finding, error) { return guard.Fenced[receipt]("cancelled"), nil }, nil, "contradiction", "unknown", true},
		{"applied, and it is not", func(op *guard.Op, in payment) (finding, error) {
			r, err := paid(op, in)
			return guard.Found(r, "charge"), err
		}, guard.NotApplied(errors.New("declined")), "contradiction", "unknown", true},
		{"not applied, and it is not", func(*guard.Op, payment) (finding, error) { return guard.Fenced[receipt]("cancelled"), nil },
			guard.TryAgain(errors.New("busy")), "confirmation", "not_applied", false},
		{"applied, and he does not know", func(op *guard.Op, in payment) (finding, error) {
			r, err := paid(op, in)
			return guard.Found(r, "charge"), err
		}, errors.New("reset"), "settle", "applied", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			running, release := make(chan struct{}), make(chan struct{})
			effect := guard.Reconcile(func(_ context.Context, op *guard.Op, in payment) (finding, error) { return tt.found(op, in) },
				guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
					close(running)
					<-release
					if tt.ends != nil {
						return receipt{}, tt.ends
					}
					return paid(op, in)
				}))
			store := &sleeper{Store: f.store}
			owner, _ := f.externalOver(store, effect, nil)
			other, _ := f.external(effect, nil)
			ended := make(chan *mcp.CallToolResult, 1)
			go func() {
				res, err := call(owner, "pay", `{"operation_id":"pay-1","amount":5}`, nil)
				if err != nil {
					t.Error(err)
				}
				ended <- res
			}()
			<-running
			if got := observed(t, other, "pay-1"); got.State != "unknown" || !strings.Contains(got.Detail, "live owner") {
				t.Errorf("while he is awake: %s, %s", got.State, got.Detail)
			}
			store.sleep(true)
			eventually(t, "the settlement", func() bool { return observed(t, other, "pay-1").State != "unknown" })
			store.sleep(false)
			close(release)
			res := <-ended
			if isUnknown(res) != tt.unknown {
				t.Errorf("he tells his caller %s", text(res))
			}
			if got := observed(t, other, "pay-1"); got.State != tt.state {
				t.Errorf("in the end: %s, %s", got.State, got.Detail)
			}
			if tt.last == "contradiction" {
				if res := mustCall(t, other, "pay", `{"operation_id":"pay-1","amount":5}`); !isUnknown(res) {
					t.Errorf("sent again: %s", text(res))
				}
				report, err := mcpreplay.Verify(t.Context(), f.store)
				if err != nil || len(report.Findings) != 1 || report.Findings[0].Rule != mcpreplay.RuleContradiction {
					t.Errorf("verify: %v, %v", report.Findings, err)
				}
				f.disputed = true
			}
			if got := f.history(); !strings.HasSuffix(got, " "+tt.last) {
				t.Errorf("history: %s", got)
			}
		})
	}
}

// An owner who is only slow, and tells before anybody has settled, is believed.
func TestAnOwnerWhoTellsWhileOthersAskIsBelieved(t *testing.T) {
	f := newFixture(t)
	running, release, asking, answer := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	effect := guard.Reconcile(func(context.Context, *guard.Op, payment) (finding, error) {
		close(asking)
		<-answer
		return guard.Fenced[receipt]("a lie"), nil
	}, guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		close(running)
		<-release
		return paid(op, in)
	}))
	store := &sleeper{Store: f.store}
	owner, _ := f.externalOver(store, effect, nil)
	other, _ := f.external(effect, func(o *guard.Options) { o.ReconcileTimeout = 15 * time.Second })
	ended, observing := make(chan *mcp.CallToolResult, 1), make(chan mcpreplay.Observation, 1)
	go func() { ended <- mustCall(t, owner, "pay", `{"operation_id":"pay-1","amount":5}`) }()
	<-running
	store.sleep(true)
	eventually(t, "the lease to end", func() bool {
		rec, err := f.store.Get(t.Context(), mcpreplay.Key{Principal: "alice", ID: "pay-1"})
		return err == nil && !rec.Live
	})
	go func() { observing <- observed(t, other, "pay-1") }()
	<-asking
	store.sleep(false)
	close(release)
	if res := <-ended; res.IsError {
		t.Errorf("the owner tells %s", text(res))
	}
	close(answer)
	if got := <-observing; got.State != "applied" {
		t.Errorf("who asked is told %s", got.State)
	}
	if got := f.history(); got != "claim reconcile:attempted finish" {
		t.Errorf("history: %s", got)
	}
}

// Where it does no harm, an effect whose owner is gone is run again, by one.
func TestAnIdempotentEffectIsTakenOver(t *testing.T) {
	f := newFixture(t)
	var o outside
	effect := guard.Idempotent(guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		o.do(op.ID)
		if op.Attempt == 1 {
			return receipt{}, errors.New("connection reset")
		}
		time.Sleep(100 * time.Millisecond)
		return paid(op, in)
	}))
	cs, _ := f.external(effect, nil)
	if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`); !isUnknown(res) {
		t.Errorf("first: %s", text(res))
	}
	var wg sync.WaitGroup
	for range 8 {
		cs, _ := f.external(effect, nil)
		wg.Go(func() {
			if res := mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":5}`); res.IsError {
				t.Errorf("sent again: %s", text(res))
			}
		})
	}
	wg.Wait()
	if n := o.count("pay-1"); n != 2 {
		t.Errorf("the effect ran %d times, want 2", n)
	}
	if got := f.history(); got != "claim doubt takeover finish" {
		t.Errorf("history: %s", got)
	}
	if got := f.row("attempt"); got != "2" {
		t.Errorf("attempt %s", got)
	}
}
