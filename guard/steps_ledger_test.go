package guard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// interrupted is a ledger whose nth write, renewals aside, does not go as it should.
type interrupted struct {
	*sqlite.Store
	at     int64 // from 1
	writes atomic.Int64

	// An error of before takes the place of the write, one of after that of its answer.
	before, after func() error
}

// write makes a write by do. If it is the one and is refused, refused is called in its
// place.
func (i *interrupted) write(do func() error, refused func()) error {
	if i.writes.Add(1) != i.at {
		return do()
	}
	if i.before != nil {
		if err := i.before(); err != nil {
			refused()
			return err
		}
	}
	err := do()
	if err == nil && i.after != nil {
		err = i.after()
	}
	return err
}

func (i *interrupted) Begin(ctx context.Context, op mcpreplay.Operation, c mcpreplay.Change) (rec mcpreplay.Record, started bool, err error) {
	err = i.write(func() (err error) { rec, started, err = i.Store.Begin(ctx, op, c); return err }, func() {})
	return rec, started, err
}

func (i *interrupted) Advance(ctx context.Context, c mcpreplay.Change) (rec mcpreplay.Record, err error) {
	do := func() (err error) { rec, err = i.Store.Advance(ctx, c); return err }
	if c.Event.Kind == "" {
		return rec, do()
	}
	err = i.write(do, func() {})
	return rec, err
}

func (i *interrupted) ApplyStep(ctx context.Context, c mcpreplay.Change, effect func(context.Context, *sqlite.Tx, *mcpreplay.Change) error) (rec mcpreplay.Record, err error) {
	err = i.write(func() (err error) { rec, err = i.Store.ApplyStep(ctx, c, effect); return err }, func() {
		// It ran, and was rolled back in the end.
		i.Store.ApplyStep(ctx, c, func(ctx context.Context, tx *sqlite.Tx, c *mcpreplay.Change) error {
			return errors.Join(effect(ctx, tx, c), errors.New("the disk is full"))
		})
	})
	return rec, err
}

// Whatever the ledger says at any one write, no step is done twice, nobody is told a
// failure that is none, and the operation ends as it would have.
func TestStepsEndWhateverTheLedgerSays(t *testing.T) {
	type plan struct {
		writes          int64
		fails, outside  string
		said, rows, ran string
	}
	plans := map[string]plan{
		"all":      {6, "", "b", "applied by a, b, c", "a c", ""},
		"c fails":  {9, "c", "b", "partial by a, b, undo b, undo a", "", ""},
		"b fails":  {6, "b", "", "partial by a, undo a", "", ""},
		"all in c": {5, "", "", "applied by a, b, c", "a b c", ""},
	}
	fault := func(err error) func() error { return func() error { return err } }
	kinds := map[string]func(*interrupted){
		"unknown, committed":     func(i *interrupted) { i.after = fault(mcpreplay.ErrUnknown) },
		"unknown, not committed": func(i *interrupted) { i.before = fault(mcpreplay.ErrUnknown) },
		"unavailable":            func(i *interrupted) { i.before = fault(mcpreplay.ErrUnavailable) },
	}
	for planned, p := range plans {
		for kind, set := range kinds {
			for n := int64(1); n <= p.writes; n++ {
				t.Run(fmt.Sprintf("%s/%s/%d", planned, kind, n), func(t *testing.T) {
					t.Parallel()
					f := newFixture(t)
					tr := f.trip(nil)
					ledger := &interrupted{Store: f.store, at: n}
					set(ledger)
					tr.store, tr.outside = ledger, p.outside
					if p.fails != "" {
						var always func() error
						always = func() error { tr.then = map[string]func() error{p.fails: always}; return errors.New("no") }
						tr.then = map[string]func() error{p.fails: always}
					}
					cs := tr.serve(nil)
					got := said(call(cs, "pay", tripCall, nil))
					if n == 1 {
						want := "ledger_unavailable"
						if kind == "unknown, not committed" {
							want = "operation_unknown"
						}
						equal(t, "a claim that is not confirmed", got, want)
						equal(t, "what ran", tr.called(), "")
						got = said(call(cs, "pay", tripCall, nil))
					}
					equal(t, "the result", got, p.said)
					equal(t, "a repeat", said(call(cs, "pay", tripCall, nil)), p.said)
					equal(t, "the rows", f.rows(), p.rows)
					for _, step := range []string{"a", "b", "c"} {
						if n := strings.Count(f.told(), "step "+step+" succeeded"); n > 1 {
							t.Errorf("step %s was done %d times: %s", step, n, f.told())
						}
						if n := strings.Count(", "+tr.called()+",", ", "+step+","); strings.Contains(p.outside, step) && n != 1 {
							t.Errorf("the outside step %s ran %d times", step, n)
						}
					}
				})
			}
		}
	}
}

// sleeper is a ledger that sleeps after a write, and with it the owner and whatever
// renews his lease.
func (f *fixture) sleeper(after int64) (ledger *interrupted, asleep, wake chan struct{}) {
	asleep, wake = make(chan struct{}), make(chan struct{})
	return &interrupted{Store: f.store, at: after, after: func() error { close(asleep); <-wake; return nil }}, asleep, wake
}

// An owner that sleeps past his lease is settled by what the ledger holds, from what
// his steps knew; when he wakes he does nothing more, and tells no failure.
func TestASleepingOwnerIsSettledAndDoesNoMore(t *testing.T) {
	tests := []struct {
		name           string
		after          int64 // writes
		outside, fails string
		status, repeat string
		wakes, rows    string
		ran, history   string
	}{
		{"claimed", 1, "", "", "unknown", "applied by a, b, c", "operation_unknown", "a b c", "",
			"claim; reconcile attempted; release -> released; claim; step a succeeded; step b succeeded; step c succeeded; finish -> applied"},
		{"one step", 2, "", "", "partial; a succeeded", "partial by a", "operation_unknown", "a", "a",
			"claim; step a succeeded; reconcile attempted; settle -> partial"},
		{"one step, before one outside", 2, "b", "", "partial; a succeeded", "partial by a", "operation_unknown", "a", "a",
			"claim; step a succeeded; reconcile attempted; settle -> partial"},
		{"all steps", 4, "", "", "applied", "applied by a, b, c", "", "a b c", "a, b, c",
			"claim; step a succeeded; step b succeeded; step c succeeded; reconcile attempted; settle -> applied"},
		{"before a compensation", 4, "", "b", "partial; a succeeded; b failed", "partial by a", "operation_unknown", "a", "a, b",
			"claim; step a succeeded; step b failed; reconcile attempted; settle -> partial"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			ledger, asleep, wake := f.sleeper(tt.after)
			tr := f.trip(map[string]func() error{tt.fails: failures["an error"]})
			tr.store, tr.outside = ledger, tt.outside
			cs := tr.serve(func(o *guard.Options) { o.Lease = 200 * time.Millisecond })
			done := make(chan string)
			go func() { done <- said(call(cs, "pay", tripCall, nil)) }()
			<-asleep
			other := f.trip(nil)
			other.store = f.open()
			again := other.serve(nil)
			f.leaseOver()
			equal(t, "status", statusSays(t, again), tt.status)
			equal(t, "a repeat", said(call(again, "pay", tripCall, nil)), tt.repeat)
			close(wake)
			woken := <-done
			if tt.wakes != "" {
				equal(t, "the owner's own reply", woken, tt.wakes)
			} else {
				equal(t, "the owner's own reply", woken, tt.repeat)
			}
			equal(t, "what the owner ran", tr.called(), tt.ran)
			equal(t, "the rows", f.rows(), tt.rows)
			if got := strings.TrimSuffix(f.told(), "; confirmation -> applied"); got != tt.history {
				t.Errorf("the events:\n got %s\nwant %s", got, tt.history)
			}
			equal(t, "a repeat after all", said(call(again, "pay", tripCall, nil)), tt.repeat)
		})
	}
}

// leaseOver waits until no lease runs.
func (f *fixture) leaseOver() {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		rec, err := f.store.Get(context.Background(), mcpreplay.Key{Principal: "alice", ID: "trip-1"})
		if err != nil || time.Now().After(deadline) {
			f.t.Fatalf("the lease does not end: %v", err)
		}
		if !rec.Live {
			return
		}
	}
}

// While the owner may live, nobody settles what he does.
func TestALiveOwnerIsNotSettled(t *testing.T) {
	f := newFixture(t)
	ledger, asleep, wake := f.sleeper(2)
	tr := f.trip(nil)
	tr.store = ledger
	cs := tr.serve(func(o *guard.Options) { o.Lease = time.Hour })
	done := make(chan string)
	go func() { done <- said(call(cs, "pay", tripCall, nil)) }()
	<-asleep
	other := f.trip(nil)
	other.store = f.open()
	again := other.serve(func(o *guard.Options) { o.Wait = 50 * time.Millisecond })
	equal(t, "status", statusSays(t, again), "unknown; a succeeded")
	equal(t, "a repeat", said(call(again, "pay", tripCall, nil)), "operation_in_progress")
	equal(t, "the events", f.told(), "claim; step a succeeded")
	close(wake)
	equal(t, "the owner's own reply", <-done, "applied by a, b, c")
	equal(t, "a repeat at the end", said(call(again, "pay", tripCall, nil)), "applied by a, b, c")
	equal(t, "what the other ran", other.called(), "")
}

// stepsChild names the file for the process that TestAKilledOwnerIsSettled kills, and
// after which write it ends.
const stepsChild = "MCPREPLAY_TEST_STEPS_CHILD"

// A process is killed after each of its writes; whoever comes next settles what it
// has left, and does no step again.
func TestAKilledOwnerIsSettled(t *testing.T) {
	if spec := os.Getenv(stepsChild); spec != "" {
		n, path, _ := strings.Cut(spec, " ")
		after, _ := strconv.ParseInt(n, 10, 64)
		runStepsChild(t, path, after)
		return
	}
	for i, want := range []struct{ said, history string }{
		{"applied by a, b, c", "claim; reconcile attempted; release -> released; claim; step a succeeded; step b attempted; step b succeeded; step c succeeded; finish -> applied"},
		{"partial by a", "claim; step a succeeded; reconcile attempted; settle -> partial"},
		{"operation_unknown", "claim; step a succeeded; step b attempted; reconcile attempted; reconcile failed"},
		{"partial by a, b", "claim; step a succeeded; step b attempted; step b succeeded; reconcile attempted; settle -> partial"},
		{"applied by a, b, c", "claim; step a succeeded; step b attempted; step b succeeded; step c succeeded; reconcile attempted; settle -> applied"},
		{"applied by a, b, c", "claim; step a succeeded; step b attempted; step b succeeded; step c succeeded; finish -> applied"},
	} {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			cmd := exec.Command(os.Args[0], "-test.run=^TestAKilledOwnerIsSettled$")
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", stepsChild, i+1, f.path))
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.String() != "signal: killed" {
				t.Fatalf("the child was not killed: %v\n%s", err, out)
			}
			tr := f.trip(nil)
			tr.outside = "b"
			cs := tr.serve(nil)
			f.leaseOver()
			for range 2 {
				equal(t, "the result", said(call(cs, "pay", tripCall, nil)), want.said)
			}
			equal(t, "the events", f.told(), want.history)
			if ran := tr.called(); i > 0 && ran != "" {
				t.Errorf("these ran again: %s", ran)
			}
		})
	}
}

func runStepsChild(t *testing.T, path string, after int64) {
	f := &fixture{t: t, path: path}
	f.clock.Store(1790035200)
	f.store = f.open()
	tr := f.trip(nil)
	tr.outside = "b"
	tr.store = &interrupted{Store: f.store, at: after, after: func() error {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {} // it ends here
	}}
	cs := tr.serve(func(o *guard.Options) { o.Lease = 100 * time.Millisecond })
	cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(tripCall)})
}
