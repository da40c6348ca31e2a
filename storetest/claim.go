package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"mcpreplay"
)

// endLease ends the lease of a claim: its owner is as good as gone.
func endLease(t *testing.T, s mcpreplay.Store, rec mcpreplay.Record) mcpreplay.Record {
	t.Helper()
	rec = advance(t, s, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Lease: -1})
	if rec.Live {
		t.Fatal("its owner is live after the lease was ended")
	}
	return rec
}

// taking is a change that takes a record from an owner that is gone.
func taking(rec mcpreplay.Record, kind mcpreplay.EventKind, owner string) mcpreplay.Change {
	c := mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision, Owner: owner, Lease: time.Hour,
		Event: mcpreplay.Event{Kind: kind, Actor: owner},
	}
	if kind == mcpreplay.EventReconcile {
		c.Event.Outcome = "attempted"
	}
	return c
}

func testTaking(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	for _, kind := range []mcpreplay.EventKind{mcpreplay.EventTakeover, mcpreplay.EventReconcile} {
		rec := begin(t, store, operation("op-taking-"+string(kind)), claim())
		check := unchanged(t, store, rec.Key)
		_, err := store.Advance(t.Context(), taking(rec, kind, "owner-2"))
		matches(t, string(kind)+" from a live owner", err, mcpreplay.ErrStale)
		check()

		rec = endLease(t, store, rec)
		check = unchanged(t, store, rec.Key)
		for _, owner := range []string{"", "owner-1"} {
			if _, err := store.Advance(t.Context(), taking(rec, kind, owner)); err == nil {
				t.Errorf("%s by owner %q, who had it before, was accepted", kind, owner)
			}
		}
		check()

		before := rec
		rec = advance(t, store, taking(rec, kind, "owner-2"))
		attempt := before.Attempt
		if kind == mcpreplay.EventTakeover {
			attempt++
		}
		if rec.State != mcpreplay.StateInProgress || rec.Owner != "owner-2" || !rec.Live || rec.Attempt != attempt {
			t.Errorf("after a %s it is %s of %s, live %v, attempt %d; want in_progress of owner-2, live, attempt %d",
				kind, rec.State, rec.Owner, rec.Live, rec.Attempt, attempt)
		}
		// Whoever had it meets the revision, and whoever comes second the lease.
		_, err = store.Advance(t.Context(), finish(before, mcpreplay.StateApplied))
		matches(t, "a write of the owner before", err, mcpreplay.ErrStale)
		_, err = store.Advance(t.Context(), taking(rec, kind, "owner-3"))
		matches(t, "a second "+string(kind), err, mcpreplay.ErrStale)

		// A reconcile that could not tell, or an owner in doubt, ends its own lease.
		note := mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Lease: -1,
			Event: mcpreplay.Event{Kind: mcpreplay.EventReconcile, Outcome: "failed", Actor: "owner-2", Evidence: "the source does not say"}}
		if kind == mcpreplay.EventTakeover {
			note.Event = mcpreplay.Event{Kind: mcpreplay.EventDoubt, Actor: "owner-2", Evidence: "connection reset"}
		}
		if rec = advance(t, store, note); rec.Live || rec.State != mcpreplay.StateInProgress || rec.Owner != "owner-2" {
			t.Errorf("in doubt it is %s of %s, live %v", rec.State, rec.Owner, rec.Live)
		}
		c := finish(rec, mcpreplay.StateApplied)
		c.Event = mcpreplay.Event{Kind: mcpreplay.EventSettle, Actor: "operator", Evidence: "seen in the source"}
		if rec = advance(t, store, c); rec.State != mcpreplay.StateApplied {
			t.Errorf("settled, it is %s", rec.State)
		}
	}
}

func testRelease(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	op := operation("op-release")
	op.Authority = time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)
	rec := begin(t, store, op, claim())
	if rec.Attempt != 1 {
		t.Errorf("the first claim is attempt %d", rec.Attempt)
	}
	rec = advance(t, store, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, To: mcpreplay.StateReleased,
		Event: mcpreplay.Event{Kind: mcpreplay.EventRelease, Actor: "owner-1", Evidence: "429"}})
	if rec.State != mcpreplay.StateReleased || rec.Live {
		t.Errorf("released, it is %s, live %v", rec.State, rec.Live)
	}
	// What it stands for stays: the id is not free for another request.
	got, started, err := store.Begin(t.Context(), operation("op-release"), claim())
	if err != nil || started {
		t.Errorf("Begin() of a released operation = started %v, %v; want false, nil", started, err)
	}
	sameRecord(t, "Begin()", got, rec)

	again := claim()
	again.Key, again.Revision, again.Owner = rec.Key, rec.Revision, "owner-2"
	claimed := advance(t, store, again)
	if claimed.State != mcpreplay.StateInProgress || claimed.Attempt != 2 || claimed.Owner != "owner-2" || !claimed.Live {
		t.Errorf("claimed again it is %s of %s, live %v, attempt %d", claimed.State, claimed.Owner, claimed.Live, claimed.Attempt)
	}
	_, err = store.Advance(t.Context(), again)
	matches(t, "a second claim of what was released", err, mcpreplay.ErrStale)
	advance(t, store, finish(claimed, mcpreplay.StateApplied))
}

// The right to write is asked for each time somebody is about to write, not only
// the first time.
func testExpiredAgain(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	soon, recs := claimedUntil(t, store)
	released, gone, running := recs[0], endLease(t, store, recs[1]), recs[2]
	released = advance(t, store, mcpreplay.Change{Key: released.Key, Revision: released.Revision, To: mcpreplay.StateReleased,
		Event: mcpreplay.Event{Kind: mcpreplay.EventRelease, Actor: "owner-1"}})
	eventually(t, "the deadline to pass", func() bool {
		info, err := store.Info(t.Context())
		return err == nil && !info.Time.Before(soon)
	})
	again := claim()
	again.Key, again.Revision = released.Key, released.Revision
	for what, c := range map[string]mcpreplay.Change{"a claim": again, "a takeover": taking(gone, mcpreplay.EventTakeover, "owner-2")} {
		check := unchanged(t, store, c.Key)
		_, err := store.Advance(t.Context(), c)
		matches(t, what+" after the deadline", err, mcpreplay.ErrExpired)
		check()
	}
	// What was authorised in time ends whenever it ends, and may be asked about.
	advance(t, store, finish(running, mcpreplay.StateApplied))
	advance(t, store, taking(gone, mcpreplay.EventReconcile, "owner-2"))
}

// claimedUntil makes three claims whose right to write ends soon: as soon as this
// store on this machine leaves the time to make them.
func claimedUntil(t *testing.T, store mcpreplay.Store) (soon time.Time, recs []mcpreplay.Record) {
	t.Helper()
	for window := 150 * time.Millisecond; ; window *= 4 {
		info, err := store.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		soon, recs = info.Time.Add(window), nil
		for i := range 3 {
			op := operation(fmt.Sprintf("op-expired-%d-%s", i, window))
			op.Authority = soon
			rec, started, err := store.Begin(t.Context(), op, claim())
			if errors.Is(err, mcpreplay.ErrExpired) && window < 10*time.Second {
				break
			}
			if err != nil || !started {
				t.Fatalf("Begin(%s) = started %v, %v; want true, nil", op.ID, started, err)
			}
			recs = append(recs, rec)
		}
		if len(recs) == 3 {
			return soon, recs
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func testDeadline(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	c := claim()
	c.Deadline, c.Memo = 90*time.Second, []byte(`{"amount":1}`)
	rec := begin(t, store, operation("op-deadline"), c)
	same(t, "the memo", rec.Memo, c.Memo)
	if want := rec.CreatedAt.Add(c.Deadline); !rec.Deadline.Equal(want) {
		t.Errorf("the deadline is %v, want %v: by the ledger's own time", rec.Deadline, want)
	}
	kept := advance(t, store, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Lease: time.Hour})
	if !kept.Deadline.Equal(rec.Deadline) {
		t.Errorf("a renewal moved the deadline to %v", kept.Deadline)
	}
	sameRecord(t, "Get()", get(t, store, rec.Key), kept)
	shorter := taking(endLease(t, store, kept), mcpreplay.EventTakeover, "owner-2")
	shorter.Deadline = time.Second
	kept = advance(t, store, shorter)
	if !kept.Deadline.Equal(rec.Deadline) || !get(t, store, rec.Key).Deadline.Equal(rec.Deadline) {
		t.Errorf("a takeover with less time moved the deadline to %v: the attempt before may go on until %v", kept.Deadline, rec.Deadline)
	}
	if ended := advance(t, store, finish(kept, mcpreplay.StateApplied)); ended.Memo != nil || get(t, store, rec.Key).Memo != nil {
		t.Errorf("after the end it keeps the memo %s", ended.Memo)
	}
	if rec := begin(t, store, operation("op-no-deadline"), claim()); !rec.Deadline.IsZero() {
		t.Errorf("a claim without a deadline has %v", rec.Deadline)
	}
}

func testAcknowledge(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	rec := reach(t, store, "op-acknowledge", mcpreplay.StateApplied)
	want := rec
	rec = advance(t, store, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision,
		Event: mcpreplay.Event{Kind: mcpreplay.EventAcknowledge, Actor: "alice"}})
	want.Acknowledged, want.Revision, want.Position, want.UpdatedAt = true, rec.Revision, rec.Position, rec.UpdatedAt
	sameRecord(t, "an acknowledged record", rec, want)
	sameRecord(t, "Get()", get(t, store, rec.Key), want)
}

// sweep runs a whole sweep in chunks, and adds them up.
func sweep(t *testing.T, s mcpreplay.Store, p mcpreplay.SweepPolicy) (all mcpreplay.Swept) {
	t.Helper()
	for range 1000 {
		swept, err := s.Sweep(t.Context(), p)
		if err != nil {
			t.Fatalf("Sweep(): %v", err)
		}
		all.Looked += swept.Looked
		all.Dropped += swept.Dropped
		all.Bytes += swept.Bytes
		if p.Limit > 0 && swept.Looked > p.Limit {
			t.Errorf("a chunk looked at %d results, more than %d", swept.Looked, p.Limit)
		}
		if swept.Next == 0 {
			return all
		}
		if swept.Next <= p.After {
			t.Fatalf("the chunk after %d ends at %d", p.After, swept.Next)
		}
		p.After = swept.Next
	}
	t.Fatal("the sweep does not end")
	return all
}

func testSweep(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	info, err := store.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	make := func(id string, retention time.Time) mcpreplay.Record {
		op := operation(id)
		op.Retention = retention
		return advance(t, store, finish(begin(t, store, op, claim()), mcpreplay.StateApplied))
	}
	old := make("op-old", info.Time)
	recent := make("op-recent", info.Time.Add(-time.Minute))
	kept := make("op-kept", info.Time.Add(24*time.Hour))
	forever := make("op-forever", time.Time{})
	done := make("op-done", info.Time.Add(24*time.Hour))
	done = advance(t, store, mcpreplay.Change{Key: done.Key, Revision: done.Revision,
		Event: mcpreplay.Event{Kind: mcpreplay.EventAcknowledge, Actor: "alice"}})
	asking := operation("op-asking")
	asking.Retention = info.Time
	question := finish(begin(t, store, asking, claim()), mcpreplay.StateAwaitingInput)
	open := advance(t, store, question) // its question is still needed
	at := position(t, store)

	if got := sweep(t, store, mcpreplay.SweepPolicy{Grace: time.Hour}); got.Dropped != 0 {
		t.Errorf("within its grace a sweep dropped %+v", got)
	}
	got := sweep(t, store, mcpreplay.SweepPolicy{Limit: 2})
	if want := int64(len(old.Result.Body) + len(recent.Result.Body)); got.Dropped != 2 || got.Bytes != want {
		t.Errorf("a sweep dropped %d results of %d bytes, want 2 of %d", got.Dropped, got.Bytes, want)
	}
	if got := sweep(t, store, mcpreplay.SweepPolicy{Limit: 2}); got.Dropped != 0 {
		t.Errorf("a second sweep dropped %+v", got)
	}
	for _, rec := range []mcpreplay.Record{kept, forever, done, open} {
		sameRecord(t, "what a sweep keeps", get(t, store, rec.Key), rec)
	}
	if got := sweep(t, store, mcpreplay.SweepPolicy{Acknowledged: true}); got.Dropped != 1 {
		t.Errorf("a sweep of what is acknowledged dropped %+v", got)
	}
	for _, rec := range []mcpreplay.Record{old, recent, done} {
		want, result := rec, *rec.Result
		result.Body, want.Result = nil, &result
		sameRecord(t, "a swept record", get(t, store, rec.Key), want)
		if evs := events(t, store, rec.Key); len(evs) < 2 {
			t.Errorf("a sweep took events: %v", evs)
		}
	}
	if now := position(t, store); now != at {
		t.Errorf("a sweep moved the ledger from %d to %d", at, now)
	}
}
