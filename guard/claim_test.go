package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
)

// shaky is a store whose nth write fails: it is not made, or it is made and not
// confirmed, or it is neither.
type shaky struct {
	mcpreplay.Store
	mu    sync.Mutex
	n     int   // writes to go before the one that fails
	times int   // how many fail from there on
	err   error // what it says
	made  bool
	saw   []string
}

func (s *shaky) fails(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saw = append(s.saw, what)
	s.n--
	return s.n < 0 && -s.n <= s.times
}

func (s *shaky) Begin(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (mcpreplay.Record, bool, error) {
	if !s.fails(string(c.Event.Kind)) {
		return s.Store.Begin(ctx, op, c)
	}
	if s.made {
		if _, _, err := s.Store.Begin(ctx, op, c); err != nil {
			return mcpreplay.Record{}, false, err
		}
	}
	return mcpreplay.Record{}, false, s.err
}

func (s *shaky) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	if c.Event.Kind == "" || !s.fails(string(c.Event.Kind)) { // renewals are made
		return s.Store.Advance(ctx, c)
	}
	if s.made {
		if _, err := s.Store.Advance(ctx, c); err != nil {
			return mcpreplay.Record{}, err
		}
	}
	return mcpreplay.Record{}, s.err
}

// Whatever a ledger answers to any one of the writes, the effect runs once at most,
// what is told as done is in the ledger, and what is told as not done was not.
func TestALedgerThatFailsAtAnyWrite(t *testing.T) {
	unknown := fmt.Errorf("commit: %w", mcpreplay.ErrUnknown)
	unavailable := fmt.Errorf("locked: %w", mcpreplay.ErrUnavailable)
	ends := map[string]error{
		"result": nil, "not applied": guard.NotApplied(errors.New("declined")), "again": guard.TryAgain(errors.New("busy")), "error": errors.New("reset"),
	}
	for name, end := range ends {
		for n := range 2 {
			for _, f := range []struct {
				name  string
				err   error
				made  bool
				times int
			}{
				{"unavailable", unavailable, false, 1}, {"unavailable for long", unavailable, false, 1000},
				{"unknown and made", unknown, true, 1}, {"unknown and not made", unknown, false, 1}, {"unknown for ever", unknown, false, 1000},
			} {
				t.Run(fmt.Sprintf("%s, write %d, %s", name, n+1, f.name), func(t *testing.T) {
					t.Parallel()
					fx := newFixture(t)
					var o outside
					store := &shaky{Store: fx.store, n: n, err: f.err, made: f.made, times: f.times}
					effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
						o.do(op.ID)
						if end != nil {
							return receipt{}, end
						}
						return paid(op, in)
					})
					cs, _ := fx.externalOver(store, effect, func(o *guard.Options) { o.Wait = 500 * time.Millisecond })
					res, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
					state := fx.row("state")
					ran := o.count("pay-1")
					claimed := n > 0
					if n == 0 && f.made && (reason(err) != "ledger_unavailable" || state != "released") {
						t.Errorf("a claim that was not confirmed: %v, %v, the record is %s", res, err, state)
					}
					switch {
					case ran > 1 || claimed != (ran == 1):
						t.Errorf("the effect ran %d times", ran)
					case err != nil:
						if why := reason(err); why != "ledger_unavailable" || ran > 0 || state != "" && state != "released" {
							t.Errorf("refused with %s, after %d runs, the record is %q", why, ran, state)
						}
					case isUnknown(res):
						if state != "in_progress" && state != "" {
							t.Errorf("told as unknown, the record is %s", state)
						}
					case res.IsError && end != nil && strings.Contains(text(res), end.Error()):
						if state != "not_applied" && state != "released" {
							t.Errorf("told as %s, the record is %s", text(res), state)
						}
					case state != "applied":
						t.Errorf("told as done, the record is %s", state)
					}
					// Afterwards nothing that may have happened is done again.
					again, _ := fx.external(effect, func(o *guard.Options) { o.Wait = 2 * time.Second })
					call(again, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
					if total := o.count("pay-1"); total > ran && ran > 0 && name != "again" {
						t.Errorf("sent again, the effect ran again: %d times", total)
					}
				})
			}
		}
	}
}

// An outcome that the ledger cannot take for longer than anybody waits is recorded
// when it can, by the owner, without a reconciler.
func TestAnOutcomeOutlastsALedgerThatIsAway(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error // of the effect
		made  bool  // the writes are made and not confirmed
		state string
	}{
		"done":               {nil, false, "applied"},
		"done, unconfirmed":  {nil, true, "applied"},
		"never":              {guard.NotApplied(errors.New("refused")), false, "not_applied"},
		"not this time":      {guard.TryAgain(errors.New("busy")), false, "released"},
		"nobody can tell it": {errors.New("reset"), false, "in_progress"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			away := &shaky{Store: f.open(), n: 1, times: 1 << 30, err: mcpreplay.ErrUnavailable, made: tt.made}
			if tt.made {
				away.err = mcpreplay.ErrUnknown
			}
			ran := 0
			cs, _ := f.externalOver(away, guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
				ran++
				if tt.err != nil {
					return receipt{}, tt.err
				}
				return paid(op, in)
			}), func(o *guard.Options) { o.Wait = 300 * time.Millisecond })
			res, err := call(cs, "pay", `{"operation_id":"pay-1","amount":1}`, nil)
			if err != nil || !tt.made && !isUnknown(res) {
				t.Fatalf("while it is away: %v, %v", res, err)
			}
			if state := f.row("state"); !tt.made && state != "in_progress" {
				t.Fatalf("while it is away it is %s", state)
			}
			away.mu.Lock()
			away.times = 0
			away.mu.Unlock()
			deadline := time.Now().Add(10 * time.Second)
			for f.row("state") != tt.state && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond)
			}
			if state := f.row("state"); state != tt.state || ran != 1 {
				t.Errorf("in the end it is %s, and ran %d times, want %s", state, ran, tt.state)
			}
			if kinds := f.history(); strings.Count(kinds, "finish")+strings.Count(kinds, "release") > 1 || strings.Contains(kinds, "contradiction") {
				t.Errorf("it was told more than once: %s", kinds)
			}
		})
	}
}
