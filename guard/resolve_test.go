package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"
)

const paidByHand = `{"content":[{"type":"text","text":"paid by hand"}],"structuredContent":{"operation":"op-1","paid":"1"}}`

// orphan puts an operation in progress whose owner is gone, with an effect that
// may happen until after the deadline.
func (f *fixture) orphan(id string, deadline time.Duration) mcpreplay.Record {
	f.t.Helper()
	rec := f.claim(id, `{"amount":1}`, 0)
	rec, err := f.store.Advance(context.Background(), mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Deadline: deadline,
		Event: mcpreplay.Event{Kind: mcpreplay.EventDoubt, Actor: rec.Owner, Evidence: "connection reset"}})
	if err != nil {
		f.t.Fatal(err)
	}
	return rec
}

func resolution(id string, to mcpreplay.State, result string) guard.Resolution {
	r := guard.Resolution{Key: mcpreplay.Key{Principal: "alice", ID: id}, Outcome: to, Actor: "olga", Reason: "seen in the bank's list"}
	if result != "" {
		r.Result = []byte(result)
	}
	return r
}

func resolve(f *fixture, r guard.Resolution) (mcpreplay.Record, bool, guard.ResolveReason) {
	f.t.Helper()
	rec, changed, err := guard.Resolve(context.Background(), f.store, r)
	var refused *guard.ResolveError
	if err != nil && !errors.As(err, &refused) {
		f.t.Fatal(err)
	}
	if refused == nil {
		return rec, changed, ""
	}
	return rec, changed, refused.Reason
}

// What a person found out becomes what status tells and what a repeat is given;
// the reason stays in the history.
func TestResolvedOperationsAreToldAndReplayed(t *testing.T) {
	for _, tt := range []struct {
		to     mcpreplay.State
		result string
		text   string
		isErr  bool
	}{
		{mcpreplay.StateApplied, paidByHand, "paid by hand", false},
		{mcpreplay.StateApplied, `{"content":[],"isError":true}`, "", true},
		{mcpreplay.StatePartial, paidByHand, "paid by hand", false},
		{mcpreplay.StatePartial, "", "The operator olga settled operation op-1: a part of it was done", true},
		{mcpreplay.StateNotApplied, "", "The operator olga settled operation op-1: it was not done", true},
	} {
		t.Run(string(tt.to), func(t *testing.T) {
			f := newFixture(t)
			server := newServer()
			g := f.guard(f.store, nil)
			guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
			g.Install(server)
			cs := connect(t, server, nil)
			f.orphan("op-1", time.Second)
			f.clock.Add(100)
			if rec, changed, refused := resolve(f, resolution("op-1", tt.to, tt.result)); !changed || refused != "" || rec.State != tt.to {
				t.Fatalf("resolved: %v, %q, %s", changed, refused, rec.State)
			}
			obs := status(t, cs, "op-1")
			if obs.State != tt.to || obs.ResultIsError && !tt.isErr || obs.NewOperationSafe != (tt.to == mcpreplay.StateNotApplied) {
				t.Errorf("status tells %+v", obs)
			}
			res := mustCall(t, cs, "pay", `{"operation_id":"op-1","amount":1}`)
			if !replayed(res) || res.IsError != tt.isErr || !strings.HasPrefix(text(res), tt.text) || strings.Contains(text(res), "bank") {
				t.Errorf("the repeat got %q, isError %v", text(res), res.IsError)
			}
			if got := f.payments(""); got != "" {
				t.Errorf("somebody did the work: %q", got)
			}
			events, err := f.store.Events(context.Background(), mcpreplay.Key{Principal: "alice", ID: "op-1"})
			if err != nil {
				t.Fatal(err)
			}
			last := events[len(events)-1]
			if last.Kind != mcpreplay.EventSettle || last.Actor != "olga" || last.Evidence != "seen in the bank's list" {
				t.Errorf("its last event is %+v", last)
			}
			// Once more is no change; anything else is a conflict.
			if _, changed, refused := resolve(f, resolution("op-1", tt.to, tt.result)); changed || refused != "" {
				t.Errorf("once more: %v, %q", changed, refused)
			}
			other := resolution("op-1", mcpreplay.StateApplied, `{"content":[{"type":"text","text":"other"}]}`)
			if _, changed, refused := resolve(f, other); changed || refused != guard.ResolveSettled {
				t.Errorf("otherwise: %v, %q", changed, refused)
			}
		})
	}
}

// A resolution that the record does not permit changes nothing.
func TestResolveRefuses(t *testing.T) {
	f := newFixture(t)
	f.claim("live", `{"amount":1}`, time.Hour)
	f.claim("endless", `{"amount":2}`, 0)
	f.orphan("orphan", time.Minute)
	released := f.claim("released", `{"amount":4}`, 0)
	if _, err := f.store.Advance(context.Background(), mcpreplay.Change{Key: released.Key, Revision: released.Revision, To: mcpreplay.StateReleased,
		Event: mcpreplay.Event{Kind: mcpreplay.EventRelease, Actor: "other"}}); err != nil {
		t.Fatal(err)
	}
	foreign := resolution("orphan", mcpreplay.StateApplied, paidByHand)
	foreign.Key.Principal = "bob"
	big := resolution("orphan", mcpreplay.StateApplied, paidByHand)
	big.MaxResult = 20
	marked := `{"content":[],"_meta":{"mcpreplay/operation":{}}}`
	before := f.operations()
	for name, tt := range map[string]struct {
		r    guard.Resolution
		want guard.ResolveReason
	}{
		"no record":            {resolution("absent", mcpreplay.StateApplied, paidByHand), guard.ResolveAbsent},
		"another principal":    {foreign, guard.ResolveAbsent},
		"a live owner":         {resolution("live", mcpreplay.StateApplied, paidByHand), guard.ResolveLive},
		"released":             {resolution("released", mcpreplay.StateApplied, paidByHand), guard.ResolveUnclaimed},
		"not yet over":         {resolution("orphan", mcpreplay.StateNotApplied, ""), guard.ResolveEarly},
		"a part, not yet over": {resolution("orphan", mcpreplay.StatePartial, ""), guard.ResolveEarly},
		"never over":           {resolution("endless", mcpreplay.StateNotApplied, ""), guard.ResolveEarly},
		"no JSON":              {resolution("orphan", mcpreplay.StateApplied, `{"content":[`), guard.ResolveResult},
		"members twice":        {resolution("orphan", mcpreplay.StateApplied, `{"content":[],"content":[]}`), guard.ResolveResult},
		"no content":           {resolution("orphan", mcpreplay.StateApplied, `{"text":"paid"}`), guard.ResolveResult},
		"a question":           {resolution("orphan", mcpreplay.StateApplied, `{"resultType":"input_required","inputRequests":{}}`), guard.ResolveResult},
		"a block of no type":   {resolution("orphan", mcpreplay.StateApplied, `{"content":[{"text":"paid"}]}`), guard.ResolveResult},
		"a mark of its own":    {resolution("orphan", mcpreplay.StateApplied, marked), guard.ResolveResult},
		"too large":            {big, guard.ResolveResult},
	} {
		if _, changed, refused := resolve(f, tt.r); changed || refused != tt.want {
			t.Errorf("%s: changed %v, refused as %q, want %q", name, changed, refused, tt.want)
		}
	}
	if after := f.operations(); after != before {
		t.Errorf("the ledger changed:\n%s%s", before, after)
	}
	// The deadline alone is not enough: a clock may be behind by the skew.
	f.clock.Add(60 + 59)
	var early *guard.ResolveError
	if _, _, err := guard.Resolve(t.Context(), f.store, resolution("orphan", mcpreplay.StateNotApplied, "")); !errors.As(err, &early) || early.Wait != time.Second {
		t.Errorf("a second before: %v", err)
	}
	f.clock.Add(1)
	if _, changed, refused := resolve(f, resolution("orphan", mcpreplay.StateNotApplied, "")); !changed {
		t.Errorf("after the deadline and the skew: refused as %q", refused)
	}
	over := resolution("endless", mcpreplay.StateNotApplied, "")
	over.EffectOver = true
	rec, changed, refused := resolve(f, over)
	if !changed {
		t.Errorf("vouched for: refused as %q", refused)
	}
	events, err := f.store.Events(t.Context(), rec.Key)
	if err != nil || !strings.HasPrefix(events[len(events)-1].Evidence, "the operator vouches that the effect is over: ") {
		t.Errorf("the history says %+v, %v", events, err)
	}
}

func TestResolutionsAreValidated(t *testing.T) {
	for name, change := range map[string]func(*guard.Resolution){
		"no id":              func(r *guard.Resolution) { r.Key.ID = "" },
		"no principal":       func(r *guard.Resolution) { r.Key.Principal = "" },
		"nobody":             func(r *guard.Resolution) { r.Actor = "" },
		"no reason":          func(r *guard.Resolution) { r.Reason = " " },
		"a long reason":      func(r *guard.Resolution) { r.Reason = strings.Repeat("x", guard.MaxReason+1) },
		"no outcome":         func(r *guard.Resolution) { r.Outcome = mcpreplay.StateUnknown },
		"no result":          func(r *guard.Resolution) { r.Result = nil },
		"a result of nought": func(r *guard.Resolution) { r.Outcome = mcpreplay.StateNotApplied },
		"over and applied":   func(r *guard.Resolution) { r.EffectOver = true },
	} {
		r := resolution("op-1", mcpreplay.StateApplied, paidByHand)
		change(&r)
		if r.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// What the history knows to be done is not "not applied", unless it was undone.
func TestResolveHeedsSteps(t *testing.T) {
	f := newFixture(t)
	rec := f.claim("op-steps", `{"amount":1}`, 0)
	r := resolution("op-steps", mcpreplay.StateNotApplied, "")
	r.EffectOver = true
	for _, kind := range []mcpreplay.EventKind{mcpreplay.EventStep, mcpreplay.EventCompensation} {
		var err error
		rec, err = f.store.Advance(t.Context(), mcpreplay.Change{Key: rec.Key, Revision: rec.Revision,
			Event: mcpreplay.Event{Kind: kind, Step: "charge", Outcome: mcpreplay.OutcomeSucceeded, Actor: "other"}})
		if err != nil {
			t.Fatal(err)
		}
		_, changed, refused := resolve(f, r)
		if kind == mcpreplay.EventStep && refused != guard.ResolveDone || kind == mcpreplay.EventCompensation && !changed {
			t.Errorf("after a %s: changed %v, refused as %q", kind, changed, refused)
		}
	}
}

// Of two operators one settles, and the other is told how.
func TestOperatorsSettleOnce(t *testing.T) {
	f := newFixture(t)
	const operators = 8
	for i := range 10 {
		id := fmt.Sprintf("op-race-%d", i)
		f.claim(id, `{"amount":1}`, 0)
		var wg sync.WaitGroup
		var mu sync.Mutex
		changed, refused := 0, 0
		for n := range operators {
			wg.Go(func() {
				body, _ := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": fmt.Sprint(n % 2)}}})
				r := resolution(id, mcpreplay.StateApplied, string(body))
				_, did, err := guard.Resolve(context.Background(), f.store, r)
				mu.Lock()
				defer mu.Unlock()
				var re *guard.ResolveError
				switch {
				case err == nil && did:
					changed++
				case errors.As(err, &re) && re.Reason == guard.ResolveSettled:
					refused++
				case err != nil:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if changed != 1 || refused != operators/2 {
			t.Errorf("%d of %d operators settled it, %d were refused", changed, operators, refused)
		}
	}
}

// unsure is a ledger whose commits are not confirmed, whether they came about or not.
type unsure struct {
	*sqlite.Store
	commit bool
}

func (s unsure) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	if s.commit {
		if rec, err := s.Store.Advance(ctx, c); err != nil {
			return rec, err
		}
	}
	return mcpreplay.Record{}, fmt.Errorf("%w: the disk failed", mcpreplay.ErrUnknown)
}

func TestAnUnconfirmedResolutionIsUnknown(t *testing.T) {
	f := newFixture(t)
	for _, commit := range []bool{false, true} {
		id := fmt.Sprintf("op-unsure-%t", commit)
		f.claim(id, `{"amount":1}`, 0)
		_, changed, err := guard.Resolve(t.Context(), unsure{f.store, commit}, resolution(id, mcpreplay.StateApplied, paidByHand))
		if changed || !errors.Is(err, mcpreplay.ErrUnknown) {
			t.Errorf("commit %t: changed %v, %v", commit, changed, err)
		}
		if _, changed, refused := resolve(f, resolution(id, mcpreplay.StateApplied, paidByHand)); changed == commit || refused != "" {
			t.Errorf("commit %t, again: changed %v, refused %q", commit, changed, refused)
		}
	}
}
