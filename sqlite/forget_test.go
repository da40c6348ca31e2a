package sqlite_test

import (
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// aged is a ledger with a record that may be forgotten, of an id that a server minted
// long ago, and one that may not. Its clock can be set, and told when it is asked.
type aged struct {
	now    time.Time
	asked  func() // once
	store  *sqlite.Store
	minted mcpreplay.Record
	chosen mcpreplay.Record
}

func (a *aged) clock() time.Time {
	if asked := a.asked; asked != nil {
		a.asked = nil
		asked()
	}
	return a.now
}

func (a *aged) open(t *testing.T, path string) *sqlite.Store {
	return verified(t, path, &sqlite.Options{Clock: a.clock, MaxClockJump: -1})
}

func newAged(t *testing.T, path string) *aged {
	t.Helper()
	ring, err := mcpreplay.NewKeyring([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	a := &aged{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	a.store = a.open(t, path)
	a.chosen = apply(t, a.store, "op-chosen")
	op := operation(ring.MintID(a.now))
	op.Authority, op.Retention = a.now.Add(time.Hour), a.now.Add(time.Hour)
	if a.minted, _, err = a.store.Apply(t.Context(), op, effect(op.ID)); err != nil {
		t.Fatal(err)
	}
	a.now = a.now.Add(72 * time.Hour)
	return a
}

func (a *aged) acknowledge(t *testing.T, rec mcpreplay.Record) {
	t.Helper()
	_, err := a.store.Advance(t.Context(), mcpreplay.Change{Key: rec.Key, Revision: rec.Revision,
		Event: mcpreplay.Event{Kind: mcpreplay.EventAcknowledge, Actor: "alice"}})
	if err != nil {
		t.Fatal(err)
	}
}

// A sweep that found an old result drops no other one, whatever another process
// forgets and writes before it does.
func TestASweepDropsWhatItFound(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	a := newAged(t, path)
	a.acknowledge(t, a.chosen)
	slow := a.open(t, path)
	var fresh mcpreplay.Record
	a.asked = func() { // it has its snapshot
		if swept, err := a.store.Sweep(t.Context(), mcpreplay.SweepPolicy{Forget: 24 * time.Hour}); err != nil || swept.Forgotten != 1 {
			t.Errorf("the faster sweep: %+v, %v", swept, err)
		}
		fresh = apply(t, a.store, "op-fresh")
	}
	if _, err := slow.Sweep(t.Context(), mcpreplay.SweepPolicy{}); err != nil {
		t.Fatal(err)
	}
	rec, err := a.store.Get(t.Context(), fresh.Key)
	if err != nil || rec.Result.Dropped() || rec.Seq == a.minted.Seq {
		t.Errorf("fresh work has sequence %d and %+v, %v", rec.Seq, rec.Result, err)
	}
}

// The ledger's time is that of its latest event, which stays, also when a declared
// restore has put the position beyond it.
func TestForgettingLeavesTheTime(t *testing.T) {
	t.Parallel()
	a := newAged(t, newPath(t))
	a.acknowledge(t, a.minted)
	if _, err := a.store.DeclareRestore(t.Context(), "olga", "the disk broke"); err != nil {
		t.Fatal(err)
	}
	latest := a.now
	a.now = a.now.Add(-time.Hour) // a clock that is behind
	swept, err := a.store.Sweep(t.Context(), mcpreplay.SweepPolicy{Forget: 24 * time.Hour})
	if err != nil || swept.Forgotten != 0 {
		t.Errorf("Sweep() = %+v, %v", swept, err)
	}
	if info, err := a.store.Info(t.Context()); err != nil || info.Time.Before(latest) {
		t.Errorf("the ledger's time is %v, %v, want %v", info.Time, err, latest)
	}
	a.now = latest
	apply(t, a.store, "op-next")
	if swept, err := a.store.Sweep(t.Context(), mcpreplay.SweepPolicy{Forget: 24 * time.Hour}); err != nil || swept.Forgotten != 1 {
		t.Errorf("after the next: %+v, %v", swept, err)
	}
}
