package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"mcpreplay"
)

// Hooks are what a fault needs of the process it is in.
type Hooks struct {
	// Exit ends the process and does not return: os.Exit.
	Exit func(code int)

	// Hold is called at the point, with the id of the operation, and returns when
	// the write may go on. ctx is that of the write there.
	Hold func(ctx context.Context, f Fault, operation string)
}

// errInjected is the error of an effect that was told to fail.
var errInjected = errors.New("InjectedFailure")

// Wrap returns s with the fault f.
func Wrap[Tx any](s mcpreplay.Applier[Tx], f Fault, h Hooks) mcpreplay.Applier[Tx] {
	return &store[Tx]{Applier: s, fault: f, hooks: h}
}

type store[Tx any] struct {
	mcpreplay.Applier[Tx]
	fault Fault
	hooks Hooks

	mu     sync.Mutex
	done   bool
	writes map[mcpreplay.Key]int // transactions of each operation so far
}

// at is called at every point. The error is what to return there instead of going
// on.
func (s *store[Tx]) at(ctx context.Context, p Point, n int, operation string) error {
	s.mu.Lock()
	here := !s.done && s.fault.Point == p && s.fault.Write == n
	s.done = s.done || here
	s.mu.Unlock()
	if !here {
		return nil
	}
	switch s.fault.Action {
	case Exit:
		s.hooks.Exit(codes[p])
	case Hold:
		s.hooks.Hold(ctx, s.fault, operation)
	case Panic:
		panic(fmt.Sprintf("injected at %s", s.fault))
	case Fail:
		return s.failure(p)
	}
	return nil
}

// failure is what a store or an effect says when it fails at p.
func (s *store[Tx]) failure(p Point) error {
	switch p {
	case BeforeWrite:
		return fmt.Errorf("%w: injected", mcpreplay.ErrUnavailable)
	case AfterCommit: // committed, and the confirmation is lost
		return fmt.Errorf("%w: injected", mcpreplay.ErrUnknown)
	}
	return errInjected
}

// write counts a transaction of an operation.
func (s *store[Tx]) write(key mcpreplay.Key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writes == nil {
		s.writes = make(map[mcpreplay.Key]int)
	}
	s.writes[key]++
	return s.writes[key]
}

func (s *store[Tx]) Apply(ctx context.Context, op mcpreplay.Operation, effect func(context.Context, Tx) (mcpreplay.Outcome, error)) (mcpreplay.Record, bool, error) {
	if err := s.at(ctx, BeforeWrite, 0, op.ID); err != nil {
		return mcpreplay.Record{}, false, err
	}
	n := s.write(op.Key)
	rec, started, err := s.Applier.Apply(ctx, op, func(ctx context.Context, tx Tx) (mcpreplay.Outcome, error) {
		if err := s.at(ctx, AfterLedgerInsert, 0, op.ID); err != nil {
			return mcpreplay.Outcome{}, err
		}
		out, err := effect(ctx, tx)
		if err == nil {
			err = s.at(ctx, AfterIssueInsert, 0, op.ID)
		}
		return out, s.inWrite(ctx, n, op.ID, err)
	})
	if failed := s.after(ctx, rec, n, started, op.ID, err); failed != nil {
		return mcpreplay.Record{}, false, failed
	}
	return rec, started, err
}

func (s *store[Tx]) Begin(ctx context.Context, op mcpreplay.Operation, first mcpreplay.Change) (mcpreplay.Record, bool, error) {
	if err := s.at(ctx, BeforeWrite, 0, op.ID); err != nil {
		return mcpreplay.Record{}, false, err
	}
	n := s.write(op.Key)
	rec, started, err := s.Applier.Begin(ctx, op, first)
	if err == nil && started && !rec.State.Final() {
		if err := s.at(ctx, AfterLedgerInsert, 0, op.ID); err != nil {
			return rec, true, err
		}
	}
	if failed := s.after(ctx, rec, n, started, op.ID, err); failed != nil {
		return mcpreplay.Record{}, false, failed
	}
	return rec, started, err
}

func (s *store[Tx]) ApplyStep(ctx context.Context, c mcpreplay.Change, effect func(context.Context, Tx, *mcpreplay.Change) error) (mcpreplay.Record, error) {
	n := s.write(c.Key)
	rec, err := s.Applier.ApplyStep(ctx, c, func(ctx context.Context, tx Tx, c *mcpreplay.Change) error {
		err := effect(ctx, tx, c)
		if err == nil {
			err = s.at(ctx, AfterIssueInsert, 0, c.Key.ID)
		}
		return s.inWrite(ctx, n, c.Key.ID, err)
	})
	if err == nil && !rec.State.Final() {
		s.at(ctx, AfterPartialFirstCommit, 0, c.Key.ID)
	}
	if failed := s.after(ctx, rec, n, true, c.Key.ID, err); failed != nil {
		return mcpreplay.Record{}, failed
	}
	return rec, err
}

func (s *store[Tx]) Advance(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
	if c.Event.Kind == "" && c.Lease != 0 { // a renewal, which comes whenever it is time
		return s.Applier.Advance(ctx, c)
	}
	n := s.write(c.Key)
	rec, err := s.Applier.Advance(ctx, c)
	if failed := s.after(ctx, rec, n, true, c.Key.ID, err); failed != nil {
		return mcpreplay.Record{}, failed
	}
	return rec, err
}

// Outside is where an effect outside the ledger has happened, and its outcome is not
// recorded: AfterIssueInsert. s is what Wrap returned, or a store without faults.
func Outside[Tx any](ctx context.Context, s mcpreplay.Applier[Tx], operation string) error {
	for {
		w, wrapped := s.(*store[Tx])
		if !wrapped {
			return nil
		}
		if err := w.at(ctx, AfterIssueInsert, 0, operation); err != nil {
			return err
		}
		s = w.Applier
	}
}

// inWrite is where the effect of a transaction has ended with err, before the
// transaction does. What is injected takes the place of what the effect said.
func (s *store[Tx]) inWrite(ctx context.Context, n int, operation string, err error) error {
	if injected := s.at(ctx, InWrite, n, operation); injected != nil {
		return injected
	}
	return err
}

// after is where a transaction has ended, one way or the other.
func (s *store[Tx]) after(ctx context.Context, rec mcpreplay.Record, n int, started bool, operation string, err error) error {
	var effect *mcpreplay.EffectError
	if errors.As(err, &effect) {
		s.at(ctx, AfterRollback, 0, operation)
	}
	if err == nil && started && rec.State.Final() {
		if failed := s.at(ctx, AfterCommit, 0, operation); failed != nil {
			return failed
		}
	}
	s.at(ctx, AfterWrite, n, operation)
	return nil
}
