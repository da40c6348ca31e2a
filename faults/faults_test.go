package faults_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mcpreplay"
	"mcpreplay/faults"
)

// points are all there are, with what can be done at each and its exit code.
var points = []struct {
	name    string
	actions string
	code    int
}{
	{"before-write", "exit error hold", 75},
	{"after-ledger-insert", "exit error panic hold", 71},
	{"after-issue-insert", "exit error panic hold", 72},
	{"after-commit", "exit error hold", 70},
	{"after-rollback", "exit hold", 74},
	{"after-partial-first-commit", "exit hold", 73},
	{"in-write-1", "exit error panic hold", 76},
	{"in-write-12", "exit error panic hold", 76},
	{"after-write-1", "exit hold", 77},
	{"after-write-12", "exit hold", 77},
}

func TestParseKnowsEveryActionAtEveryPoint(t *testing.T) {
	for _, p := range points {
		for _, action := range []string{"exit", "error", "panic", "hold"} {
			name := action + "-" + p.name
			f, err := faults.Parse(name)
			if may := slices.Contains(strings.Fields(p.actions), action); may != (err == nil) {
				t.Errorf("Parse(%q) returns %v, want it to be allowed: %v", name, err, may)
				continue
			}
			if err != nil {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("Parse(%q) returns %q, which does not name it", name, err)
				}
				continue
			}
			if f.String() != name || string(f.Action) != action || f.Code() != p.code {
				t.Errorf("Parse(%q) = %s with code %d, want code %d", name, f, f.Code(), p.code)
			}
		}
	}
	if f, err := faults.Parse(faults.DropAfterCommit); err != nil || f.String() != "exit-after-commit" {
		t.Errorf("Parse(%q) = %s, %v", faults.DropAfterCommit, f, err)
	}
}

// A misspelt fault that is never injected would pass for a fault survived.
func TestParseRefusesWhatIsNoFault(t *testing.T) {
	for _, name := range []string{
		"", "-", "exit", "exit-", "after-commit", "drop-after-comit", "DROP-AFTER-COMMIT", "drop-before-write", "exit-after-comit", "Exit-after-commit",
		"exit-after-commit-1", "exit-before-write-1", "exit-in-write", "exit-after-write", "exit-in-write-", "exit-in-write-0", "exit-in-write--1",
		"exit-in-write-01", "exit-in-write-+1", "exit-in-write-1x", "exit-in-write-x", "exit-after-write-1.0", "exit-after-commit ", "exit-after-commit,exit-before-write",
	} {
		if f, err := faults.Parse(name); err == nil || f != (faults.Fault{}) {
			t.Errorf("Parse(%q) = %s, %v, want an error", name, f, err)
		}
	}
	if _, err := faults.Parse("exit-nowhere"); !strings.Contains(fmt.Sprint(err), "drop-after-commit") || !strings.Contains(fmt.Sprint(err), "in-write-N") {
		t.Errorf("an unknown point is refused with %v, which does not list the points", err)
	}
}

// ledger is the seam with nothing behind it. It tells what comes to pass in it.
type ledger struct {
	mcpreplay.Applier[int]
	log []string
}

func (l *ledger) note(what string) { l.log = append(l.log, what) }

// end is the record after a transaction that ended with err.
func (l *ledger) end(to mcpreplay.State, err error) (mcpreplay.Record, error) {
	if err != nil {
		l.note("rolled back")
		return mcpreplay.Record{}, &mcpreplay.EffectError{Err: err}
	}
	l.note("committed")
	return mcpreplay.Record{State: to}, nil
}

func (l *ledger) Apply(ctx context.Context, _ mcpreplay.Operation, effect func(context.Context, int) (mcpreplay.Outcome, error)) (mcpreplay.Record, bool, error) {
	l.note("inserted")
	_, err := effect(ctx, 0)
	rec, err := l.end(mcpreplay.StateApplied, err)
	return rec, err == nil, err
}

func (l *ledger) Begin(context.Context, mcpreplay.Operation, mcpreplay.Change) (mcpreplay.Record, bool, error) {
	rec, err := l.end(mcpreplay.StateInProgress, nil)
	return rec, true, err
}

func (l *ledger) ApplyStep(ctx context.Context, c mcpreplay.Change, effect func(context.Context, int, *mcpreplay.Change) error) (mcpreplay.Record, error) {
	return l.end(c.To, effect(ctx, 0, &c))
}

func (l *ledger) Advance(_ context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	return l.end(c.To, nil)
}

var key = mcpreplay.Key{Principal: "alice", ID: "op-1"}

// modes are the ways to write: in one transaction, in one that fails, and in
// several of which one fails. Each returns its first error.
var modes = map[string]func(*ledger, mcpreplay.Applier[int]) error{
	"one":     func(l *ledger, s mcpreplay.Applier[int]) error { return apply(l, s, nil) },
	"failing": func(l *ledger, s mcpreplay.Applier[int]) error { return apply(l, s, errors.New("no")) },
	"several": several,
}

func apply(l *ledger, s mcpreplay.Applier[int], err error) error {
	_, _, err = s.Apply(context.Background(), mcpreplay.Operation{Key: key}, func(context.Context, int) (mcpreplay.Outcome, error) {
		l.note("effect")
		return mcpreplay.Outcome{}, err
	})
	return err
}

func several(l *ledger, s mcpreplay.Applier[int]) error {
	ctx := context.Background()
	_, _, first := s.Begin(ctx, mcpreplay.Operation{Key: key}, mcpreplay.Change{})
	step := func(to mcpreplay.State, err error) {
		_, err = s.ApplyStep(ctx, mcpreplay.Change{Key: key, To: to}, func(context.Context, int, *mcpreplay.Change) error {
			l.note("effect")
			return err
		})
		if first == nil {
			first = err
		}
	}
	step(mcpreplay.StateInProgress, nil)
	step(mcpreplay.StateInProgress, errors.New("no"))
	_, err := s.Advance(ctx, mcpreplay.Change{Key: key, To: mcpreplay.StatePartial})
	return errors.Join(first, err)
}

// strikes says what has come to pass when a fault strikes: for each point, in each
// mode. A point that is missing is not reached.
var strikes = map[string]map[string]string{
	"one": {
		"before-write":        "",
		"after-ledger-insert": "inserted",
		"after-issue-insert":  "inserted effect",
		"in-write-1":          "inserted effect",
		"after-commit":        "inserted effect committed",
		"after-write-1":       "inserted effect committed",
	},
	"failing": {
		"before-write":        "",
		"after-ledger-insert": "inserted",
		"in-write-1":          "inserted effect",
		"after-rollback":      "inserted effect rolled back",
		"after-write-1":       "inserted effect rolled back",
	},
	"several": {
		"before-write":               "",
		"after-ledger-insert":        "committed",
		"after-write-1":              "committed",
		"after-issue-insert":         "committed effect",
		"in-write-2":                 "committed effect",
		"after-partial-first-commit": "committed effect committed",
		"after-write-2":              "committed effect committed",
		"in-write-3":                 "committed effect committed effect",
		"after-rollback":             "committed effect committed effect rolled back",
		"after-write-3":              "committed effect committed effect rolled back",
		"after-commit":               "committed effect committed effect rolled back committed",
		"after-write-4":              "committed effect committed effect rolled back committed",
	},
}

type exited int

func TestFaultsStrikeWhereTheySay(t *testing.T) {
	for mode, reached := range strikes {
		for _, p := range points[:6] {
			strike(t, mode, p.name, p.actions, p.code, reached)
		}
		for n := 1; n <= 5; n++ {
			strike(t, mode, fmt.Sprintf("in-write-%d", n), "exit error panic hold", 76, reached)
			strike(t, mode, fmt.Sprintf("after-write-%d", n), "exit hold", 77, reached)
		}
	}
}

func strike(t *testing.T, mode, point, actions string, code int, reached map[string]string) {
	for _, action := range strings.Fields(actions) {
		name := action + "-" + point
		t.Run(mode+"/"+name, func(t *testing.T) {
			f, err := faults.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			l := &ledger{}
			var at []string // what had come to pass, at each strike
			struck := func() { at = append(at, strings.Join(l.log, " ")) }
			s := faults.Wrap[int](l, f, faults.Hooks{
				Exit: func(code int) { struck(); panic(exited(code)) },
				Hold: func(_ context.Context, held faults.Fault, operation string) {
					struck()
					if held != f || operation != key.ID {
						t.Errorf("it holds %s at %s", operation, held)
					}
				},
			})
			ended, failed := run(func() error { return modes[mode](l, s) })
			want, strikes := reached[point]
			switch {
			case !strikes && (len(at) > 0 || ended != nil):
				t.Fatalf("it strikes after %q, want never", at)
			case !strikes:
			case action == "exit" && ended != exited(code):
				t.Errorf("it ends with %v, want %d", ended, code)
			case action == "panic" && ended != any("injected at "+name):
				t.Errorf("it panics with %v", ended)
			case action == "error" && !fails(point, mode, failed):
				t.Errorf("it fails with %v", failed)
			case (action == "exit" || action == "hold") && !slices.Equal(at, []string{want}):
				t.Errorf("it strikes after %q, want %q", at, want)
			case action == "panic" && strings.Join(l.log, " ") != want:
				t.Errorf("it panics after %q, want %q", l.log, want)
			}
			at = nil
			if again, _ := run(func() error { return modes[mode](l, s) }); strikes && (again != nil || len(at) > 0) {
				t.Errorf("it strikes twice: %v", again)
			}
		})
	}
}

// run returns what f panics with, or its error.
func run(f func() error) (ended any, err error) {
	defer func() { ended = recover() }()
	err = f()
	return ended, err
}

// fails reports whether err is what a fault with an error at that point leads to. A
// claim is committed when its error is told, and nothing is definite after that.
func fails(point, mode string, err error) bool {
	var effect *mcpreplay.EffectError
	switch {
	case point == "before-write":
		return errors.Is(err, mcpreplay.ErrUnavailable)
	case point == "after-commit":
		return errors.Is(err, mcpreplay.ErrUnknown)
	case point == "after-ledger-insert" && mode == "several":
		return err != nil && strings.HasPrefix(err.Error(), "InjectedFailure")
	}
	return errors.As(err, &effect) && effect.Err.Error() == "InjectedFailure"
}

// What one fault makes fail has failed for the one around it.
func TestFaultsCanBeCombined(t *testing.T) {
	l := &ledger{}
	inner := faults.Wrap[int](l, faults.Fault{Action: faults.Fail, Point: faults.AfterIssueInsert}, faults.Hooks{})
	s := faults.Wrap(inner, faults.Fault{Action: faults.Exit, Point: faults.AfterRollback}, faults.Hooks{Exit: func(code int) { panic(exited(code)) }})
	if ended, _ := run(func() error { return apply(l, s, nil) }); ended != exited(74) {
		t.Errorf("it ends with %v, want 74", ended)
	}
	if got := strings.Join(l.log, " "); got != "inserted effect rolled back" {
		t.Errorf("before that came %q", got)
	}
}

// The transactions of each operation are counted apart.
func TestWritesAreCountedByOperation(t *testing.T) {
	l := &ledger{}
	var at []string
	s := faults.Wrap[int](l, faults.Fault{Action: faults.Hold, Point: faults.AfterWrite, Write: 2}, faults.Hooks{
		Hold: func(_ context.Context, _ faults.Fault, operation string) { at = append(at, operation) },
	})
	for _, id := range []string{"op-1", "op-2", "op-2", "op-1"} {
		if _, err := s.Advance(context.Background(), mcpreplay.Change{Key: mcpreplay.Key{ID: id}}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(at, []string{"op-2"}) {
		t.Errorf("it strikes at %v, want at the second write of op-2, once", at)
	}
}
