package storetest

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
)

// minting is a ring whose ids a store takes the time from.
func minting(t *testing.T) *mcpreplay.Keyring {
	t.Helper()
	ring, err := mcpreplay.NewKeyring([]byte(strings.Repeat("storetest", 4)))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

const keepMinted = 48 * time.Hour

// forgettable is a ledger with records that may be forgotten and others that may not.
type forgettable struct {
	store       mcpreplay.Store
	ring        *mcpreplay.Keyring
	began, soon time.Time // what ends soon has ended when it is made
	gone, kept  []mcpreplay.Record
}

func (f *forgettable) make(t *testing.T, id string, authority, retention time.Time) mcpreplay.Record {
	t.Helper()
	op := operation(id)
	op.Authority, op.Retention = authority, retention
	return begin(t, f.store, op, claim())
}

func (f *forgettable) end(t *testing.T, rec mcpreplay.Record) mcpreplay.Record {
	t.Helper()
	return advance(t, f.store, finish(rec, mcpreplay.StateApplied))
}

func (f *forgettable) note(t *testing.T, rec mcpreplay.Record, to mcpreplay.State, kind mcpreplay.EventKind) mcpreplay.Record {
	t.Helper()
	return advance(t, f.store, mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, To: to,
		Event: mcpreplay.Event{Kind: kind, Actor: "owner-1"}})
}

func makeForgettable(t *testing.T, store mcpreplay.Store) *forgettable {
	t.Helper()
	info, err := store.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	now := info.Time
	soon, later, never := now.Add(3*time.Second), now.Add(time.Hour), time.Time{}
	old, young := now.Add(-72*time.Hour), now.Add(-24*time.Hour)
	f := &forgettable{store: store, ring: minting(t), began: now, soon: soon}
	mint := f.ring.MintID
	bare := operation(mint(old))
	bare.Authority, bare.Retention = soon, now
	fenced, _, err := store.Begin(t.Context(), bare, fence())
	if err != nil {
		t.Fatal(err)
	}
	f.gone = []mcpreplay.Record{
		f.end(t, f.make(t, mint(old), soon, now)),
		f.end(t, f.make(t, mint(old.Add(time.Minute)), soon, now)),
		fenced,
	}
	f.kept = []mcpreplay.Record{
		f.end(t, f.make(t, mint(young), soon, now)),
		f.end(t, f.make(t, "op-chosen-long-ago", soon, now)),
		f.end(t, f.make(t, mcpreplay.NewID(old), soon, now)),                                        // of a client
		f.make(t, mint(old), soon, now),                                                             // nobody knows what became of it
		f.end(t, f.make(t, mint(old), soon, later)),                                                 // its result is still given
		f.end(t, f.make(t, mint(old), later, now)),                                                  // somebody may still ask to write
		f.note(t, f.make(t, mint(old), soon, now), mcpreplay.StateReleased, mcpreplay.EventRelease), // it is unknown
		f.end(t, f.make(t, mint(old), never, now)),
		f.end(t, f.make(t, mint(old), soon, never)),
	}
	running := claim() // its owner may come back with another outcome
	running.Deadline = time.Minute
	op := operation(mint(old))
	op.Authority, op.Retention = soon, now
	f.kept = append(f.kept, f.end(t, begin(t, store, op, running)))
	confirmed := f.end(t, f.make(t, mint(old), soon, now))
	f.gone = append(f.gone, f.note(t, confirmed, "", mcpreplay.EventConfirmation))
	latest := f.end(t, f.make(t, mint(old), soon, now))
	eventually(t, "the time to write to end", func() bool {
		info, err := store.Info(t.Context())
		return err == nil && !info.Time.Before(soon)
	})
	if got := sweep(t, store, mcpreplay.SweepPolicy{Forget: keepMinted}); got.Forgotten != 0 {
		t.Errorf("a sweep believed the clock alone, and forgot %+v", got)
	}
	// It is where the ledger's time is kept.
	f.kept = append(f.kept, f.note(t, latest, "", mcpreplay.EventConfirmation))
	return f
}

func testForget(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	f := makeForgettable(t, store)
	if got := sweep(t, store, mcpreplay.SweepPolicy{Grace: time.Minute, Forget: keepMinted}); got.Forgotten != 0 {
		t.Errorf("within its grace a sweep forgot %+v", got)
	}
	if got := sweep(t, store, mcpreplay.SweepPolicy{}); got.Forgotten != 0 {
		t.Errorf("a sweep that is not to forget forgot %+v", got)
	}
	at := position(t, store)
	forgotten := 0
	for forgotten < len(f.gone) {
		got, err := store.Sweep(t.Context(), mcpreplay.SweepPolicy{Limit: 2, Forget: keepMinted})
		if err != nil || got.Forgotten == 0 || got.Forgotten > 2 {
			t.Fatalf("a chunk of two after %d: %+v, %v", forgotten, got, err)
		}
		forgotten += got.Forgotten
	}
	if got := sweep(t, store, mcpreplay.SweepPolicy{Forget: keepMinted}); got.Forgotten != 0 || forgotten != len(f.gone) {
		t.Errorf("%d and then %d records were forgotten, want %d and 0", forgotten, got.Forgotten, len(f.gone))
	}
	info, err := store.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := info.Forgotten
	if told.Operations != int64(len(f.gone)) || told.Events != 8 || info.Position != at ||
		told.Before.Before(f.began.Add(-keepMinted)) || told.Before.After(info.Time.Add(-keepMinted)) {
		t.Errorf("the ledger at %d, before at %d, says that it has forgotten %+v", info.Position, at, told)
	}
	for _, rec := range f.gone {
		if _, err := store.Get(t.Context(), rec.Key); !errors.Is(err, mcpreplay.ErrNotFound) {
			t.Errorf("Get() of what is forgotten: %v", err)
		}
		for what, first := range map[string]mcpreplay.Change{"a claim": claim(), "a fence": fence()} {
			op := operation(rec.ID)
			op.Authority = info.Time.Add(time.Hour)
			_, started, err := store.Begin(t.Context(), op, first)
			if started || !errors.Is(err, mcpreplay.ErrForgotten) {
				t.Errorf("%s of what is forgotten: started %v, %v", what, started, err)
			}
		}
	}
	for _, rec := range f.kept {
		got := get(t, store, rec.Key)
		got.Result, rec.Result = nil, nil
		sameRecord(t, "what is not forgotten", got, rec)
		events(t, store, rec.Key)
	}
	if _, started, err := store.Begin(t.Context(), operation(f.ring.MintID(info.Time)), claim()); err != nil || !started {
		t.Errorf("a fresh id: started %v, %v", started, err)
	}
}

// testForgetBeside lets callers send what was done long ago again and again while it
// is forgotten: nothing is begun again, whatever they meet.
func testForgetBeside(t *testing.T, s *suite[mcpreplay.Store]) {
	store, ring := s.store(t), minting(t)
	recs := doneUntil(t, store, ring, 30)
	reach(t, store, "op-latest", mcpreplay.StateApplied) // by whose time they are old
	var over atomic.Bool
	again := func(rec mcpreplay.Record) {
		got, started, err := store.Begin(t.Context(), operation(rec.ID), claim())
		switch {
		case started:
			t.Errorf("%s was begun again", rec.ID)
			over.Store(true)
		case err == nil && got.State != mcpreplay.StateApplied:
			t.Errorf("%s is %s", rec.ID, got.State)
		case err != nil && !errors.Is(err, mcpreplay.ErrForgotten):
			t.Errorf("Begin(): %v", err)
			over.Store(true)
		}
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !over.Load() {
				for _, rec := range recs {
					again(rec)
				}
			}
		})
	}
	defer wg.Wait()
	defer over.Store(true)
	all := 0
	eventually(t, "all to be forgotten", func() bool {
		got, err := store.Sweep(t.Context(), mcpreplay.SweepPolicy{Limit: 2, Forget: 48 * time.Hour})
		if err != nil {
			t.Fatalf("Sweep(): %v", err)
		}
		all += got.Forgotten
		return all >= len(recs) || over.Load()
	})
	for _, rec := range recs { // those beside may have been too slow to meet it
		again(rec)
	}
}

// doneUntil makes operations whose ids were minted long ago, and waits until nobody
// may write under them.
func doneUntil(t *testing.T, store mcpreplay.Store, ring *mcpreplay.Keyring, n int) (recs []mcpreplay.Record) {
	t.Helper()
	for window := 200 * time.Millisecond; ; window *= 4 {
		info, err := store.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		soon := info.Time.Add(window)
		for recs = nil; len(recs) < n; {
			op := operation(ring.MintID(info.Time.Add(-72 * time.Hour)))
			op.Authority, op.Retention = soon, info.Time
			rec, _, err := store.Begin(t.Context(), op, claim())
			if errors.Is(err, mcpreplay.ErrExpired) && window < 20*time.Second {
				break
			}
			if err != nil {
				t.Fatalf("Begin(): %v", err)
			}
			recs = append(recs, advance(t, store, finish(rec, mcpreplay.StateApplied)))
		}
		if len(recs) == n {
			eventually(t, "the time to write to end", func() bool {
				info, err := store.Info(t.Context())
				return err == nil && !info.Time.Before(soon)
			})
			return recs
		}
	}
}
