package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"mcpreplay"
)

func (a *applier[Tx]) testStep(t *testing.T) {
	s := a.suite.store(t)
	rec := begin(t, s, operation("op-step"), claim())
	c := mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision,
		Event: mcpreplay.Event{Kind: mcpreplay.EventStep, Step: "create", Actor: "owner-1"},
	}
	got, err := s.ApplyStep(t.Context(), c, func(ctx context.Context, tx Tx, done *mcpreplay.Change) error {
		done.Effect = "row/step"
		done.Event.Outcome = "succeeded"
		done.Result = &mcpreplay.Result{Body: []byte("so far")}
		// Not for an effect to decide:
		done.Key, done.Revision, done.To = key("op-other"), 99, mcpreplay.StateApplied
		done.Owner, done.Lease, done.Fence = "thief", -time.Hour, true
		return a.kit.Write(ctx, tx, "step")
	})
	if err != nil {
		t.Fatalf("ApplyStep(): %v", err)
	}
	want := rec
	want.Effect, want.Revision, want.Position, want.UpdatedAt = "row/step", got.Revision, got.Position, got.UpdatedAt
	want.Result = &mcpreplay.Result{Body: []byte("so far"), Digest: digest("so far"), Size: 6}
	sameRecord(t, "ApplyStep()", got, want)
	sameRecord(t, "Get()", get(t, s, rec.Key), got)
	evs := events(t, s, rec.Key)
	same(t, "the event", evs[len(evs)-1], mcpreplay.Event{
		Position: got.Position, Kind: mcpreplay.EventStep, State: mcpreplay.StateInProgress, Revision: got.Revision,
		Step: "create", Outcome: "succeeded", Actor: "owner-1", At: got.UpdatedAt,
	})
	a.want(t, s, "step", 1)

	c = finish(got, mcpreplay.StateApplied)
	outcome := c.Event
	c.Event = mcpreplay.Event{} // only the effect tells what it was
	last, err := s.ApplyStep(t.Context(), c, func(ctx context.Context, tx Tx, done *mcpreplay.Change) error {
		done.Event = outcome
		return a.kit.Write(ctx, tx, "step")
	})
	if err != nil || last.State != mcpreplay.StateApplied {
		t.Errorf("ApplyStep() = %s, %v; want applied", last.State, err)
	}
	a.want(t, s, "step", 2)
}

func (a *applier[Tx]) testStepFailure(t *testing.T) {
	s := a.suite.store(t)
	rec := begin(t, s, operation("op-step"), claim())
	done := reach(t, s, "op-done", mcpreplay.StateApplied)
	check := unchanged(t, s, rec.Key)
	cause := errors.New("no such watcher")
	step := func(rec mcpreplay.Record) mcpreplay.Change {
		return mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Event: mcpreplay.Event{Kind: mcpreplay.EventStep, Step: "watch"}}
	}

	_, err := s.ApplyStep(t.Context(), step(rec), func(ctx context.Context, tx Tx, _ *mcpreplay.Change) error {
		return errors.Join(a.kit.Write(ctx, tx, "step"), cause)
	})
	var failed *mcpreplay.EffectError
	if !errors.As(err, &failed) || failed.Panic || !errors.Is(err, cause) {
		t.Errorf("ApplyStep() = %v, want an *EffectError of %v", err, cause)
	}
	_, err = s.ApplyStep(t.Context(), step(rec), func(ctx context.Context, tx Tx, _ *mcpreplay.Change) error {
		if err := a.kit.Write(ctx, tx, "step"); err != nil {
			return err
		}
		panic("boom")
	})
	if !errors.As(err, &failed) || !failed.Panic {
		t.Errorf("ApplyStep() = %v, want an *EffectError of a panic", err)
	}

	_, err = s.ApplyStep(t.Context(), step(rec), func(ctx context.Context, tx Tx, done *mcpreplay.Change) error {
		done.Event.Kind = mcpreplay.EventFence
		return a.kit.Write(ctx, tx, "step")
	})
	if !isTransition(err) {
		t.Errorf("ApplyStep() that calls itself a fence = %v, want a *TransitionError", err)
	}

	never := func(context.Context, Tx, *mcpreplay.Change) error {
		t.Error("the step ran")
		return nil
	}
	stale, foreign, absent := step(rec), step(rec), step(rec)
	stale.Revision++
	foreign.Key.Principal = "mallory"
	absent.Key.ID = "op-absent"
	_, err = s.ApplyStep(t.Context(), stale, never)
	matches(t, "ApplyStep() of an old revision", err, mcpreplay.ErrStale)
	_, err = s.ApplyStep(t.Context(), foreign, never)
	matches(t, "ApplyStep() of another's", err, mcpreplay.ErrConflict)
	_, err = s.ApplyStep(t.Context(), absent, never)
	matches(t, "ApplyStep() of nothing", err, mcpreplay.ErrNotFound)
	if _, err = s.ApplyStep(t.Context(), step(done), never); !isTransition(err) {
		t.Errorf("ApplyStep() after the end = %v, want a *TransitionError", err)
	}
	check()
	a.want(t, s, "step", 0)
}

func (a *applier[Tx]) testView(t *testing.T) {
	s := a.suite.store(t)
	first, _, err := s.Apply(t.Context(), operation("op-view"), a.write("row"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.View(t.Context(), first.Key, func(ctx context.Context, tx Tx, rec mcpreplay.Record) error {
		sameRecord(t, "the record in the view", rec, first)
		for i := range 2 {
			if n, err := a.kit.Count(ctx, tx, "row"); err != nil || n != 1 {
				t.Errorf("the view sees %d rows, %v; want 1", n, err)
			}
			// Another caller commits meanwhile.
			id := []string{"op-view-2", "op-view-3"}[i]
			if _, _, err := s.Apply(t.Context(), operation(id), a.write("row")); err != nil {
				t.Errorf("Apply() during a view: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("View(): %v", err)
	}
	sameRecord(t, "View()", got, first)
	if got.Ledger.Position != first.Position {
		t.Errorf("View() reads the ledger at %d, want %d", got.Ledger.Position, first.Position)
	}
	a.want(t, s, "row", 3)
}

func (a *applier[Tx]) testViewReads(t *testing.T) {
	s := a.suite.store(t)
	rec, _, err := s.Apply(t.Context(), operation("op-view"), a.write("row"))
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("not what was expected")
	var kept Tx
	_, err = s.View(t.Context(), rec.Key, func(ctx context.Context, tx Tx, _ mcpreplay.Record) error {
		kept = tx
		if err := a.kit.Write(ctx, tx, "row"); err == nil {
			t.Error("a view can write")
		}
		return cause
	})
	matches(t, "View()", err, cause)
	if _, err := a.kit.Count(t.Context(), kept, "row"); err == nil {
		t.Error("the handle of a view works after it")
	}
	_, err = s.View(t.Context(), rec.Key, func(context.Context, Tx, mcpreplay.Record) error { panic("boom") })
	if err == nil {
		t.Error("View() that panics = nil, want an error")
	}
	never := func(context.Context, Tx, mcpreplay.Record) error {
		t.Error("a view of nothing was looked at")
		return nil
	}
	for _, k := range []mcpreplay.Key{key("op-absent"), {Principal: "mallory", ID: rec.ID}} {
		got, err := s.View(t.Context(), k, never)
		matches(t, "View()", err, mcpreplay.ErrNotFound)
		sameRecord(t, "View()", got, mcpreplay.Record{Operation: mcpreplay.Operation{Key: k}})
		if got.Ledger.Position != rec.Position {
			t.Errorf("View() of nothing reads the ledger at %d, want %d", got.Ledger.Position, rec.Position)
		}
	}
	a.want(t, s, "row", 1)
}
