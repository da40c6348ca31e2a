package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"mcpreplay"
)

// maxEvidence bounds what is kept of an error's text, in bytes.
const maxEvidence = 500

// claim is the right to run what is not in the ledger's own transaction: one owner
// has it, as long as he renews its lease. The revision is its epoch: every write
// compares it, so that whoever slept past his lease cannot write unawares.
type claim struct {
	g       *Guard
	owner   string
	attempt int64
	gone    context.CancelCauseFunc // tells the effect that the claim is lost

	// again: it was taken over from an attempt that nobody knows the outcome of.
	// That this one did nothing proves nothing then.
	again bool

	mu  sync.Mutex // one write at a time, and the record with it
	rec mcpreplay.Record
}

// errLost is why an effect is told to stop when its claim is not its owner's any
// more.
var errLost = errors.New("the claim was lost: somebody else has settled the operation or taken it over")

// errUnconfirmed is a claim that was given back because its own commit was not
// confirmed: what is not sure to be durable must not be acted on.
var errUnconfirmed = fmt.Errorf("the claim was not confirmed, and given back: %w", mcpreplay.ErrUnavailable)

// claim begins the operation, or claims one that was given back or whose owner is
// gone. It returns the record as it is, and no claim, if another attempt was faster.
func (g *Guard) claim(ctx context.Context, w *work) (*claim, mcpreplay.Record, error) {
	owner := g.owner + "." + strconv.FormatInt(g.claims.Add(1), 10)
	change := mcpreplay.Change{
		To: mcpreplay.StateInProgress, Owner: owner, Lease: g.opts.Lease, Deadline: w.timeout, Memo: w.memo,
		Event: mcpreplay.Event{Kind: mcpreplay.EventClaim, Actor: owner},
	}
	var rec mcpreplay.Record
	var started bool
	var err error
	if from := w.op.from; from == nil {
		rec, started, err = g.store.Begin(ctx, w.o, change)
	} else {
		change.Key, change.Revision = from.Key, from.Revision
		if from.State == mcpreplay.StateInProgress {
			change.To, change.Event.Kind = "", mcpreplay.EventTakeover
		}
		if rec, err = g.store.Advance(ctx, change); errors.Is(err, mcpreplay.ErrStale) {
			rec, err = g.store.Get(ctx, from.Key)
		} else {
			started = err == nil
		}
	}
	again := change.Event.Kind == mcpreplay.EventTakeover
	switch {
	case errors.Is(err, mcpreplay.ErrUnknown):
		return nil, rec, g.unclaim(ctx, w.o.Key, owner, again, err)
	case err != nil || !started:
		return nil, rec, err
	}
	return &claim{g: g, owner: owner, attempt: rec.Attempt, again: again, rec: rec}, rec, nil
}

// unclaim gives a claim back that was not confirmed, if it is there: nothing has
// run under it. The outcome stays unknown if that cannot be done either.
func (g *Guard) unclaim(ctx context.Context, key mcpreplay.Key, owner string, again bool, unknown error) error {
	// Whoever asked may have stopped waiting, which is often why it is not confirmed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opts.Wait)
	defer cancel()
	rec, err := g.store.Get(ctx, key)
	if err != nil || rec.Owner != owner {
		return unknown
	}
	c := &claim{g: g, owner: owner, attempt: rec.Attempt, again: again, rec: rec}
	if _, err := c.write(ctx, c.release("the claim was not confirmed")); err != nil {
		return unknown
	}
	return errUnconfirmed
}

// record is the record as its owner saw it last.
func (c *claim) record() mcpreplay.Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// keep renews the lease until stop is called. It ends by itself when the claim is
// lost, which it tells the effect.
func (c *claim) keep(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	id := c.rec.ID
	go func() {
		defer close(done)
		every := time.NewTicker(c.g.opts.Lease / 3)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			if err := c.renew(ctx); errors.Is(err, errLost) {
				c.g.opts.Logger.Warn("claim lost", "operation", id, "owner", c.owner)
				c.gone(errLost)
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

// renew makes the lease last again. An error other than errLost is the ledger's,
// and may pass.
func (c *claim) renew(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.g.opts.Lease)
	defer cancel()
	rec, err := c.g.store.Advance(ctx, mcpreplay.Change{Key: c.rec.Key, Revision: c.rec.Revision, Lease: c.g.opts.Lease})
	if err == nil {
		c.rec = rec
		return nil
	}
	// One that was not confirmed may have been made all the same.
	now, look := c.g.store.Get(ctx, c.rec.Key)
	switch {
	case errors.Is(look, mcpreplay.ErrNotFound): // settled by others, and forgotten since
		return errLost
	case look != nil:
		return err
	case now.Owner != c.owner || now.State != mcpreplay.StateInProgress:
		return errLost
	}
	c.rec = now
	return err
}

// advance makes a change that only the owner may make, by do: it fails with errLost
// if the claim is not his any more, and retries what the ledger refused for now.
func (c *claim) advance(ctx context.Context, change mcpreplay.Change, do func(context.Context, mcpreplay.Change) (mcpreplay.Record, error)) (mcpreplay.Record, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.g.opts.Wait)
	defer cancel()
	change.Key, change.Owner, change.Lease = c.rec.Key, c.owner, c.g.opts.Lease
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		change.Revision = c.rec.Revision
		rec, err := do(ctx, change)
		if err == nil {
			c.rec = rec
			return rec, nil
		}
		if errors.As(err, new(*mcpreplay.EffectError)) {
			return c.rec, err
		}
		now, look := c.g.store.Get(ctx, c.rec.Key)
		switch {
		case errors.Is(look, mcpreplay.ErrNotFound):
			return c.rec, errLost
		case look != nil:
		case now.Owner != c.owner || now.State != mcpreplay.StateInProgress:
			return now, errLost
		case errors.Is(err, mcpreplay.ErrUnknown) && c.told(ctx, change.Event):
			c.rec = now
			return now, nil
		case errors.Is(err, mcpreplay.ErrStale):
			c.rec = now
		}
		if !passing(err) || !sleep(ctx, pause) {
			return c.rec, err
		}
	}
}

// told reports whether e is among the events: a commit that was not confirmed was
// to write it. An owner is of one claim, and tells of each thing once.
func (c *claim) told(ctx context.Context, e mcpreplay.Event) bool {
	events, err := c.g.store.Events(ctx, c.rec.Key)
	return err == nil && slices.ContainsFunc(events, func(was mcpreplay.Event) bool {
		return was.Kind == e.Kind && was.Step == e.Step && was.Outcome == e.Outcome && was.Actor == e.Actor
	})
}

// release is an attempt that did nothing. Where one before it may have done
// something the claim is given up without saying that nothing happened.
func (c *claim) release(why string) mcpreplay.Change {
	if c.again {
		return c.doubt("this attempt did nothing, but the one before may have: " + why)
	}
	return mcpreplay.Change{To: mcpreplay.StateReleased,
		Event: mcpreplay.Event{Kind: mcpreplay.EventRelease, Actor: c.owner, Evidence: evidence(why)}}
}

// doubt is an effect that ended, or did not, without saying whether it happened.
// The lease ends with it: nobody need wait for this owner.
func (c *claim) doubt(why string) mcpreplay.Change {
	return mcpreplay.Change{Lease: -1,
		Event: mcpreplay.Event{Kind: mcpreplay.EventDoubt, Actor: c.owner, Evidence: evidence(why)}}
}

func (c *claim) finish(to mcpreplay.State, result mcpreplay.Result, effect, why string) mcpreplay.Change {
	if c.again && to == mcpreplay.StateNotApplied {
		return c.release(why)
	}
	return mcpreplay.Change{To: to, Owner: c.owner, Result: &result, Effect: effect,
		Event: mcpreplay.Event{Kind: mcpreplay.EventFinish, Actor: c.owner, Evidence: evidence(why)}}
}

// write records how the effect ended. What an owner knows of his own effect is the
// best evidence there is, so it is recorded whoever holds the record by then, as
// long as it has no outcome; if it has one, what came late is told beside it and
// never dropped. The error says that it could not be recorded, or that it disagrees.
// An outcome that the ledger does not take now is told again until it does.
func (c *claim) write(ctx context.Context, change mcpreplay.Change) (mcpreplay.Record, error) {
	rec, err := c.try(ctx, change)
	if err != nil && passing(err) && change.To != "" {
		c.g.opts.Logger.Error("an outcome is not recorded yet", "operation", rec.ID, "outcome", change.To, "effect", change.Effect, "error", err)
		go c.insist(context.WithoutCancel(ctx), change)
	}
	if errors.Is(err, mcpreplay.ErrNotFound) {
		c.g.opts.Logger.Error("an outcome came when its record was forgotten", "operation", rec.ID, "outcome", change.To, "effect", change.Effect)
	}
	return rec, err
}

// insistFor bounds how long an outcome is held for a ledger that is away. Whoever
// reads the log by then has it, and can resolve the operation.
const insistFor = 6 * time.Hour

// insist writes what could not be written, until the ledger takes it.
func (c *claim) insist(ctx context.Context, change mcpreplay.Change) {
	ctx, cancel := context.WithTimeout(ctx, insistFor)
	defer cancel()
	for pause := c.g.opts.Wait / 10; sleep(ctx, pause); pause = min(2*pause, time.Minute) {
		rec, err := c.try(ctx, change)
		if err == nil {
			c.g.opts.Logger.Info("an outcome is recorded at last", "operation", rec.ID, "outcome", change.To, "record", rec.State)
			return
		}
		if !passing(err) {
			c.g.opts.Logger.Error("an outcome could not be recorded", "operation", rec.ID, "outcome", change.To, "effect", change.Effect, "error", err)
			return
		}
	}
}

// try is write, once for as long as a request waits.
func (c *claim) try(ctx context.Context, change mcpreplay.Change) (mcpreplay.Record, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.g.opts.Wait)
	defer cancel()
	change.Key = c.rec.Key
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		change.Revision = c.rec.Revision
		rec, err := c.g.store.Advance(ctx, change)
		if err == nil {
			c.rec = rec
			return rec, nil
		}
		now, look := c.g.store.Get(ctx, c.rec.Key)
		if look == nil {
			c.rec = now
			if settled := now.State.Final() || now.State == mcpreplay.StateReleased; settled {
				if c.told(ctx, change.Event) {
					return now, nil
				}
				return c.late(ctx, change)
			}
			if change.Event.Kind == mcpreplay.EventDoubt && now.Owner != c.owner {
				return now, errLost // whoever has it now will say more
			}
			// That this attempt did nothing says nothing of one that began since: its
			// claim is not this owner's to end.
			if now.Attempt != c.attempt && nothing(change) {
				if c.told(ctx, change.Event) {
					return now, nil
				}
				return now, errLost
			}
		}
		if !passing(err) || !sleep(ctx, pause) {
			return c.rec, err
		}
	}
}

// late tells of an outcome that came after the record had one.
func (c *claim) late(ctx context.Context, change mcpreplay.Change) (mcpreplay.Record, error) {
	if change.Event.Kind == mcpreplay.EventDoubt {
		return c.rec, nil // it knows nothing that the record does not
	}
	to := change.To
	if nothing(change) {
		if c.rec.Attempt != c.attempt {
			return c.rec, nil // in this attempt, which contradicts no other
		}
		to = mcpreplay.StateNotApplied
	}
	for {
		e := mcpreplay.Event{Kind: mcpreplay.EventContradiction, Actor: c.owner, Evidence: lateEvidence(to, change)}
		agrees := to == c.rec.State || to == mcpreplay.StateNotApplied && c.rec.State == mcpreplay.StateReleased
		if agrees {
			e.Kind = mcpreplay.EventConfirmation
		}
		if agrees && c.rec.State == mcpreplay.StateReleased {
			return c.rec, nil // it may be sent again, as this says too
		}
		rec, err := c.g.store.Advance(ctx, mcpreplay.Change{Key: c.rec.Key, Revision: c.rec.Revision, Event: e})
		if err == nil {
			c.rec = rec
			if !agrees {
				c.g.opts.Logger.Error("a late outcome disagrees with the record", "operation", rec.ID, "record", rec.State, "outcome", to)
			}
			return rec, nil
		}
		if now, look := c.g.store.Get(ctx, c.rec.Key); look == nil {
			c.rec = now
			if c.told(ctx, e) {
				return now, nil
			}
		}
		if !passing(err) || !sleep(ctx, 20*time.Millisecond) {
			return c.rec, fmt.Errorf("a late outcome (%s) is not recorded: %w", to, err)
		}
	}
}

// nothing reports whether change says that the effect did not happen.
func nothing(change mcpreplay.Change) bool {
	return change.To == mcpreplay.StateReleased || change.To == mcpreplay.StateNotApplied
}

func lateEvidence(to mcpreplay.State, change mcpreplay.Change) string {
	text := fmt.Sprintf("its owner says it is %s", to)
	if change.Effect != "" {
		text += ", effect " + change.Effect
	}
	if change.Event.Evidence != "" {
		text += ": " + change.Event.Evidence
	}
	return evidence(text)
}

// passing reports whether what the ledger said may be otherwise when it is asked
// again.
func passing(err error) bool {
	return errors.Is(err, mcpreplay.ErrStale) || errors.Is(err, mcpreplay.ErrUnavailable) ||
		errors.Is(err, mcpreplay.ErrUnknown) || errors.Is(err, mcpreplay.ErrClock)
}

// sleep waits for d, and reports whether ctx lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// evidence is text fit to be kept: short, and UTF-8.
func evidence(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maxEvidence {
		return text
	}
	return strings.ToValidUTF8(text[:maxEvidence], "") + "…"
}
