package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mcpreplay"
)

// Step is one of several effects, made by Do or DoTx. P is what the steps of a tool
// know of each other: a struct that encoding/json can keep.
type Step[In, P any] struct {
	err    error
	name   string
	stores []mcpreplay.Store
	run    part[In, P]
	undo   part[In, P] // its do is nil if there is nothing to undo, or nothing can
}

// part runs a step, or its compensation, and records that it succeeded.
type part[In, P any] struct {
	// do is set for a part outside the ledger's transaction.
	do func(ctx context.Context, op *Op, in In, p *P) error

	// within is set for one inside it: it makes change in one transaction with fn.
	within func(ctx context.Context, change mcpreplay.Change, op *Op, in In, p *P, seal func(*mcpreplay.Change, *Op, *P) error) (mcpreplay.Record, error)
}

func (p part[In, P]) none() bool { return p.do == nil && p.within == nil }

// Do is a step somewhere else. That it is attempted is recorded before run is called,
// and what became of it after. run tells a definite failure by NotApplied or TryAgain;
// after any other error nobody knows whether it happened, and everything stops.
//
// undo compensates for it, if a later step fails for certain. It may be nil: then
// what was done stays.
func Do[In, P any](name string, run, undo func(ctx context.Context, op *Op, in In, p *P) error) Step[In, P] {
	s := Step[In, P]{name: name, run: part[In, P]{do: run}, undo: part[In, P]{do: undo}}
	if run == nil {
		s.err = fmt.Errorf("the step %q does nothing", name)
	}
	return s
}

// DoTx is a step in a transaction of the ledger of its own: it commits with its event
// or not at all, so that any error of it is definite. run and undo may be called more
// than once and must touch nothing but tx and what they are given.
func DoTx[Tx, In, P any](s mcpreplay.Applier[Tx], name string, run, undo func(ctx context.Context, tx Tx, op *Op, in In, p *P) error) Step[In, P] {
	step := Step[In, P]{name: name, stores: []mcpreplay.Store{s}, run: within(s, run), undo: within(s, undo)}
	if run == nil {
		step.err = fmt.Errorf("the step %q does nothing", name)
	}
	return step
}

func within[Tx, In, P any](s mcpreplay.Applier[Tx], fn func(context.Context, Tx, *Op, In, *P) error) part[In, P] {
	if fn == nil {
		return part[In, P]{}
	}
	return part[In, P]{within: func(ctx context.Context, change mcpreplay.Change, op *Op, in In, p *P, seal func(*mcpreplay.Change, *Op, *P) error) (mcpreplay.Record, error) {
		var onceOp Op
		var onceP P
		rec, err := s.ApplyStep(ctx, change, func(ctx context.Context, tx Tx, c *mcpreplay.Change) error {
			onceOp, onceP = *op, *p // a second call starts as the first did
			if err := fn(ctx, tx, &onceOp, in, &onceP); err != nil {
				return err
			}
			return seal(c, &onceOp, &onceP)
		})
		if err == nil || errors.Is(err, mcpreplay.ErrUnknown) {
			*op, *p = onceOp, onceP
		}
		return rec, err
	}}
}

// Steps is several effects in order, each recorded when it is done. If all are, the
// operation is applied. If one fails for certain, those before it are compensated,
// newest first; then it is partial, or, if none was done, nothing happened and the
// same call may be sent again. A step of which nobody knows whether it happened stops
// everything and compensates nothing: the operation is unknown. No step is ever run
// again.
//
// If the owner ends between two steps, the operation is settled by what the ledger
// knows: nothing compensates then, and what was done stays done.
//
// finish makes the result, of an operation that is applied or partial: op.State and
// op.Steps tell which, and how far it came. It must have no effect of its own, and
// may be called in another process than the steps.
func Steps[In, P, Out any](finish func(ctx context.Context, op *Op, in In, p P) (Out, error), steps ...Step[In, P]) Effect[In, Out] {
	e := Effect[In, Out]{keeps: true}
	names := map[string]bool{}
	for _, s := range steps {
		e.stores = append(e.stores, s.stores...)
		switch {
		case s.err != nil:
			e.err = s.err
		case s.name == "" || len(s.name) > 64 || names[s.name]:
			e.err = fmt.Errorf("a step needs a name of its own, of at most 64 bytes (got %.80q)", s.name)
		}
		names[s.name] = true
	}
	if len(steps) == 0 {
		e.err = errors.New("guard.Steps needs steps")
	}
	e.run = func(ctx context.Context, w *work, in In, encode encoder[Out]) (mcpreplay.Record, bool, error) {
		r := &stepRun[In, P, Out]{work: w, steps: steps, finish: finish, in: in, encode: encode}
		return r.run(ctx)
	}
	e.settle = func(ctx context.Context, op *Op, rec mcpreplay.Record, in In, encode encoder[Out]) (settlement, error) {
		r := &stepRun[In, P, Out]{work: &work{op: op, o: rec.Operation, memo: rec.Memo}, steps: steps, finish: finish, in: in, encode: encode}
		return r.settle(ctx, rec)
	}
	return e
}

// Steps are the steps of the operation that were begun, in order.
func (o *Op) Steps() mcpreplay.Steps { return slices.Clone(o.steps) }

// State is how an operation of steps ends: applied or partial. It is for the function
// that makes its result.
func (o *Op) State() mcpreplay.State { return o.state }

// stepRun is one owner's way through the steps.
type stepRun[In, P, Out any] struct {
	*work
	steps  []Step[In, P]
	finish func(context.Context, *Op, In, P) (Out, error)
	in     In
	p      P
	encode encoder[Out]
	claim  *claim
}

func (r *stepRun[In, P, Out]) run(ctx context.Context) (mcpreplay.Record, bool, error) {
	if err := r.allowed(ctx); err != nil {
		return mcpreplay.Record{}, false, err
	}
	each := r.timeout
	r.timeout = time.Duration(2*len(r.steps)) * (each + effectGrace) // with every compensation
	r.op.sent = true
	c, rec, err := r.g.claim(ctx, r.work)
	if c == nil {
		return rec, false, err
	}
	r.timeout, r.claim, r.op.Attempt = each, c, rec.Attempt
	// Once claimed, the steps go on whether or not somebody still listens.
	detached, gone := context.WithCancelCause(context.WithoutCancel(ctx))
	defer gone(nil)
	c.gone = gone
	stop := c.keep(detached)
	defer stop()
	return r.forward(detached)
}

// forward runs the steps in order.
func (r *stepRun[In, P, Out]) forward(ctx context.Context) (mcpreplay.Record, bool, error) {
	for i, s := range r.steps {
		err := r.part(ctx, mcpreplay.EventStep, s.name, s.run)
		if err == nil {
			continue
		}
		var failed *definiteError
		if !errors.As(err, &failed) {
			return r.inDoubt(ctx, s.name, err)
		}
		if r.op.steps.Succeeded() == 0 {
			return r.conclude(ctx, r.claim, ending{err: err})
		}
		if err := r.compensate(ctx, r.steps[:i]); err != nil {
			return r.inDoubt(ctx, s.name, err)
		}
		rec, err := r.claim.write(ctx, r.claim.finish(mcpreplay.StatePartial, r.result(ctx, mcpreplay.StatePartial), r.op.effect, s.name+" failed: "+failed.Error()))
		return rec, true, err
	}
	rec, err := r.claim.write(ctx, r.claim.finish(mcpreplay.StateApplied, r.result(ctx, mcpreplay.StateApplied), r.op.effect, ""))
	return rec, true, err
}

// inDoubt stops where nobody knows what happened, or where the claim is lost.
func (r *stepRun[In, P, Out]) inDoubt(ctx context.Context, step string, why error) (mcpreplay.Record, bool, error) {
	if errors.Is(why, errLost) {
		return r.claim.record(), true, why
	}
	rec, err := r.claim.write(ctx, r.claim.doubt(step+": "+why.Error()))
	var ledger *ledgerError
	if errors.As(why, &ledger) {
		why = ledger.err
	}
	return rec, true, errors.Join(fmt.Errorf("step %s: %w", step, why), err)
}

// compensate undoes what was done, newest first. What cannot be undone for certain
// is told and passed over; after a compensation that nobody knows the outcome of
// there are no others. The error is about the ledger.
func (r *stepRun[In, P, Out]) compensate(ctx context.Context, done []Step[In, P]) error {
	for _, s := range slices.Backward(done) {
		if s.undo.none() {
			continue
		}
		err := r.part(ctx, mcpreplay.EventCompensation, s.name, s.undo)
		var failed *definiteError
		var ledger *ledgerError
		switch {
		case err == nil, errors.As(err, &failed):
		case errors.Is(err, errLost), errors.As(err, &ledger):
			return err
		default:
			r.g.opts.Logger.Error("nobody knows whether a step was compensated", "operation", r.o.ID, "step", s.name, "error", err)
			return nil
		}
	}
	return nil
}

// ledgerError is a step whose event could not be recorded.
type ledgerError struct{ err error }

func (e *ledgerError) Error() string { return "what became of it could not be recorded" }
func (e *ledgerError) Unwrap() error { return e.err }

// part runs a step or a compensation and records what became of it. A *definiteError
// says that it did not happen, and that this is recorded unless it is the first; any
// other error that nobody knows, or that the record is not this owner's any more.
func (r *stepRun[In, P, Out]) part(ctx context.Context, kind mcpreplay.EventKind, name string, p part[In, P]) error {
	var err error
	if p.within != nil {
		err = r.inside(ctx, kind, name, p)
	} else {
		err = r.outside(ctx, kind, name, p)
	}
	if err == nil {
		r.op.steps = r.op.steps.With(r.event(kind, name, mcpreplay.OutcomeSucceeded))
		return nil
	}
	var failed *definiteError
	if errors.As(err, &failed) && (kind == mcpreplay.EventCompensation || r.op.steps.Succeeded() > 0) {
		e := r.event(kind, name, mcpreplay.OutcomeFailed)
		r.op.steps = r.op.steps.With(e)
		e.Evidence = evidence(failed.Error())
		if _, err := r.claim.advance(ctx, mcpreplay.Change{Event: e}, r.g.store.Advance); err != nil {
			return &ledgerError{err}
		}
	}
	return err
}

func (r *stepRun[In, P, Out]) event(kind mcpreplay.EventKind, name, outcome string) mcpreplay.Event {
	return mcpreplay.Event{Kind: kind, Step: name, Outcome: outcome, Actor: r.claim.owner}
}

// inside runs a part in the ledger's transaction. Its failure is definite, as it is
// rolled back.
func (r *stepRun[In, P, Out]) inside(ctx context.Context, kind mcpreplay.EventKind, name string, p part[In, P]) error {
	op, progress := *r.op, r.p
	_, err := r.claim.advance(ctx, mcpreplay.Change{Event: r.event(kind, name, mcpreplay.OutcomeSucceeded)},
		func(ctx context.Context, c mcpreplay.Change) (mcpreplay.Record, error) {
			*r.op, r.p = op, progress // each time anew
			return p.within(ctx, c, r.op, r.in, &r.p, r.seal)
		})
	var effect *mcpreplay.EffectError
	switch {
	case errors.As(err, &effect):
		var definite *definiteError
		if errors.As(effect.Err, &definite) {
			return definite
		}
		return &definiteError{err: effect, again: true}
	case err != nil:
		return &ledgerError{err}
	}
	return nil
}

// outside runs a part somewhere else: that it is attempted is durable before.
func (r *stepRun[In, P, Out]) outside(ctx context.Context, kind mcpreplay.EventKind, name string, p part[In, P]) error {
	attempted := r.event(kind, name, mcpreplay.OutcomeAttempted)
	if _, err := r.claim.advance(ctx, mcpreplay.Change{Event: attempted}, r.g.store.Advance); err != nil {
		return &ledgerError{err}
	}
	r.op.steps = r.op.steps.With(attempted)
	op, progress := *r.op, r.p
	if _, err := bounded(ctx, r.timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.do(ctx, &op, r.in, &progress)
	}); err != nil {
		return err
	}
	*r.op, r.p = op, progress
	change := mcpreplay.Change{Event: r.event(kind, name, mcpreplay.OutcomeSucceeded)}
	if err := r.seal(&change, r.op, &r.p); err != nil {
		return err
	}
	if _, err := r.claim.advance(ctx, change, r.g.store.Advance); err != nil {
		return &ledgerError{err}
	}
	return nil
}

// seal adds to a change what is known once a part has succeeded.
func (r *stepRun[In, P, Out]) seal(c *mcpreplay.Change, op *Op, p *P) error {
	kept, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("what the steps know cannot be kept: %w", err)
	}
	var m memo
	if err := json.Unmarshal(r.memo, &m); err != nil {
		return err
	}
	m.Progress = kept
	if c.Memo, err = json.Marshal(m); err != nil {
		return err
	}
	c.Effect = op.effect
	return nil
}

// result is the stored result of what has ended in state.
func (r *stepRun[In, P, Out]) result(ctx context.Context, state mcpreplay.State) mcpreplay.Result {
	op := *r.op
	op.state = state
	out, err := bounded(ctx, r.timeout, func(ctx context.Context) (Out, error) { return r.finish(ctx, &op, r.in, r.p) })
	if err == nil {
		return keepable(r.encode, out, state)
	}
	r.work.log().Error("the result of steps cannot be made", "operation", op.ID, "error", err)
	return failure(told(op.steps, state))
}

// told says in words how far an operation came.
func told(steps mcpreplay.Steps, state mcpreplay.State) string {
	var parts []string
	for _, s := range steps {
		text := s.Name + " " + s.Outcome
		if s.Compensation != "" {
			text += ", and its compensation " + s.Compensation
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("The operation is %s: %s. Do not repeat it.", state, strings.Join(parts, "; "))
}

// settle is what the ledger alone can tell of an operation of steps whose owner is
// gone. It holds whatever he may still do: no step begins, and none commits, without
// comparing the epoch.
func (r *stepRun[In, P, Out]) settle(ctx context.Context, rec mcpreplay.Record) (settlement, error) {
	var m memo
	if err := json.Unmarshal(rec.Memo, &m); err != nil {
		return settlement{}, err
	}
	if m.Progress != nil {
		if err := json.Unmarshal(m.Progress, &r.p); err != nil {
			return settlement{}, fmt.Errorf("read what the steps knew: %w", err)
		}
	}
	for _, s := range r.op.steps {
		if s.Outcome == mcpreplay.OutcomeAttempted {
			return settlement{evidence: s.Name + " was attempted, and nobody knows whether it happened"}, nil
		}
	}
	r.timeout = time.Second // finish has nothing to wait for
	s := settlement{fenced: true, effect: r.op.effect, evidence: "the steps that the ledger holds"}
	switch r.op.steps.Succeeded() {
	case 0:
		s.to, s.evidence = mcpreplay.StateReleased, "no step was done"
	case len(r.steps):
		s.to, s.result = mcpreplay.StateApplied, r.result(ctx, mcpreplay.StateApplied)
	default:
		s.to, s.result = mcpreplay.StatePartial, r.result(ctx, mcpreplay.StatePartial)
	}
	return s, nil
}
