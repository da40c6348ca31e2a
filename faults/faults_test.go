package faults_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"mcpreplay"
	"mcpreplay/faults"
)

// ledger is the seam with nothing behind it: it calls the effect and reports the
// state it is told to.
type ledger struct {
	mcpreplay.Applier[int]
	state mcpreplay.State
}

func (l ledger) Apply(ctx context.Context, op mcpreplay.Operation, effect func(context.Context, int) (mcpreplay.Outcome, error)) (mcpreplay.Record, bool, error) {
	_, err := effect(ctx, 0)
	return mcpreplay.Record{State: l.state}, err == nil, err
}

func (l ledger) ApplyStep(ctx context.Context, c mcpreplay.Change, effect func(context.Context, int, *mcpreplay.Change) error) (mcpreplay.Record, error) {
	return mcpreplay.Record{State: l.state}, effect(ctx, 0, &c)
}

func (l ledger) Advance(context.Context, mcpreplay.Change) (mcpreplay.Record, error) {
	return mcpreplay.Record{State: l.state}, nil
}

type exited int

// run calls f and returns the code it exited with, or 0.
func run(f func()) (code int) {
	defer func() {
		if p := recover(); p != nil {
			code = int(p.(exited))
		}
	}()
	f()
	return 0
}

func exit(code int) { panic(exited(code)) }

func TestPointsEndTheProcessWhereTheySay(t *testing.T) {
	ctx := context.Background()
	var ran bool
	effect := func(context.Context, int) (mcpreplay.Outcome, error) { ran = true; return mcpreplay.Outcome{}, nil }
	failing := func(context.Context, int) (mcpreplay.Outcome, error) { return mcpreplay.Outcome{}, errors.New("no") }
	apply := func(s mcpreplay.Applier[int]) { s.Apply(ctx, mcpreplay.Operation{}, effect) }
	fail := func(s mcpreplay.Applier[int]) { s.Apply(ctx, mcpreplay.Operation{}, failing) }
	step := func(s mcpreplay.Applier[int]) {
		s.ApplyStep(ctx, mcpreplay.Change{}, func(context.Context, int, *mcpreplay.Change) error { return nil })
	}
	advance := func(s mcpreplay.Applier[int]) { s.Advance(ctx, mcpreplay.Change{}) }

	tests := []struct {
		name  string
		point faults.Point
		state mcpreplay.State
		do    func(mcpreplay.Applier[int])
		code  int
		ran   bool
	}{
		{"71 before the effect", faults.ExitAfterLedgerInsert, mcpreplay.StateApplied, apply, 71, false},
		{"72 after the effect", faults.ExitAfterIssueInsert, mcpreplay.StateApplied, apply, 72, true},
		{"72 not after a failed effect", faults.ExitAfterIssueInsert, mcpreplay.StateApplied, fail, 0, false},
		{"70 after the commit", faults.DropAfterCommit, mcpreplay.StateApplied, apply, 70, true},
		{"70 not after a failed effect", faults.DropAfterCommit, mcpreplay.StateApplied, fail, 0, false},
		{"70 after the last of several", faults.DropAfterCommit, mcpreplay.StatePartial, advance, 70, false},
		{"70 not after a step", faults.DropAfterCommit, mcpreplay.StateInProgress, step, 0, false},
		{"73 after a step", faults.ExitAfterPartialFirstCommit, mcpreplay.StateInProgress, step, 73, false},
		{"73 not for an atomic effect", faults.ExitAfterPartialFirstCommit, mcpreplay.StateApplied, apply, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ran = false
			s := faults.Wrap[int](ledger{state: tt.state}, tt.point, exit)
			if got := run(func() { tt.do(s) }); got != tt.code {
				t.Errorf("exit code = %d, want %d", got, tt.code)
			}
			if ran != tt.ran {
				t.Errorf("effect ran = %v, want %v", ran, tt.ran)
			}
		})
	}
}

func TestUnknownPointIsRefused(t *testing.T) {
	for _, name := range []string{"", "drop-after-comit", "DROP-AFTER-COMMIT"} {
		_, err := faults.Parse(name)
		if err == nil || !strings.Contains(err.Error(), "drop-after-commit") {
			t.Errorf("Parse(%q) = %v, want an error that lists the points", name, err)
		}
	}
	if p, err := faults.Parse("exit-after-issue-insert"); err != nil || p != faults.ExitAfterIssueInsert {
		t.Errorf("Parse of a known point = %q, %v", p, err)
	}
}
