package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"mcpreplay"
)

func testAdvance(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	_, err := store.Advance(t.Context(), finish(mcpreplay.Record{Operation: operation("op-absent")}, mcpreplay.StateApplied))
	matches(t, "Advance() of nothing", err, mcpreplay.ErrNotFound)

	rec := begin(t, store, operation("op-advance"), claim())
	check := unchanged(t, store, rec.Key)
	for _, revision := range []int64{rec.Revision - 1, rec.Revision + 1} {
		c := finish(rec, mcpreplay.StateApplied)
		c.Revision = revision
		got, err := store.Advance(t.Context(), c)
		matches(t, "Advance()", err, mcpreplay.ErrStale)
		same(t, "Advance()", got, mcpreplay.Record{})
	}
	check()

	c := finish(rec, mcpreplay.StateApplied)
	c.Effect = "issue/8"
	c.Result = &mcpreplay.Result{Body: []byte(`{"isError":true}`), IsError: true}
	got := advance(t, store, c)
	want := rec
	want.State, want.Revision, want.Live, want.Effect = mcpreplay.StateApplied, got.Revision, false, "issue/8"
	want.Result = &mcpreplay.Result{Body: c.Result.Body, IsError: true, Digest: digest(`{"isError":true}`), Size: 16}
	want.Position, want.UpdatedAt, want.Ledger = got.Position, got.UpdatedAt, got.Ledger
	same(t, "Advance()", got, want)
	sameRecord(t, "Get()", get(t, store, rec.Key), got)
	evs := events(t, store, rec.Key)
	same(t, "the last event", evs[len(evs)-1], mcpreplay.Event{
		Position: got.Position, Kind: mcpreplay.EventFinish, State: mcpreplay.StateApplied, Revision: got.Revision,
		Actor: "owner-1", At: got.UpdatedAt,
	})
	_, err = store.Advance(t.Context(), finish(rec, mcpreplay.StateApplied))
	matches(t, "Advance() a second time", err, mcpreplay.ErrStale)
}

// reach makes a record in a state.
func reach(t *testing.T, s mcpreplay.Store, id string, state mcpreplay.State) mcpreplay.Record {
	t.Helper()
	rec := begin(t, s, operation(id), claim())
	switch state {
	case mcpreplay.StateInProgress:
		return rec
	case mcpreplay.StateReleased:
		return advance(t, s, move(rec, mcpreplay.EventRelease, state))
	}
	return advance(t, s, finish(rec, state))
}

// kinds are all kinds of event, and one that there is not.
var kinds = append([]mcpreplay.EventKind{"nonsense"}, mcpreplay.EventKinds...)

// targets are all states to go to, and some that no record can have.
var targets = append([]mcpreplay.State{mcpreplay.StateNone, mcpreplay.StateUnknown, "nonsense"}, mcpreplay.States...)

// move is a change of rec by an event of one kind that has all it needs.
func move(rec mcpreplay.Record, kind mcpreplay.EventKind, to mcpreplay.State) mcpreplay.Change {
	c := mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Event: mcpreplay.Event{Kind: kind, Actor: "owner-1"}}
	if kind == mcpreplay.EventTakeover {
		c.Owner = "owner-2"
	}
	if to == rec.State {
		return c
	}
	c.To = to
	c.Fence = kind == mcpreplay.EventFence
	if to.Final() && !c.Fence {
		c.Result = &mcpreplay.Result{Body: []byte(`{"content":[]}`)}
	}
	return c
}

func refused(t *testing.T, kind mcpreplay.EventKind, from, to mcpreplay.State, err error) {
	t.Helper()
	var te *mcpreplay.TransitionError
	if !errors.As(err, &te) || te.From != from || te.To != to {
		t.Errorf("%s from %q to %q = %v, want a *TransitionError of these", kind, from, to, err)
	}
}

func testFirst(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	for _, kind := range kinds {
		for _, to := range targets {
			op := operation(fmt.Sprintf("op-%s-%s", kind, to))
			before := position(t, store)
			rec, started, err := store.Begin(t.Context(), op, move(mcpreplay.Record{}, kind, to))
			if kind.Transition(mcpreplay.StateNone, to) != nil {
				refused(t, kind, mcpreplay.StateNone, to, err)
				nothing(t, store, op.Key, before)
			} else if err != nil || !started || rec.State != to {
				t.Errorf("Begin() as %s by %s = %q, started %v, %v", to, kind, rec.State, started, err)
			}
		}
	}
}

func testTransitions(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.open(t)
	t.Cleanup(func() { verify(t, store, mcpreplay.RuleContradiction) })
	for _, from := range mcpreplay.States {
		rec := reach(t, store, fmt.Sprintf("op-%s", from), from)
		check := unchanged(t, store, rec.Key)
		for _, kind := range kinds {
			for _, to := range targets {
				if to == mcpreplay.StateNone {
					continue // asks to keep the state
				}
				if kind.Transition(from, to) != nil {
					_, err := store.Advance(t.Context(), move(rec, kind, to))
					refused(t, kind, from, to, err)
					continue
				}
				moved := reach(t, store, fmt.Sprintf("op-%s-%s-%s", from, kind, to), from)
				if kind == mcpreplay.EventTakeover {
					moved = endLease(t, store, moved)
				}
				if got, err := store.Advance(t.Context(), move(moved, kind, to)); err != nil || got.State != to {
					t.Errorf("%s from %s to %s = %q, %v", kind, from, to, got.State, err)
				}
			}
		}
		check()
	}
}

func testAfterFinal(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.open(t)
	t.Cleanup(func() { verify(t, store, mcpreplay.RuleContradiction) })
	rec := reach(t, store, "op-final", mcpreplay.StatePartial)
	note := func(kind mcpreplay.EventKind) mcpreplay.Change {
		return mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Event: mcpreplay.Event{Kind: kind, Actor: "bob", Evidence: "late"}}
	}
	check := unchanged(t, store, rec.Key)
	for name, c := range map[string]mcpreplay.Change{
		"a step":          note(mcpreplay.EventStep),
		"a second finish": note(mcpreplay.EventFinish),
		"a fence":         {Key: rec.Key, Revision: rec.Revision, Fence: true, To: mcpreplay.StateNotApplied, Event: mcpreplay.Event{Kind: mcpreplay.EventFence}},
		"a new result": {Key: rec.Key, Revision: rec.Revision, Result: &mcpreplay.Result{Body: []byte("x")},
			Event: mcpreplay.Event{Kind: mcpreplay.EventContradiction}},
		"a new reference": {Key: rec.Key, Revision: rec.Revision, Effect: "other", Event: mcpreplay.Event{Kind: mcpreplay.EventContradiction}},
		"a new owner":     {Key: rec.Key, Revision: rec.Revision, Owner: "other", Event: mcpreplay.Event{Kind: mcpreplay.EventContradiction}},
	} {
		if _, err := store.Advance(t.Context(), c); !isTransition(err) {
			t.Errorf("%s after the end = %v, want a *TransitionError", name, err)
		}
	}
	check()
	for _, kind := range []mcpreplay.EventKind{mcpreplay.EventCompensation, mcpreplay.EventContradiction} {
		got := advance(t, store, note(kind))
		want := rec
		want.Revision, want.Position, want.UpdatedAt = got.Revision, got.Position, got.UpdatedAt
		want.Contradicted = kind == mcpreplay.EventContradiction
		sameRecord(t, "a record after its end", got, want)
		if got.Revision <= rec.Revision || got.Position <= rec.Position {
			t.Errorf("%s is at revision %d and position %d, want more than %d and %d", kind, got.Revision, got.Position, rec.Revision, rec.Position)
		}
		rec = got
	}
	sameRecord(t, "Get()", get(t, store, rec.Key), rec)
}

func testSteps(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	rec := begin(t, store, operation("op-steps"), claim())
	want := events(t, store, rec.Key)
	for _, e := range []mcpreplay.Event{
		{Kind: mcpreplay.EventStep, Step: "watch", Outcome: "attempted", Actor: "owner-1"},
		{Kind: mcpreplay.EventStep, Step: "watch", Outcome: "failed", Actor: "owner-1", Evidence: "timeout"},
		{Kind: mcpreplay.EventCompensation, Step: "create", Outcome: "succeeded", Actor: "owner-1"},
	} {
		rec = advance(t, store, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Event: e})
		if rec.State != mcpreplay.StateInProgress || !rec.Live || rec.Owner != "owner-1" {
			t.Errorf("a step changed the record: %+v", rec)
		}
		e.Position, e.State, e.Revision, e.At = rec.Position, rec.State, rec.Revision, rec.UpdatedAt
		want = append(want, e)
	}
	// What the store fills is not taken from the caller.
	c := finish(rec, mcpreplay.StatePartial)
	c.Event.Position, c.Event.State, c.Event.Revision, c.Event.At = 1, mcpreplay.StateApplied, 1, rec.CreatedAt.AddDate(1, 0, 0)
	rec = advance(t, store, c)
	want = append(want, mcpreplay.Event{
		Kind: mcpreplay.EventFinish, Actor: "owner-1",
		Position: rec.Position, State: rec.State, Revision: rec.Revision, At: rec.UpdatedAt,
	})
	same(t, "Events()", events(t, store, rec.Key), want)
}

func testRounds(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	question := func(rec mcpreplay.Record) mcpreplay.Record {
		c := finish(rec, mcpreplay.StateAwaitingInput)
		c.Result = &mcpreplay.Result{Body: []byte("a question")}
		return advance(t, store, c)
	}
	rec := question(begin(t, store, operation("op-rounds"), claim()))
	for i, owner := range []string{"owner-1", "owner-2"} { // the next round may be another's
		c := claim()
		c.Key, c.Revision, c.Owner = rec.Key, rec.Revision, owner
		if rec = advance(t, store, c); rec.Owner != owner || !rec.Live {
			t.Errorf("round %d is claimed by %q, live %v; want %q", i, rec.Owner, rec.Live, owner)
		}
		if i == 0 {
			rec = question(rec)
		}
	}
	if rec = advance(t, store, finish(rec, mcpreplay.StateApplied)); rec.State != mcpreplay.StateApplied || rec.Owner != "owner-2" {
		t.Errorf("the last round ended as %s of %q, want applied of owner-2", rec.State, rec.Owner)
	}
	if n := len(events(t, store, rec.Key)); n != 6 {
		t.Errorf("%d events, want 6", n)
	}
}

func testDropped(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	c := claim()
	c.Result = &mcpreplay.Result{Body: []byte("a question")}
	rec := begin(t, store, operation("op-dropped"), c)
	change := finish(rec, mcpreplay.StateApplied)
	change.Result = &mcpreplay.Result{IsError: true, Digest: digest("too large"), Size: 1 << 40}
	got := advance(t, store, change)
	for _, r := range []mcpreplay.Record{got, get(t, store, rec.Key)} {
		same(t, "the result", r.Result, change.Result)
		if !r.Result.Dropped() {
			t.Error("Dropped() = false")
		}
	}
}

func testMisuse(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	result := &mcpreplay.Result{Body: []byte("x")}
	event := func(kind mcpreplay.EventKind) mcpreplay.Event { return mcpreplay.Event{Kind: kind} }
	running := begin(t, store, operation("op-misuse"), claim())
	asking := reach(t, store, "op-asking", mcpreplay.StateAwaitingInput)
	bare := begin(t, store, operation("op-bare"), claim())
	for _, tt := range []struct {
		name string
		rec  mcpreplay.Record
		c    mcpreplay.Change
	}{
		{"a fence that is not not_applied", running, mcpreplay.Change{To: mcpreplay.StateApplied, Fence: true, Event: event(mcpreplay.EventFence)}},
		{"a fence that keeps the state", running, mcpreplay.Change{Fence: true, Event: event(mcpreplay.EventStep)}},
		{"a fence by another event", asking, mcpreplay.Change{To: mcpreplay.StateNotApplied, Fence: true, Result: result, Event: event(mcpreplay.EventDecline)}},
		{"the event of a fence without one", asking, mcpreplay.Change{To: mcpreplay.StateNotApplied, Result: result, Event: event(mcpreplay.EventFence)}},
		{"a transition without an event", running, mcpreplay.Change{To: mcpreplay.StateApplied, Result: result}},
		{"a result without an event", running, mcpreplay.Change{Result: result}},
		{"a reference without an event", running, mcpreplay.Change{Effect: "x"}},
		{"a renewal by another owner", running, mcpreplay.Change{Owner: "owner-2", Lease: time.Hour}},
		{"a step by another owner", running, mcpreplay.Change{Owner: "owner-2", Event: event(mcpreplay.EventStep)}},
		{"an outcome without a result", bare, mcpreplay.Change{To: mcpreplay.StateApplied, Event: event(mcpreplay.EventFinish)}},
		{"a part without a result", bare, mcpreplay.Change{To: mcpreplay.StatePartial, Event: event(mcpreplay.EventFinish)}},
		{"a refusal without a result", bare, mcpreplay.Change{To: mcpreplay.StateNotApplied, Event: event(mcpreplay.EventFinish)}},
		{"a memo that comes late", running, mcpreplay.Change{Memo: []byte("x"), Event: event(mcpreplay.EventReconcile)}},
		{"a dropped result of no size", running, mcpreplay.Change{Result: &mcpreplay.Result{Digest: digest("x"), Size: -1}, Event: event(mcpreplay.EventStep)}},
	} {
		check := unchanged(t, store, tt.rec.Key)
		tt.c.Key, tt.c.Revision = tt.rec.Key, tt.rec.Revision
		if _, err := store.Advance(t.Context(), tt.c); err == nil {
			t.Errorf("%s was accepted", tt.name)
		}
		check()
	}
	at := position(t, store)
	for name, c := range map[string]mcpreplay.Change{
		"a claim without an event":        {To: mcpreplay.StateInProgress, Owner: "owner-1"},
		"a fence that is a claim":         {To: mcpreplay.StateInProgress, Fence: true, Event: event(mcpreplay.EventFence)},
		"a fence that is a decline":       {To: mcpreplay.StateNotApplied, Fence: true, Event: event(mcpreplay.EventDecline)},
		"a first change to no state":      {Event: event(mcpreplay.EventClaim)},
		"a first change to a question":    {To: mcpreplay.StateAwaitingInput, Event: event(mcpreplay.EventClaim)},
		"an effect without a result":      {To: mcpreplay.StateApplied, Event: event(mcpreplay.EventApply)},
		"a decline without a result":      {To: mcpreplay.StateNotApplied, Event: event(mcpreplay.EventDecline)},
		"a first change without an event": {To: mcpreplay.StateApplied, Result: result},
	} {
		if _, started, err := store.Begin(t.Context(), operation("op-misused"), c); err == nil || started {
			t.Errorf("%s was accepted", name)
		}
		nothing(t, store, key("op-misused"), at)
	}
}
