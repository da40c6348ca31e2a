//go:build unix

package guard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The test binary is a victim, too: a child of it with this variable set does what
// the variable says over a ledger, comes to a point of it, tells so, and waits there to
// be killed.
const victimEnv = "MCPREPLAY_TEST_VICTIM"

type victim struct {
	Path  string
	Does  string // "pay", "status" or "resolve"
	End   string // of its effect: "", "again" or "fails"
	Many  bool   // its effect may be run again
	At    string // the kind of a write, "renewal", or "effect"
	After bool   // the write, which is committed then
}

func init() {
	text := os.Getenv(victimEnv)
	if text == "" {
		return
	}
	var v victim
	err := json.Unmarshal([]byte(text), &v)
	if err == nil {
		err = v.run()
	}
	fmt.Println("it came to its end:", err)
	os.Exit(1)
}

// here is where the victim is killed.
func (v *victim) here() {
	fmt.Println("here")
	time.Sleep(time.Minute)
}

// doomed is a ledger at one of whose writes its process is killed.
type doomed struct {
	*sqlite.Store
	v *victim
}

func (s *doomed) write(kind mcpreplay.EventKind, do func() error) error {
	at := string(kind)
	if kind == "" {
		at = "renewal"
	}
	if at == s.v.At && !s.v.After {
		s.v.here()
	}
	err := do()
	if at == s.v.At && err == nil {
		s.v.here()
	}
	return err
}

func (s *doomed) Begin(ctx context.Context, o mcpreplay.Operation, c mcpreplay.Change) (rec mcpreplay.Record, started bool, err error) {
	err = s.write(c.Event.Kind, func() (err error) { rec, started, err = s.Store.Begin(ctx, o, c); return err })
	return rec, started, err
}

func (s *doomed) Advance(ctx context.Context, c mcpreplay.Change) (rec mcpreplay.Record, err error) {
	err = s.write(c.Event.Kind, func() (err error) { rec, err = s.Store.Advance(ctx, c); return err })
	return rec, err
}

func (v *victim) run() error {
	file, err := sqlite.Open(v.Path, &sqlite.Options{Backend: "app", Clock: func() time.Time { return time.Unix(1790035200, 0) }})
	if err != nil {
		return err
	}
	store := &doomed{file, v}
	if v.Does == "resolve" {
		_, _, err := guard.Resolve(context.Background(), store, byHand)
		return err
	}
	keys, err := mcpreplay.NewKeyring(stateSecret)
	if err != nil {
		return err
	}
	g, err := guard.New(store, &guard.Options{Keys: keys, Principal: "alice", Lease: time.Second, ReconcileTimeout: time.Second, EffectTimeout: time.Minute, Wait: 20 * time.Second})
	if err != nil {
		return err
	}
	server := newServer()
	effect := guard.External(func(_ context.Context, op *guard.Op, in payment) (receipt, error) {
		if v.End == "again" {
			return receipt{}, guard.TryAgain(errors.New("not now"))
		}
		if err := leave(v.Path, op); err != nil {
			return receipt{}, err
		}
		switch {
		case v.At == "effect":
			v.here()
		case v.At == "renewal":
			time.Sleep(time.Minute)
		case v.End == "fails":
			return receipt{}, errors.New("the connection broke")
		}
		return paid(op, in)
	})
	if v.Many {
		effect = guard.Idempotent(effect)
	} else {
		effect = guard.Reconcile(truth(v.Path), effect)
	}
	guard.AddTool(g, server, payTool(), effect)
	g.Install(server)
	ct, st := mcp.NewInMemoryTransports()
	if _, err := server.Connect(context.Background(), st, nil); err != nil {
		return err
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil).Connect(context.Background(), ct, nil)
	if err != nil {
		return err
	}
	if v.Does == "status" {
		_, err = call(cs, "get_operation_status", `{"operation_id":"pay-1"}`, nil)
	} else {
		_, err = call(cs, "pay", payFive, nil)
	}
	return err
}

// leave is the effect: a line in a file of its own.
func leave(path string, op *guard.Op) error {
	f, err := os.OpenFile(path+".effects", os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, op.ID)
	return errors.Join(err, f.Close())
}

// truth looks whether the effect left its line, and if not sees to it that it never
// will.
func truth(path string) func(context.Context, *guard.Op, payment) (finding, error) {
	return func(_ context.Context, op *guard.Op, in payment) (finding, error) {
		text, err := os.ReadFile(path + ".effects")
		switch {
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return finding{}, err
		case strings.Contains(string(text), op.ID):
			r, err := paid(op, in)
			return guard.Found(r, "it is there"), err
		}
		return guard.Fenced[receipt]("cancelled there"), nil
	}
}

var byHand = guard.Resolution{Key: mcpreplay.Key{Principal: "alice", ID: "pay-1"}, Outcome: mcpreplay.StateApplied,
	Result: []byte(`{"content":[{"type":"text","text":"by hand"}]}`), Actor: "olga", Reason: "it is on the statement"}

// kill lets a victim come to its point, and kills it there.
func (f *fixture) kill(v victim) {
	f.t.Helper()
	v.Path = f.path
	text, err := json.Marshal(v)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", victimEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	watchdog := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer watchdog.Stop()
	line, _ := bufio.NewReader(out).ReadString('\n')
	cmd.Process.Kill()
	cmd.Wait()
	if line != "here\n" {
		f.t.Fatalf("the victim of %+v said %q", v, line)
	}
}

// Wherever its process is killed, an operation is done at most once, nobody says that
// it failed, and whoever comes next finds out what became of it, once.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	inEffect := victim{Does: "pay", At: "effect"}
	for _, tt := range []struct {
		name    string
		dead    []victim // one after the other, the last is the one in question
		history string   // that they leave
		effects int      // that they had
		then    string   // what the history goes on with when it is sent again
		state   mcpreplay.State
		total   int
	}{
		{"before the claim", []victim{{Does: "pay", At: "claim"}}, "", 0, "claim finish", "applied", 1},
		{"after the claim", []victim{{Does: "pay", At: "claim", After: true}}, "claim", 0, "reconcile:attempted settle", "not_applied", 0},
		{"in its effect", []victim{inEffect}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"before a renewal", []victim{{Does: "pay", At: "renewal"}}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"after a renewal", []victim{{Does: "pay", At: "renewal", After: true}}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"before the outcome", []victim{{Does: "pay", At: "finish"}}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"after the outcome", []victim{{Does: "pay", At: "finish", After: true}}, "claim finish", 1, "", "applied", 1},
		{"before a doubt", []victim{{Does: "pay", End: "fails", At: "doubt"}}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"after a doubt", []victim{{Does: "pay", End: "fails", At: "doubt", After: true}}, "claim doubt", 1, "reconcile:attempted settle", "applied", 1},
		{"before a release", []victim{{Does: "pay", End: "again", At: "release"}}, "claim", 0, "reconcile:attempted settle", "not_applied", 0},
		{"after a release", []victim{{Does: "pay", End: "again", At: "release", After: true}}, "claim release", 0, "claim finish", "applied", 1},
		{"before it asks", []victim{inEffect, {Does: "status", At: "reconcile"}}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"as it asks", []victim{inEffect, {Does: "status", At: "reconcile", After: true}}, "claim reconcile:attempted", 1, "reconcile:attempted settle", "applied", 1},
		{"before it settles", []victim{inEffect, {Does: "status", At: "settle"}}, "claim reconcile:attempted", 1, "reconcile:attempted settle", "applied", 1},
		{"after it settles", []victim{inEffect, {Does: "status", At: "settle", After: true}}, "claim reconcile:attempted settle", 1, "", "applied", 1},
		{"before a person settles", []victim{inEffect, {Does: "resolve", At: "settle"}}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"after a person settles", []victim{inEffect, {Does: "resolve", At: "settle", After: true}}, "claim settle", 1, "", "applied", 1},
		{"before it takes over", []victim{inEffect, {Does: "pay", Many: true, At: "takeover"}}, "claim", 1, "reconcile:attempted settle", "applied", 1},
		{"after it takes over", []victim{inEffect, {Does: "pay", Many: true, At: "takeover", After: true}}, "claim takeover", 1, "reconcile:attempted settle", "applied", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for i, v := range tt.dead {
				if i > 0 {
					f.leaseEnds()
				}
				f.kill(v)
			}
			if got, n := f.history(), f.effects(); got != tt.history || n != tt.effects {
				t.Fatalf("it left the history %q and %d effects, want %q and %d", got, n, tt.history, tt.effects)
			}
			open := !strings.HasSuffix(tt.history, "finish") && !strings.HasSuffix(tt.history, "settle")
			blind, _ := f.external(f.again(), nil) // who cannot find out
			if got := observed(t, blind, "pay-1"); open != (got.State == "unknown") || got.NewOperationSafe {
				t.Errorf("status tells %s: %s", got.State, got.Detail)
			}
			if open && tt.then != "claim finish" {
				f.leaseEnds()
				if res := mustCall(t, blind, "pay", payFive); !isUnknown(res) {
					t.Errorf("who cannot find out was told %s", text(res))
				}
			}
			cs, _ := f.external(guard.Reconcile(truth(f.path), f.again()), nil)
			var res *mcp.CallToolResult
			eventually(t, "an answer", func() bool { // one that was killed as it asked is waited for
				res = mustCall(t, cs, "pay", payFive)
				return !isUnknown(res)
			})
			if got := observed(t, cs, "pay-1"); got.State != tt.state || (tt.state == "applied") == res.IsError {
				t.Errorf("in the end it is %s, and was told as %s", got.State, text(res))
			}
			again := mustCall(t, blind, "pay", payFive)
			if told, _, _ := strings.Cut(text(res), "\n"); !strings.HasPrefix(text(again), told) || !replayed(again) {
				t.Errorf("sent again it is told as %s, not as %s", text(again), text(res))
			}
			if got, want := f.history(), strings.TrimSpace(tt.history+" "+tt.then); got != want || f.effects() != tt.total {
				t.Errorf("history: %q, want %q, with %d effects, want %d", got, want, f.effects(), tt.total)
			}
		})
	}
}

// leaseEnds waits until nobody alive is known to work on the operation.
func (f *fixture) leaseEnds() {
	f.t.Helper()
	eventually(f.t, "the end of the lease", func() bool {
		rec, err := f.store.Get(f.t.Context(), byHand.Key)
		return errors.Is(err, mcpreplay.ErrNotFound) || err == nil && !rec.Live
	})
}
