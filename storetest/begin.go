package storetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
)

func testForeign(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	rec := begin(t, store, operation("op-secret"), claim())
	check := unchanged(t, store, rec.Key)
	mallory := operation("op-secret")
	mallory.Principal = "mallory"

	for _, c := range []mcpreplay.Change{claim(), fence()} {
		got, started, err := store.Begin(t.Context(), mallory, c)
		matches(t, "Begin()", err, mcpreplay.ErrConflict)
		same(t, "Begin()", got, mcpreplay.Record{})
		if started || err != nil && strings.Contains(err.Error(), "alice") {
			t.Errorf("Begin() = started %v, %v; want false, and no word of the owner", started, err)
		}
	}
	change := finish(rec, mcpreplay.StateApplied)
	change.Key = mallory.Key
	got, err := store.Advance(t.Context(), change)
	matches(t, "Advance()", err, mcpreplay.ErrConflict)
	same(t, "Advance()", got, mcpreplay.Record{})

	nothing(t, store, mallory.Key, rec.Position)
	_, err = store.Events(t.Context(), mallory.Key)
	matches(t, "Events()", err, mcpreplay.ErrNotFound)
	for _, f := range []mcpreplay.Filter{{Principal: "mallory"}, {Principal: "mallory", ID: rec.ID}} {
		if recs, err := store.List(t.Context(), f); err != nil || len(recs) != 0 {
			t.Errorf("List(%+v) = %d records, %v; want none", f, len(recs), err)
		}
	}
	check()
}

func testFence(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	bare := mcpreplay.Operation{Key: key("op-fence")}
	rec := begin(t, store, bare, fence())
	want := mcpreplay.Record{
		Operation: bare, State: mcpreplay.StateNotApplied, Fenced: true,
		Revision: rec.Revision, Seq: rec.Seq, Position: rec.Position,
		CreatedAt: rec.CreatedAt, UpdatedAt: rec.UpdatedAt, Ledger: rec.Ledger,
	}
	same(t, "Begin()", rec, want)
	check := unchanged(t, store, rec.Key)
	for _, c := range []mcpreplay.Change{fence(), claim()} {
		got, started, err := store.Begin(t.Context(), operation("op-fence"), c)
		if started || err != nil {
			t.Fatalf("Begin() = started %v, %v; want false, nil", started, err)
		}
		sameRecord(t, "Begin()", got, rec)
	}
	check()
}

func testExpired(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	info, err := store.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	op := operation("op-expired")
	op.Authority = info.Time // over, when the ledger's time has reached it
	got, started, err := store.Begin(t.Context(), op, claim())
	matches(t, "Begin()", err, mcpreplay.ErrExpired)
	same(t, "Begin()", got, mcpreplay.Record{})
	if started {
		t.Error("Begin() started an operation without authority")
	}
	nothing(t, store, op.Key, info.Position)
	begin(t, store, op, fence())
	declined := operation("op-declined")
	declined.Authority = info.Time
	begin(t, store, declined, mcpreplay.Change{
		To: mcpreplay.StateNotApplied, Result: &mcpreplay.Result{Body: []byte("{}")},
		Event: mcpreplay.Event{Kind: mcpreplay.EventDecline, Actor: "alice"},
	})
	gone := operation("op-retained")
	gone.Retention = info.Time // says nothing about the right to write
	begin(t, store, gone, claim())
}

func testRacers(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	winners, records := race(t, func(ctx context.Context) (mcpreplay.Record, bool, error) {
		return store.Begin(ctx, operation("op-race"), claim())
	})
	if winners != 1 {
		t.Errorf("%d racers started, want 1", winners)
	}
	for _, rec := range records[1:] {
		sameRecord(t, "a racer's record", rec, records[0])
	}
	if evs := events(t, store, key("op-race")); len(evs) != 1 {
		t.Errorf("%d events, want 1", len(evs))
	}
}

// race runs fn 32 times at once, and counts who started.
func race(t *testing.T, fn func(context.Context) (mcpreplay.Record, bool, error)) (winners int, records []mcpreplay.Record) {
	t.Helper()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		gate = make(chan struct{})
	)
	for range 32 {
		wg.Go(func() {
			<-gate
			rec, started, err := fn(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("a racer: %v", err)
			}
			if started {
				winners++
			}
			records = append(records, rec)
		})
	}
	close(gate)
	wg.Wait()
	return winners, records
}

func testCancelled(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	rec := begin(t, store, operation("op-here"), claim())
	check := unchanged(t, store, rec.Key)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, started, err := store.Begin(ctx, operation("op-late"), claim())
	matches(t, "Begin()", err, mcpreplay.ErrUnavailable)
	matches(t, "Begin()", err, context.Canceled)
	if started {
		t.Error("Begin() started for a caller that has gone")
	}
	_, err = store.Advance(ctx, finish(rec, mcpreplay.StateApplied))
	matches(t, "Advance()", err, mcpreplay.ErrUnavailable)
	_, err = store.Get(ctx, rec.Key)
	matches(t, "Get()", err, context.Canceled)
	nothing(t, store, key("op-late"), rec.Position)
	check()
}

func testClosed(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.open(t)
	rec := begin(t, store, operation("op-closed"), claim())
	for range 2 {
		if err := store.Close(); err != nil {
			t.Fatalf("Close(): %v", err)
		}
	}
	_, _, errBegin := store.Begin(t.Context(), operation("op-late"), claim())
	_, errAdvance := store.Advance(t.Context(), finish(rec, mcpreplay.StateApplied))
	_, errGet := store.Get(t.Context(), rec.Key)
	_, errEvents := store.Events(t.Context(), rec.Key)
	_, errList := store.List(t.Context(), mcpreplay.Filter{})
	_, errInfo := store.Info(t.Context())
	for _, err := range []error{errBegin, errAdvance, errGet, errEvents, errList, errInfo} {
		matches(t, "a call after Close()", err, mcpreplay.ErrUnavailable)
	}
}

func testGrows(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	var last mcpreplay.Record
	for i, id := range []string{"op-c", "op-a", "op-b"} {
		rec := begin(t, store, operation(id+"-grows"), claim())
		if i > 0 && (rec.Seq <= last.Seq || rec.Position <= last.Position || rec.CreatedAt.Before(last.CreatedAt)) {
			t.Errorf("%s came after %s with sequence %d, position %d, time %v; want more than %d, %d, %v",
				rec.ID, last.ID, rec.Seq, rec.Position, rec.CreatedAt, last.Seq, last.Position, last.CreatedAt)
		}
		next := advance(t, store, finish(rec, mcpreplay.StateApplied))
		if next.Revision <= rec.Revision || next.Position <= rec.Position || next.UpdatedAt.Before(rec.UpdatedAt) {
			t.Errorf("finish: %+v, want more than %+v", next, rec)
		}
		if next.Ledger.Position != next.Position || next.Ledger.Time.Before(next.UpdatedAt) {
			t.Errorf("finish: the ledger is at %d and %v, the record at %d and %v",
				next.Ledger.Position, next.Ledger.Time, next.Position, next.UpdatedAt)
		}
		last = next
	}
	if got := position(t, store); got != last.Position {
		t.Errorf("the ledger is at %d, want %d", got, last.Position)
	}
}

func testRenew(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	c := claim()
	c.Lease = time.Microsecond
	rec := begin(t, store, operation("op-renew"), c)
	for get(t, store, rec.Key).Live { // by the store's own time, which passes
		if t.Context().Err() != nil {
			t.Fatal("a lease of a microsecond does not end")
		}
	}
	got := advance(t, store, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Owner: "owner-1", Lease: time.Hour})
	want := rec
	want.Live, want.Revision = true, got.Revision
	sameRecord(t, "a renewal", got, want)
	if got.Revision <= rec.Revision {
		t.Errorf("a renewal has revision %d, want more than %d", got.Revision, rec.Revision)
	}
	sameRecord(t, "Get() after a renewal", get(t, store, rec.Key), got)
	if evs := events(t, store, rec.Key); len(evs) != 1 || position(t, store) != rec.Position {
		t.Errorf("a renewal left %d events, want 1, and no new position", len(evs))
	}

	again := claim()
	again.Key, again.Revision, again.Owner = rec.Key, got.Revision, "owner-2"
	if _, err := store.Advance(t.Context(), again); !isTransition(err) {
		t.Errorf("a claim of what is claimed = %v, want a *TransitionError", err)
	}
	done := advance(t, store, finish(got, mcpreplay.StateApplied))
	if done.Live {
		t.Error("a final record has a live owner")
	}
	sameRecord(t, "Get() after the end", get(t, store, rec.Key), done)
	if _, err := store.Advance(t.Context(), mcpreplay.Change{Key: rec.Key, Revision: done.Revision, Lease: time.Hour}); !isTransition(err) {
		t.Errorf("renewing a final record = %v, want a *TransitionError", err)
	}
}

func isTransition(err error) bool {
	var te *mcpreplay.TransitionError
	return errors.As(err, &te)
}
