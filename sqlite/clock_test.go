package sqlite_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
)

var noon = time.Date(2031, 5, 6, 12, 0, 0, 123456789, time.UTC)

// clock is one that the test sets.
type clock struct{ at atomic.Pointer[time.Time] }

func newClock(at time.Time) *clock {
	c := &clock{}
	c.set(at)
	return c
}

func (c *clock) set(at time.Time) { c.at.Store(&at) }
func (c *clock) now() time.Time   { return *c.at.Load() }

func ledgerTime(t *testing.T, s *sqlite.Store) time.Time {
	t.Helper()
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.Time
}

func TestTimeNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	c := newClock(noon)
	s := verified(t, path, &sqlite.Options{Clock: c.now})
	first := apply(t, s, "op-first")
	want := noon.Truncate(time.Microsecond)
	if !first.CreatedAt.Equal(want) {
		t.Errorf("created at %v, want %v", first.CreatedAt, want)
	}
	c.set(noon.Add(-time.Hour))
	if got := ledgerTime(t, s); !got.Equal(want) {
		t.Errorf("the ledger reads %v when the clock is back, want %v", got, want)
	}
	if rec := apply(t, s, "op-second"); !rec.CreatedAt.Equal(want) || !rec.Ledger.Time.Equal(want) {
		t.Errorf("created at %v when the clock is back, want %v", rec.CreatedAt, want)
	}
	// Another process with another clock.
	other := verified(t, path, &sqlite.Options{Clock: newClock(noon.Add(-time.Minute)).now})
	if got := ledgerTime(t, other); !got.Equal(want) {
		t.Errorf("another process reads %v, want %v", got, want)
	}
	c.set(noon.Add(time.Hour))
	if got := ledgerTime(t, s); !got.Equal(want.Add(time.Hour)) {
		t.Errorf("the ledger reads %v when the clock goes on, want %v", got, want.Add(time.Hour))
	}
}

func TestClockThatJumpsIsNotBelieved(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	c := newClock(noon)
	s := verified(t, path, &sqlite.Options{Clock: c.now})
	rec, _, err := s.Begin(t.Context(), operation("op-claimed"), claim())
	if err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []time.Duration{366*24*time.Hour + time.Microsecond, 200 * 366 * 24 * time.Hour} {
		c.set(noon.Truncate(time.Microsecond).Add(ahead))
		_, _, errBegin := s.Begin(t.Context(), operation("op-late"), claim())
		_, _, errApply := s.Apply(t.Context(), operation("op-late"), func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
			t.Error("the effect ran")
			return mcpreplay.Outcome{}, nil
		})
		_, errAdvance := s.Advance(t.Context(), mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Event: mcpreplay.Event{Kind: mcpreplay.EventStep}})
		for _, err := range []error{errBegin, errApply, errAdvance} {
			if !errors.Is(err, mcpreplay.ErrClock) || !strings.Contains(err.Error(), "MaxClockJump") || !strings.Contains(err.Error(), path) {
				t.Errorf("a write = %v, want %v with a remedy", err, mcpreplay.ErrClock)
			}
		}
		if got := ledgerTime(t, s); !got.Equal(rec.CreatedAt) {
			t.Errorf("the ledger reads %v, want its own last time %v", got, rec.CreatedAt)
		}
		if again, started, err := s.Begin(t.Context(), operation("op-claimed"), claim()); err != nil || started || !again.Ledger.Time.Equal(rec.CreatedAt) {
			t.Errorf("Begin() of a known operation = started %v, %v at %v", started, err, again.Ledger.Time)
		}
	}
	c.set(noon.Truncate(time.Microsecond).Add(366 * 24 * time.Hour))
	apply(t, s, "op-on-time")
}

func TestClockJumpIsAnOption(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	c := newClock(noon)
	apply(t, verified(t, path, &sqlite.Options{Clock: c.now, MaxClockJump: time.Minute}), "op-first")
	c.set(noon.Add(time.Hour))
	strict := verified(t, path, &sqlite.Options{Clock: c.now, MaxClockJump: time.Hour - time.Second})
	if _, _, err := strict.Begin(t.Context(), operation("op-late"), claim()); !errors.Is(err, mcpreplay.ErrClock) {
		t.Errorf("Begin() = %v, want %v", err, mcpreplay.ErrClock)
	}
	c.set(noon.Add(100 * 366 * 24 * time.Hour))
	apply(t, verified(t, path, &sqlite.Options{Clock: c.now, MaxClockJump: -1}), "op-late")
}

func TestAuthorityCountsInLedgerTime(t *testing.T) {
	t.Parallel()
	c := newClock(noon)
	s := verified(t, newPath(t), &sqlite.Options{Clock: c.now})
	apply(t, s, "op-first")
	op := operation("op-bounded")
	op.Authority = noon.Add(time.Second)

	c.set(noon.Add(time.Second - time.Microsecond))
	begun := op
	begun.ID = "op-in-time"
	if _, started, err := s.Begin(t.Context(), begun, claim()); err != nil || !started {
		t.Errorf("Begin() a microsecond before the deadline = started %v, %v", started, err)
	}
	c.set(noon.Add(time.Second))
	ran := false
	_, _, err := s.Apply(t.Context(), op, func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
		ran = true
		return mcpreplay.Outcome{}, nil
	})
	if !errors.Is(err, mcpreplay.ErrExpired) || ran {
		t.Errorf("Apply() at the deadline = %v, effect ran %v; want %v", err, ran, mcpreplay.ErrExpired)
	}
	// The ledger has seen a later time, so a clock that goes back revives nothing.
	apply(t, s, "op-later")
	c.set(noon)
	if _, _, err := s.Begin(t.Context(), op, claim()); !errors.Is(err, mcpreplay.ErrExpired) {
		t.Errorf("Begin() with the clock back = %v, want %v", err, mcpreplay.ErrExpired)
	}
}

// TestLeasesAreReal: a clock that stands still, or is wrong, must not keep a dead
// owner alive.
func TestLeasesAreReal(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), &sqlite.Options{Clock: newClock(noon).now})
	for _, tt := range []struct {
		id    string
		lease time.Duration
		want  bool
	}{{"op-live", time.Hour, true}, {"op-dead", -time.Second, false}, {"op-free", 0, false}} {
		c := claim()
		c.Lease = tt.lease
		rec, _, err := s.Begin(t.Context(), operation(tt.id), c)
		if err != nil || rec.Live != tt.want {
			t.Errorf("%s: Begin() is live %v, %v; want %v", tt.id, rec.Live, err, tt.want)
		}
		if rec, err := s.Get(t.Context(), rec.Key); err != nil || rec.Live != tt.want {
			t.Errorf("%s: Get() is live %v, %v; want %v", tt.id, rec.Live, err, tt.want)
		}
	}
}
