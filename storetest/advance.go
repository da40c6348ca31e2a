package storetest

import (
	"errors"
	"fmt"
	"testing"

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
	if state == mcpreplay.StateInProgress {
		return rec
	}
	return advance(t, s, finish(rec, state))
}

func testTransitions(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	for _, to := range append(mcpreplay.States, mcpreplay.StateNone, "nonsense", mcpreplay.StateUnknown) {
		id := fmt.Sprintf("op-none-to-%s", to)
		c := finish(mcpreplay.Record{}, to)
		before := position(t, store)
		rec, started, err := store.Begin(t.Context(), operation(id), c)
		if legal := mcpreplay.Transition(mcpreplay.StateNone, to) == nil; !legal {
			if !isTransition(err) || started {
				t.Errorf("Begin() as %q = started %v, %v; want a *TransitionError", to, started, err)
			}
			nothing(t, store, key(id), before)
		} else if err != nil || !started || rec.State != to {
			t.Errorf("Begin() as %q = %s, started %v, %v", to, rec.State, started, err)
		}
	}
	for _, from := range mcpreplay.States {
		for _, to := range append(mcpreplay.States, "nonsense", mcpreplay.StateUnknown) {
			rec := reach(t, store, fmt.Sprintf("op-%s-to-%s", from, to), from)
			check := unchanged(t, store, rec.Key)
			c := finish(rec, to)
			if !to.Final() {
				c.Event.Kind = mcpreplay.EventClaim
			}
			if from == mcpreplay.StateAwaitingInput {
				c.Event.Kind = mcpreplay.EventDecline // it has had its outcome of this round
			}
			got, err := store.Advance(t.Context(), c)
			if mcpreplay.Transition(from, to) == nil {
				if err != nil || got.State != to {
					t.Errorf("%s to %s = %s, %v", from, to, got.State, err)
				}
				continue
			}
			var te *mcpreplay.TransitionError
			if !errors.As(err, &te) || te.From != from || te.To != to {
				t.Errorf("%s to %s = %v, want a *TransitionError of these", from, to, err)
			}
			check()
		}
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
	rec := begin(t, store, operation("op-misuse"), claim())
	check := unchanged(t, store, rec.Key)
	for name, c := range map[string]mcpreplay.Change{
		"a fence that is not not_applied": {To: mcpreplay.StateApplied, Fence: true, Event: mcpreplay.Event{Kind: mcpreplay.EventFence}},
		"a fence that keeps the state":    {Fence: true, Event: mcpreplay.Event{Kind: mcpreplay.EventFence}},
		"a transition without an event":   {To: mcpreplay.StateApplied},
		"a result without an event":       {Result: &mcpreplay.Result{Body: []byte("x")}},
		"a reference without an event":    {Effect: "x"},
	} {
		c.Key, c.Revision = rec.Key, rec.Revision
		if _, err := store.Advance(t.Context(), c); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	check()
	for name, c := range map[string]mcpreplay.Change{
		"a claim without an event":     {To: mcpreplay.StateInProgress, Owner: "owner-1"},
		"a fence that is a claim":      {To: mcpreplay.StateInProgress, Fence: true, Event: mcpreplay.Event{Kind: mcpreplay.EventFence}},
		"a first change to no state":   {Event: mcpreplay.Event{Kind: mcpreplay.EventClaim}},
		"a first change to a question": {To: mcpreplay.StateAwaitingInput, Event: mcpreplay.Event{Kind: mcpreplay.EventClaim}},
	} {
		if _, started, err := store.Begin(t.Context(), operation("op-misused"), c); err == nil || started {
			t.Errorf("%s was accepted", name)
		}
		nothing(t, store, key("op-misused"), rec.Position)
	}
}
