package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// unconfirmed is a store that makes one change of a kind, does not confirm it, and says
// so only when it may.
type unconfirmed struct {
	mcpreplay.Store
	kind mcpreplay.EventKind
	made chan struct{} // closed when it is made
	say  chan struct{} // closed when it may be said; nil for at once
	once sync.Once
}

func (s *unconfirmed) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	rec, err := s.Store.Advance(ctx, c)
	if err != nil || c.Event.Kind != s.kind {
		return rec, err
	}
	s.once.Do(func() {
		close(s.made)
		if s.say != nil {
			<-s.say
		}
		rec, err = mcpreplay.Record{}, fmt.Errorf("commit: %w", mcpreplay.ErrUnknown)
	})
	return rec, err
}

// A claim that was given back without confirmation may have been claimed again by the
// time its owner looks. He must not give that one back as well: then a third would run
// beside the second.
func TestAnUnconfirmedReleaseLeavesTheNextClaimAlone(t *testing.T) {
	f := newFixture(t)
	var runs atomic.Int64
	running, release := make(chan struct{}), make(chan struct{})
	effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		switch runs.Add(1) {
		case 1:
			return receipt{}, guard.TryAgain(errors.New("rate limited"))
		case 2:
			close(running)
			<-release
		}
		return paid(op, in)
	})
	store := &unconfirmed{Store: f.store, kind: mcpreplay.EventRelease, made: make(chan struct{}), say: running}
	long := func(o *guard.Options) { o.Lease = time.Minute }
	first, _ := f.externalOver(store, effect, long)
	second, _ := f.external(effect, long)
	third, _ := f.external(effect, func(o *guard.Options) { o.Lease, o.Wait = time.Minute, 300*time.Millisecond })
	const args = `{"operation_id":"pay-1","amount":1}`
	ended := make(chan *mcp.CallToolResult, 2)
	go func() { ended <- mustCall(t, first, "pay", args) }()
	<-store.made
	go func() { ended <- mustCall(t, second, "pay", args) }()
	if res := <-ended; !res.IsError || replayed(res) {
		t.Errorf("the first was told %s", text(res))
	}
	if _, err := call(third, "pay", args, nil); reason(err) != "operation_in_progress" {
		t.Errorf("the third was told %v", err)
	}
	if got := f.row("state, attempt"); got != "in_progress | 2" || runs.Load() != 2 {
		t.Errorf("while the second runs the record is %s, after %d runs", got, runs.Load())
	}
	close(release)
	if res := <-ended; res.IsError {
		t.Errorf("the second was told %s", text(res))
	}
	if got := f.history(); got != "claim release claim finish" {
		t.Errorf("history: %s", got)
	}
}

// That the attempt which took over did nothing says nothing of the one before, which may
// have done it: no error turns what is unknown into what did not happen.
func TestATakeoverThatDoesNothingProvesNothing(t *testing.T) {
	for name, second := range map[string]error{
		"try again":   guard.TryAgain(errors.New("rate limited")),
		"not applied": guard.NotApplied(errors.New("no connection")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var o outside
			cs, _ := f.external(guard.Idempotent(guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
				switch op.Attempt {
				case 1:
					o.do(op.ID)
					return receipt{}, errors.New("connection reset")
				case 2:
					return receipt{}, second
				}
				return paid(op, in) // the system knows the id, and that it is done
			})), nil)
			const args = `{"operation_id":"pay-1","amount":1}`
			for i := range 2 {
				if res := mustCall(t, cs, "pay", args); !isUnknown(res) {
					t.Errorf("attempt %d: %s", i+1, text(res))
				}
				if got := observed(t, cs, "pay-1"); got.State != "unknown" || got.NewOperationSafe || strings.Contains(got.Detail, "Nothing has happened") {
					t.Errorf("after attempt %d: %s, %s", i+1, got.State, got.Detail)
				}
			}
			mustCall(t, cs, "fence_operation", `{"operation_id":"pay-1"}`)
			if got := observed(t, cs, "pay-1"); got.State != "unknown" || got.NewOperationSafe {
				t.Errorf("fenced: %s, %s", got.State, got.Detail)
			}
			if res := mustCall(t, cs, "pay", args); res.IsError || replayed(res) {
				t.Errorf("the third attempt: %s", text(res))
			}
			if got := f.history(); got != "claim doubt takeover doubt takeover finish" {
				t.Errorf("history: %s", got)
			}
		})
	}
}

// A takeover that was not confirmed is given up, but not as if nothing had happened.
func TestAnUnconfirmedTakeoverProvesNothing(t *testing.T) {
	f := newFixture(t)
	var o outside
	effect := guard.Idempotent(guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		o.do(op.ID)
		if op.Attempt == 1 {
			return receipt{}, errors.New("connection reset")
		}
		return paid(op, in)
	}))
	store := &unconfirmed{Store: f.store, kind: mcpreplay.EventTakeover, made: make(chan struct{})}
	cs, _ := f.externalOver(store, effect, nil)
	const args = `{"operation_id":"pay-1","amount":1}`
	mustCall(t, cs, "pay", args)
	if res, err := call(cs, "pay", args, nil); reason(err) != "ledger_unavailable" {
		t.Errorf("the takeover: %v, %v", res, err)
	}
	if got := f.row("state"); got != "in_progress" || o.count("pay-1") != 1 {
		t.Errorf("the record is %s after %d runs", got, o.count("pay-1"))
	}
	if got := observed(t, cs, "pay-1"); got.State != "unknown" || !strings.Contains(got.Detail, "no live owner") {
		t.Errorf("status: %s, %s", got.State, got.Detail)
	}
	if res := mustCall(t, cs, "pay", args); res.IsError {
		t.Errorf("taken over again: %s", text(res))
	}
}

// What the first attempt says once another has taken over is of the first alone: it does
// not end the claim of the other, and that nothing came of it contradicts nobody.
func TestAnEarlierAttemptThatEndsLate(t *testing.T) {
	for _, tt := range []struct {
		name    string
		end     error
		during  bool // it ends while the second runs, not after
		history string
	}{
		{"try again, during", guard.TryAgain(errors.New("busy")), true, "claim doubt takeover finish"},
		{"try again, after", guard.TryAgain(errors.New("busy")), false, "claim doubt takeover finish"},
		{"not applied, during", guard.NotApplied(errors.New("declined")), true, "claim doubt takeover finish"},
		{"not applied, after", guard.NotApplied(errors.New("declined")), false, "claim doubt takeover finish"},
		{"an error, during", errors.New("reset"), true, "claim doubt takeover finish"},
		{"a result, during", nil, true, "claim doubt takeover finish confirmation"},
		{"a result, after", nil, false, "claim doubt takeover finish confirmation"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			running := make(chan struct{})
			release := [3]chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
			effect := guard.Timeout(50*time.Millisecond, guard.Idempotent(guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
				if op.Attempt == 2 {
					close(running)
				}
				<-release[op.Attempt] // it does not heed its deadline
				if op.Attempt == 1 && tt.end != nil {
					return receipt{}, tt.end
				}
				return paid(op, in)
			})))
			first, _ := f.external(effect, nil)
			second, _ := f.external(effect, nil)
			const args = `{"operation_id":"pay-1","amount":1}`
			if res := mustCall(t, first, "pay", args); !isUnknown(res) {
				t.Fatalf("the first: %s", text(res))
			}
			ended := make(chan *mcp.CallToolResult, 1)
			go func() { ended <- mustCall(t, second, "pay", args) }()
			<-running
			let := func() {
				close(release[1])
				if tt.end == nil && tt.during {
					eventually(t, "the first outcome", func() bool { return f.row("state") == "applied" })
				}
				time.Sleep(500 * time.Millisecond) // for what must not be recorded
			}
			if tt.during {
				let()
				if got := f.row("state, attempt"); tt.end != nil && got != "in_progress | 2" {
					t.Errorf("while the second runs the record is %s", got)
				}
			}
			close(release[2])
			if res := <-ended; res.IsError {
				t.Errorf("the second was told %s", text(res))
			}
			if !tt.during {
				let()
			}
			eventually(t, "the end", func() bool { return f.history() == tt.history })
			if got := observed(t, second, "pay-1"); got.State != "applied" {
				t.Errorf("in the end: %s, %s", got.State, got.Detail)
			}
		})
	}
}
