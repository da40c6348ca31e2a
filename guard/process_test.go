//go:build unix

package guard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The test binary is an owner, too: a child of it with this variable set calls a guarded
// tool of its own over the ledger that the variable names, and tells what it was told.
const ownerEnv = "MCPREPLAY_TEST_OWNER"

func init() {
	path := os.Getenv(ownerEnv)
	if path == "" {
		return
	}
	if err := own(path); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// own runs one call. Its effect leaves a line in a file of its own, tells that it has,
// and ends when the input does.
func own(path string) error {
	store, err := sqlite.Open(path, &sqlite.Options{Backend: "app", Clock: func() time.Time { return time.Unix(1790035200, 0) }})
	if err != nil {
		return err
	}
	defer store.Close()
	keys, err := mcpreplay.NewKeyring(stateSecret)
	if err != nil {
		return err
	}
	g, err := guard.New(store, &guard.Options{Keys: keys, Principal: "alice", Lease: time.Second, EffectTimeout: time.Minute, Wait: 20 * time.Second})
	if err != nil {
		return err
	}
	server := newServer()
	effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		f, err := os.OpenFile(path+".effects", os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return receipt{}, guard.NotApplied(err)
		}
		fmt.Fprintln(f, op.ID)
		f.Close()
		fmt.Println("started")
		io.Copy(io.Discard, os.Stdin)
		return paid(op, in)
	})
	guard.AddTool(g, server, payTool(), guard.Reconcile(func(context.Context, *guard.Op, payment) (finding, error) {
		return guard.Undecided[receipt]("others ask"), nil
	}, effect))
	ct, st := mcp.NewInMemoryTransports()
	if _, err := server.Connect(context.Background(), st, nil); err != nil {
		return err
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil).Connect(context.Background(), ct, nil)
	if err != nil {
		return err
	}
	res, err := call(cs, "pay", `{"operation_id":"pay-1","amount":5}`, nil)
	if err != nil {
		return err
	}
	said, err := json.Marshal(res)
	fmt.Println(string(said))
	return err
}

// process is an owner in a process of its own, in the middle of its effect.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (f *fixture) process(t *testing.T) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", ownerEnv+"="+f.path)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(time.Minute, func() { p.cmd.Process.Kill() })
	t.Cleanup(func() {
		watchdog.Stop()
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	p.out = bufio.NewReader(out)
	if got := p.line(); got != "started" {
		t.Fatalf("the owner said %q", got)
	}
	return p
}

func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the owner says no more: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// stop stops the process where it does not hold the ledger's lock: there it would stop
// everybody.
func (f *fixture) stop(p *process) {
	for range 20 {
		p.signal(syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(f.t.Context(), 500*time.Millisecond)
		err := f.store.Setup(ctx, func(context.Context, *sqlite.Tx) error { return nil })
		cancel()
		if err == nil {
			return
		}
		p.signal(syscall.SIGCONT)
		time.Sleep(10 * time.Millisecond)
	}
	f.t.Fatal("the owner never lets go of the ledger")
}

// effects counts what was done, by all processes.
func (f *fixture) effects() int {
	text, err := os.ReadFile(f.path + ".effects")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	return strings.Count(string(text), "\n")
}

// again is the effect of the processes beside the owner. It must not be theirs to run.
func (f *fixture) again() guard.Effect[payment, receipt] {
	return guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		file, err := os.OpenFile(f.path+".effects", os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return receipt{}, guard.NotApplied(err)
		}
		defer file.Close()
		fmt.Fprintln(file, op.ID)
		time.Sleep(100 * time.Millisecond)
		return paid(op, in)
	})
}

const payFive = `{"operation_id":"pay-1","amount":5}`

// A process that is killed in the middle of its effect is missed once its lease has run
// out, and not before. Nobody does its work again.
func TestAnOwnerThatIsKilledIsMissed(t *testing.T) {
	f := newFixture(t)
	owner := f.process(t)
	other, _ := f.external(f.again(), nil)
	if got := observed(t, other, "pay-1"); got.State != "unknown" || !strings.Contains(got.Detail, "A live owner") {
		t.Errorf("while it lives: %s, %s", got.State, got.Detail)
	}
	time.Sleep(2 * time.Second) // it renews its lease of one second
	if got := observed(t, other, "pay-1"); !strings.Contains(got.Detail, "A live owner") {
		t.Errorf("after its first lease: %s", got.Detail)
	}
	owner.signal(syscall.SIGKILL)
	eventually(t, "the end of its lease", func() bool {
		return strings.Contains(observed(t, other, "pay-1").Detail, "no live owner")
	})
	for range 3 {
		if res := mustCall(t, other, "pay", payFive); !isUnknown(res) {
			t.Errorf("sent again: %s", text(res))
		}
	}
	if n := f.effects(); n != 1 {
		t.Errorf("the effect ran %d times", n)
	}
	if got := f.history(); got != "claim" {
		t.Errorf("history: %s", got)
	}
}

// Where it does no harm, exactly one of many takes over from a process that was killed.
func TestAnIdempotentEffectIsTakenOverFromTheKilled(t *testing.T) {
	f := newFixture(t)
	f.process(t).signal(syscall.SIGKILL)
	var wg sync.WaitGroup
	for range 8 {
		cs, _ := f.external(guard.Idempotent(f.again()), nil)
		wg.Go(func() {
			if res := mustCall(t, cs, "pay", payFive); res.IsError { // it waits for the lease to end
				t.Errorf("sent again: %s", text(res))
			}
		})
	}
	wg.Wait()
	if n := f.effects(); n != 2 {
		t.Errorf("the effect ran %d times, want once more", n)
	}
	if got := f.history(); got != "claim takeover finish" {
		t.Errorf("history: %s", got)
	}
}

// A process that is stopped beyond its lease wakes up to a record that another settled.
// What it knows is told beside it.
func TestAnOwnerThatIsStoppedWakesUpToASettledRecord(t *testing.T) {
	for _, tt := range []struct {
		name  string
		found finding
		last  string
		told  string
		state mcpreplay.State
	}{
		{"found", guard.Found(receipt{Operation: "pay-1", Paid: "5"}, "charge 7"), "confirmation", `"state":"applied"`, "applied"},
		{"fenced", guard.Fenced[receipt]("cancelled there"), "contradiction", `"operation_unknown"`, "unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t)
			owner := f.process(t)
			other, _ := f.external(guard.Reconcile(func(context.Context, *guard.Op, payment) (finding, error) { return tt.found, nil }, f.again()), nil)
			f.stop(owner)
			eventually(t, "the settlement", func() bool { return observed(t, other, "pay-1").State != "unknown" })
			owner.signal(syscall.SIGCONT)
			owner.in.Close()
			if got := owner.line(); !strings.Contains(got, tt.told) {
				t.Errorf("it tells its caller %s", got)
			}
			if got := observed(t, other, "pay-1"); got.State != tt.state {
				t.Errorf("in the end: %s, %s", got.State, got.Detail)
			}
			if res := mustCall(t, other, "pay", payFive); isUnknown(res) != (tt.state == "unknown") {
				t.Errorf("sent again: %s", text(res))
			}
			if got, want := f.history(), "claim reconcile:attempted settle "+tt.last; got != want || f.effects() != 1 {
				t.Errorf("history: %s, want %s, with %d effects", got, want, f.effects())
			}
			report, err := mcpreplay.Verify(t.Context(), f.store)
			if contradicted := len(report.Findings) == 1 && report.Findings[0].Rule == mcpreplay.RuleContradiction; err != nil || contradicted != (tt.last == "contradiction") {
				t.Errorf("verify: %v, %v", report.Findings, err)
			}
			f.disputed = tt.last == "contradiction"
		})
	}
}
