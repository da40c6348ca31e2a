package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"mcpreplay"
)

// Finding is what a reconciler found. The constructors make one: Found, Absent,
// Fenced and Undecided.
type Finding[Out any] struct {
	to       mcpreplay.State // "" if nothing was found out
	out      Out
	fenced   bool
	evidence string
}

// Found says that the effect happened, and what its result is. evidence says how
// that is known, for the record.
func Found[Out any](out Out, evidence string) Finding[Out] {
	return Finding[Out]{to: mcpreplay.StateApplied, out: out, evidence: evidence}
}

// Absent says that the effect has not happened: the system of record would know of
// it, at once and for certain. A source that is only eventually consistent proves
// nothing by its silence. It settles the operation as not_applied only once the
// effect can no longer be running: until then a paused owner could still wake up.
func Absent[Out any](evidence string) Finding[Out] {
	return Finding[Out]{to: mcpreplay.StateNotApplied, evidence: evidence}
}

// Fenced says that the effect has not happened and can never happen, because the
// system of record itself refuses it from now on. It settles the operation as
// not_applied at once.
func Fenced[Out any](evidence string) Finding[Out] {
	return Finding[Out]{to: mcpreplay.StateNotApplied, fenced: true, evidence: evidence}
}

// Undecided says that the system of record does not tell. The operation stays
// unknown, with the reason.
func Undecided[Out any](reason string) Finding[Out] {
	return Finding[Out]{evidence: reason}
}

// Reconcile gives an external effect a question to its system of record: ask finds
// out what became of an operation whose owner is gone. It must only read, and look
// for the operation's own id (or key, or a marker written into the effect): that
// something equal is there proves nothing about who made it.
//
// It runs when a client asks for the status or sends the call again, and in
// Guard.Recover; never twice at once for one operation; and for at most
// Options.ReconcileTimeout. It may be called from another process than the one that
// ran the effect. What it needs of the request is kept in the ledger with the claim,
// until the operation is settled: in, the answers, and what op says.
func Reconcile[In, Out any](ask func(ctx context.Context, op *Op, in In) (Finding[Out], error), e Effect[In, Out]) Effect[In, Out] {
	if e.err == nil && !e.claims {
		e.err = errors.New("guard.Reconcile is for an external effect: an atomic one is never left in doubt")
	}
	e.keeps = true
	e.settle = func(ctx context.Context, op *Op, rec mcpreplay.Record, in In, encode encoder[Out]) (settlement, error) {
		found, err := ask(ctx, op, in)
		if err != nil {
			return settlement{}, err
		}
		s := settlement{to: found.to, fenced: found.fenced, evidence: found.evidence, effect: op.effect}
		switch found.to {
		case mcpreplay.StateApplied:
			s.result = keepable(encode, found.out, mcpreplay.StateApplied)
		case mcpreplay.StateNotApplied:
			s.result = failure("Operation " + rec.ID + " was not done. It never reached the system that does it, and nothing can follow under this operation id.")
		}
		return s, nil
	}
	return e
}

// settlement is a finding without its type.
type settlement struct {
	to       mcpreplay.State
	fenced   bool // it holds whatever a paused owner may still do
	result   mcpreplay.Result
	effect   string
	evidence string
}

// memo is what is kept of a request for whoever has to find out what became of it.
type memo struct {
	Arguments json.RawMessage            `json:"arguments"`
	Answers   map[string]json.RawMessage `json:"answers,omitempty"`
	Progress  json.RawMessage            `json:"progress,omitempty"` // what the steps know of each other
}

// skew bounds what the clocks of a ledger's hosts may differ by, when it is decided
// that an effect cannot be running any more.
const skew = 5 * time.Second

// Asking an operation's system of record again waits longer each time.
const (
	askAgain      = time.Second
	askAgainLater = time.Minute
)

// reconcile finds out what became of rec, if its owner is gone and its tool can ask.
// It returns the record as it is then.
func (g *Guard) reconcile(ctx context.Context, rec mcpreplay.Record) mcpreplay.Record {
	t := g.tool(rec.Tool, rec.Version)
	if t == nil || t.settle == nil || rec.State != mcpreplay.StateInProgress || rec.Live || g.askedLately(ctx, rec) {
		return rec
	}
	log := g.opts.Logger.With("tool", rec.Tool, "operation", rec.ID)
	asker := g.owner + ".r" + strconv.FormatInt(g.claims.Add(1), 10)
	limit := g.opts.ReconcileTimeout
	held, err := g.store.Advance(ctx, mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision, Owner: asker, Lease: limit + effectGrace + skew,
		Event: mcpreplay.Event{Kind: mcpreplay.EventReconcile, Outcome: "attempted", Actor: asker},
	})
	if err != nil { // somebody else is asking, or it has been settled: look again
		if now, err := g.store.Get(ctx, rec.Key); err == nil {
			return now
		}
		return rec
	}
	// What was begun is ended, whoever has stopped waiting for it.
	ctx = context.WithoutCancel(ctx)
	s, err := bounded(ctx, limit, func(ctx context.Context) (settlement, error) {
		op := g.opOf(rec)
		events, err := g.store.Events(ctx, rec.Key)
		if err != nil {
			return settlement{}, err
		}
		op.steps = mcpreplay.StepsOf(events)
		return t.settle(ctx, op, rec)
	})
	c := &claim{g: g, owner: asker, rec: held}
	change := c.settled(s, err)
	ctx, cancel := context.WithTimeout(ctx, g.opts.Wait)
	defer cancel()
	change.Key, change.Revision = held.Key, held.Revision
	now, err := g.store.Advance(ctx, change)
	if err != nil { // its owner woke up and told, or the ledger cannot be used: look
		log.Warn("what was found is not recorded", "found", change.To, "error", err)
		if now, err = g.store.Get(ctx, rec.Key); err != nil {
			return held
		}
		return now
	}
	log.Info("reconciled", "state", now.State, "evidence", change.Event.Evidence)
	return now
}

// settled is the change that a finding makes.
func (c *claim) settled(s settlement, err error) mcpreplay.Change {
	why := s.evidence
	switch {
	case err != nil:
		why = "asking failed: " + err.Error()
	case s.to == mcpreplay.StateNotApplied && !s.fenced && !c.over():
		why = fmt.Sprintf("not there (%s), but its effect may still be running until %s", s.evidence, c.g.mayRun(c.rec).UTC().Format(time.RFC3339))
	case s.to == mcpreplay.StateReleased:
		return c.release(s.evidence)
	case s.to != "":
		result := s.result
		return mcpreplay.Change{To: s.to, Owner: c.owner, Result: &result, Effect: s.effect,
			Event: mcpreplay.Event{Kind: mcpreplay.EventSettle, Actor: c.owner, Evidence: evidence(s.evidence)}}
	}
	return mcpreplay.Change{Lease: -1,
		Event: mcpreplay.Event{Kind: mcpreplay.EventReconcile, Outcome: "failed", Actor: c.owner, Evidence: evidence(why)}}
}

// mayRun is until when the effect of a claim whose owner is silent may still begin
// or go on: its own deadline, and what a lease and the clocks may add to it.
func (g *Guard) mayRun(rec mcpreplay.Record) time.Time {
	return rec.Deadline.Add(effectGrace + g.opts.Lease + skew)
}

func (c *claim) over() bool { return c.rec.Ledger.Time.After(c.g.mayRun(c.rec)) }

// askedLately reports whether it is too early to ask about rec again.
func (g *Guard) askedLately(ctx context.Context, rec mcpreplay.Record) bool {
	events, err := g.store.Events(ctx, rec.Key)
	if err != nil {
		return true
	}
	wait, last := time.Duration(0), time.Time{}
	for _, e := range events {
		if e.Kind == mcpreplay.EventReconcile && e.Outcome == "failed" {
			wait = min(max(2*wait, askAgain), askAgainLater)
			last = e.At
		}
	}
	if end := g.mayRun(rec); last.Before(end) && rec.Ledger.Time.After(end) {
		return false // what was there to be said then and what can be said now differ
	}
	return !last.IsZero() && rec.Ledger.Time.Before(last.Add(wait))
}

// opOf is what a reconciler may know of its operation.
func (g *Guard) opOf(rec mcpreplay.Record) *Op {
	op := &Op{ID: rec.ID, Principal: rec.Principal, Attempt: rec.Attempt, backend: g.info.Backend, effect: rec.Effect}
	var m memo
	if json.Unmarshal(rec.Memo, &m) == nil {
		op.answers = m.Answers
	}
	return op
}

// Recovery is what Guard.Recover found of operations whose owner is gone.
type Recovery struct {
	Looked  int // operations in progress
	Live    int // of these, how many still have an owner
	Settled int // how many were settled now
	Unknown int // how many stay unknown
}

// Recover asks about every operation in progress whose owner is gone and whose tool
// has a reconciler, or is made of steps. each, if not nil, is told of every one that
// was looked at, as it is then. It never runs an effect. Any number of processes may
// do so at once.
func (g *Guard) Recover(ctx context.Context, each func(rec mcpreplay.Record)) (Recovery, error) {
	var r Recovery
	f := mcpreplay.Filter{State: mcpreplay.StateInProgress}
	for {
		recs, err := g.store.List(ctx, f)
		if err != nil {
			return r, fmt.Errorf("guard: list what is in progress: %w", err)
		}
		for _, rec := range recs {
			if err := ctx.Err(); err != nil {
				return r, err
			}
			f.Before = rec.Seq
			r.Looked++
			if rec.Live {
				r.Live++
				continue
			}
			rec = g.reconcile(ctx, rec)
			if rec.State == mcpreplay.StateInProgress {
				r.Unknown++
			} else {
				r.Settled++
			}
			if each != nil {
				each(rec)
			}
		}
		if len(recs) < 100 {
			return r, nil
		}
	}
}

// RecoverEvery calls Recover again and again until ctx ends, about as often as
// every says: beside a server, so that what its predecessors left is settled without
// anybody asking.
func (g *Guard) RecoverEvery(ctx context.Context, every time.Duration) {
	for sleep(ctx, every) {
		if _, err := g.Recover(ctx, nil); err != nil && ctx.Err() == nil {
			g.opts.Logger.Error("recovery failed", "error", err)
		}
	}
}
