// Package faults ends the process at a named point of the write path. It does so
// only by wrapping the seam between a guard and its store, so production code has
// no switch for it.
package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"mcpreplay"
)

// Point names a moment of the write path. The names are stable.
type Point string

// The points, and the exit code each ends the process with.
const (
	// DropAfterCommit: the first outcome is committed, its reply is not sent.
	DropAfterCommit Point = "drop-after-commit"
	// ExitAfterLedgerInsert: the record of an atomic effect is inserted, the
	// effect has not run, nothing is committed.
	ExitAfterLedgerInsert Point = "exit-after-ledger-insert"
	// ExitAfterIssueInsert: an atomic effect has run, nothing is committed.
	ExitAfterIssueInsert Point = "exit-after-issue-insert"
	// ExitAfterPartialFirstCommit: the first step of several is committed.
	ExitAfterPartialFirstCommit Point = "exit-after-partial-first-commit"
)

var codes = map[Point]int{
	DropAfterCommit:             70,
	ExitAfterLedgerInsert:       71,
	ExitAfterIssueInsert:        72,
	ExitAfterPartialFirstCommit: 73,
}

// Parse returns the point of that name. An unknown name is an error: a misspelt
// fault that is never injected would pass for a fault survived.
func Parse(name string) (Point, error) {
	if _, ok := codes[Point(name)]; ok {
		return Point(name), nil
	}
	names := slices.Sorted(maps.Keys(codes))
	known := make([]string, len(names))
	for i, n := range names {
		known[i] = string(n)
	}
	return "", fmt.Errorf("unknown fault point %q; the points are %s", name, strings.Join(known, ", "))
}

// Wrap returns s with the fault at p. exit is called with the point's code, once,
// and must not return: os.Exit.
func Wrap[Tx any](s mcpreplay.Applier[Tx], p Point, exit func(code int)) mcpreplay.Applier[Tx] {
	w := &store[Tx]{Applier: s, point: p}
	w.exit = sync.OnceFunc(func() { exit(codes[p]) })
	return w
}

type store[Tx any] struct {
	mcpreplay.Applier[Tx]
	point Point
	exit  func()
}

func (s *store[Tx]) at(p Point) {
	if s.point == p {
		s.exit()
	}
}

func (s *store[Tx]) Apply(ctx context.Context, op mcpreplay.Operation, effect func(context.Context, Tx) (mcpreplay.Outcome, error)) (mcpreplay.Record, bool, error) {
	rec, started, err := s.Applier.Apply(ctx, op, func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
		s.at(ExitAfterLedgerInsert)
		out, err := effect(ctx, tx)
		if err == nil {
			s.at(ExitAfterIssueInsert)
		}
		return out, err
	})
	if err == nil && started {
		s.at(DropAfterCommit)
	}
	return rec, started, err
}

func (s *store[Tx]) Begin(ctx context.Context, op mcpreplay.Operation, first mcpreplay.Change) (mcpreplay.Record, bool, error) {
	rec, started, err := s.Applier.Begin(ctx, op, first)
	if err == nil && started && rec.State.Final() { // a decline or a fence
		s.at(DropAfterCommit)
	}
	return rec, started, err
}

func (s *store[Tx]) ApplyStep(ctx context.Context, c mcpreplay.Change, effect func(context.Context, Tx, *mcpreplay.Change) error) (mcpreplay.Record, error) {
	rec, err := s.Applier.ApplyStep(ctx, c, effect)
	if err == nil {
		s.committed(rec)
	}
	return rec, err
}

func (s *store[Tx]) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	rec, err := s.Applier.Advance(ctx, c)
	if err == nil {
		s.committed(rec)
	}
	return rec, err
}

// committed is where a step or the outcome of several is durable.
func (s *store[Tx]) committed(rec mcpreplay.Record) {
	if rec.State.Final() {
		s.at(DropAfterCommit)
		return
	}
	s.at(ExitAfterPartialFirstCommit)
}
