package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// After a sweep a repeat and status still say that it was done, with digest and
// size, and the ledger still verifies (the fixture proves it at the end).
func TestSweptResultsAreStillTold(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, func(o *guard.Options) { o.Retention = time.Hour }), nil)
	const n = 7
	for i := range n {
		mustCall(t, cs, "pay", fmt.Sprintf(`{"operation_id":"pay-%d","amount":%d}`, i, i+1))
	}
	mustCall(t, cs, "acknowledge_operation", `{"operation_id":"pay-3"}`)
	mustCall(t, cs, "acknowledge_operation", `{"operation_id":"pay-3"}`)
	before := status(t, cs, "pay-3")
	if _, err := guard.Sweep(t.Context(), f.store, mcpreplay.SweepPolicy{}, nil); err != nil {
		t.Fatal(err)
	}
	if obs := status(t, cs, "pay-3"); obs.ResultDropped != nil {
		t.Fatal("dropped within its retention, and acknowledgements were not to count")
	}
	swept, err := guard.Sweep(t.Context(), f.store, mcpreplay.SweepPolicy{Acknowledged: true}, nil)
	if err != nil || swept.Looked != n || swept.Dropped != 1 || swept.Next != 0 || swept.Bytes != int64(len(before.StoredResult)) {
		t.Fatalf("Sweep() = %+v, %v", swept, err)
	}
	res := mustCall(t, cs, "pay", `{"operation_id":"pay-3","amount":4}`)
	want := fmt.Sprintf("Its result is not kept: it had %d bytes with SHA-256 ", len(before.StoredResult))
	if !replayed(res) || !strings.Contains(text(res), want) {
		t.Errorf("the repeat got %q", text(res))
	}
	obs := status(t, cs, "pay-3")
	if obs.State != mcpreplay.StateApplied || obs.ResultDropped == nil || obs.ResultDropped.Size != int64(len(before.StoredResult)) ||
		!strings.Contains(text(res), obs.ResultDropped.Digest) {
		t.Errorf("status tells %+v", obs)
	}

	// The rest goes an hour after retention has passed, three at a time.
	f.clock.Add(2*3600 - 1)
	policy := mcpreplay.SweepPolicy{Grace: time.Hour, Limit: 3}
	if swept, err := guard.Sweep(t.Context(), f.store, policy, nil); err != nil || swept.Dropped != 0 {
		t.Errorf("within the grace: %+v, %v", swept, err)
	}
	f.clock.Add(1)
	chunks := 0
	swept, err = guard.Sweep(t.Context(), f.store, policy, func(mcpreplay.Swept) { chunks++ })
	if err != nil || swept.Dropped != n-1 || chunks < 2 {
		t.Errorf("Sweep() = %+v in %d chunks, %v", swept, chunks, err)
	}
	if got := strings.Count(f.payments(""), "\n"); got != n {
		t.Errorf("%d effects, want %d", got, n)
	}
}

// A sweep that is stopped says where it was, and goes on from there.
func TestASweepStopsBetweenChunks(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, func(o *guard.Options) { o.Retention, o.AuthorityTTL = time.Hour, time.Hour }), nil)
	for i := range 6 {
		mustCall(t, cs, "pay", fmt.Sprintf(`{"operation_id":"pay-%d","amount":1}`, i))
	}
	f.clock.Add(3600)
	ctx, stop := context.WithCancel(t.Context())
	policy := mcpreplay.SweepPolicy{Limit: 2}
	swept, err := guard.Sweep(ctx, f.store, policy, func(mcpreplay.Swept) { stop() })
	if !errors.Is(err, context.Canceled) || swept.Dropped != 2 || swept.Next == 0 {
		t.Fatalf("stopped: %+v, %v", swept, err)
	}
	policy.After = swept.Next
	if rest, err := guard.Sweep(t.Context(), f.store, policy, nil); err != nil || rest.Dropped != 4 || rest.Next != 0 {
		t.Errorf("the rest: %+v, %v", rest, err)
	}
}

// An id that a server minted is forgotten with its record, and says so by itself: sent
// again it is unknown, whoever minted it, and can neither run nor be fenced.
func TestForgottenOperationsAreUnknown(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, func(o *guard.Options) { o.Retention, o.AuthorityTTL = time.Hour, time.Hour }), nil)
	now := time.Unix(f.clock.Load(), 0)
	ours, theirs := ring(t, stateSecret).MintID(now), ring(t, []byte(strings.Repeat("x", 32))).MintID(now.Add(time.Second))
	never := ring(t, stateSecret).MintID(now.Add(2 * time.Second))
	args := func(id string) string { return `{"operation_id":"` + id + `","amount":1}` }
	for _, id := range []string{ours, theirs, "chosen-1"} {
		mustCall(t, cs, "pay", args(id))
	}
	mustCall(t, cs, "fence_operation", `{"operation_id":"fenced-1"}`)
	f.clock.Add(24*3600 + 3)
	mustCall(t, cs, "pay", `{"operation_id":"chosen-2","amount":1}`) // the ledger's own time goes on
	policy := mcpreplay.SweepPolicy{Forget: guard.MinForget, Limit: 1}
	if swept, err := guard.Sweep(t.Context(), f.store, mcpreplay.SweepPolicy{Forget: guard.MinForget - 1}, nil); err == nil || swept.Looked != 0 {
		t.Errorf("records that are kept for too short: %+v, %v", swept, err)
	}
	chunks := 0
	swept, err := guard.Sweep(t.Context(), f.store, policy, func(mcpreplay.Swept) { chunks++ })
	if err != nil || swept.Dropped != 3 || swept.Forgotten != 2 || swept.Next != 0 || chunks < 4 {
		t.Fatalf("Sweep() = %+v in %d chunks, %v", swept, chunks, err)
	}
	for _, id := range []string{ours, theirs, never} {
		mustCall(t, cs, "fence_operation", `{"operation_id":"`+id+`"}`)
		res := mustCall(t, cs, "pay", args(id))
		said, _ := res.StructuredContent.(map[string]any)
		if !res.IsError || said["code"] != "operation_unknown" {
			t.Errorf("%s: %q, %v; want operation_unknown", id, text(res), said)
		}
		if obs := status(t, cs, id); obs.State != mcpreplay.StateUnknown || obs.NewOperationSafe || !strings.Contains(obs.Detail, "may have been swept") {
			t.Errorf("%s: status tells %+v", id, obs)
		}
	}
	if _, err := call(cs, "pay", args("chosen-1"), nil); reason(err) != "operation_retention_expired" {
		t.Errorf("an id that its caller chose: %v", err)
	}
	mustCall(t, cs, "pay", `{"amount":2}`)
	if got, want := f.payments(""), ours+" | 1\n"+theirs+" | 1\nchosen-1 | 1\nchosen-2 | 1\n"; !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 5 {
		t.Errorf("the file holds %q, want %q and one more", got, want)
	}
}

// flaky is a ledger whose first sweep fails.
type flaky struct {
	*sqlite.Store
	once sync.Once
}

func (s *flaky) Sweep(ctx context.Context, p mcpreplay.SweepPolicy) (swept mcpreplay.Swept, err error) {
	failed := false
	s.once.Do(func() { failed = true })
	if failed {
		return swept, fmt.Errorf("%w: the disk is full", mcpreplay.ErrUnavailable)
	}
	return s.Store.Sweep(ctx, p)
}

// A server sweeps as it runs: what fails is logged, and tried again.
func TestSweepEvery(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	mustCall(t, cs, "pay", `{"operation_id":"pay-1","amount":1}`)
	mustCall(t, cs, "acknowledge_operation", `{"operation_id":"pay-1"}`)
	var log bytes.Buffer
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	done := make(chan struct{})
	go func() {
		defer close(done)
		guard.SweepEvery(ctx, &flaky{Store: f.store}, guard.Sweeping{Interval: time.Millisecond,
			Policy: mcpreplay.SweepPolicy{Acknowledged: true}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	for status(t, cs, "pay-1").ResultDropped == nil && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	stop()
	<-done
	if status(t, cs, "pay-1").ResultDropped == nil || !strings.Contains(log.String(), "sweep failed") {
		t.Errorf("it was not swept, or what failed was not logged: %s", log.String())
	}
}

// An owner who comes back when his record is forgotten is told that it is not his any
// more, and what he did is in the log: there is nowhere else for it.
func TestAnOwnerComesBackToAForgottenRecord(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var log bytes.Buffer
	var cause error
	running, release := make(chan struct{}), make(chan struct{})
	effect := guard.Reconcile(func(context.Context, *guard.Op, payment) (finding, error) {
		return guard.Fenced[receipt]("cancelled there"), nil
	}, guard.External(func(ctx context.Context, op *guard.Op, in payment) (receipt, error) {
		if in.Amount == "5" {
			close(running)
			<-release
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Second):
			}
			cause = context.Cause(ctx)
		}
		op.Effect("charge-7")
		return paid(op, in)
	}))
	sleeping := &sleeper{Store: f.store}
	hour := func(o *guard.Options) {
		o.Retention, o.AuthorityTTL, o.EffectTimeout = time.Hour, time.Hour, time.Hour
	}
	owner, _ := f.externalOver(sleeping, effect, func(o *guard.Options) {
		hour(o)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	other, _ := f.external(effect, hour)
	id := ring(t, stateSecret).MintID(time.Unix(f.clock.Load(), 0))
	ended := make(chan *mcp.CallToolResult, 1)
	go func() {
		res, err := call(owner, "pay", `{"operation_id":"`+id+`","amount":5}`, nil)
		if err != nil {
			t.Error(err)
		}
		ended <- res
	}()
	<-running
	sleeping.sleep(true)
	eventually(t, "the settlement", func() bool { return observed(t, other, id).State == "not_applied" })
	f.clock.Add(30 * 3600)
	mustCall(t, other, "pay", `{"operation_id":"newer-1","amount":1}`)
	if swept, err := guard.Sweep(t.Context(), f.store, mcpreplay.SweepPolicy{Forget: guard.MinForget}, nil); err != nil || swept.Forgotten != 1 {
		t.Fatalf("Sweep() = %+v, %v", swept, err)
	}
	sleeping.sleep(false)
	close(release)
	if res := <-ended; !isUnknown(res) {
		t.Errorf("its caller is told %s", text(res))
	}
	if cause == nil || !strings.Contains(cause.Error(), "claim was lost") {
		t.Errorf("it was told to stop because of: %v", cause)
	}
	if !strings.Contains(log.String(), "charge-7") {
		t.Errorf("the log says %s", log.String())
	}
}
