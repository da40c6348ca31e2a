// Package postgres keeps a ledger in a schema of a PostgreSQL database, beside the
// tables of the application, so that an effect and its record commit together.
//
// Any number of processes on any hosts may use one ledger; none of them leads. It
// is correct at READ COMMITTED by a unique key and row locks. Nothing relies on the
// session, so a pooler that lends a connection for a transaction at a time may
// stand in between.
//
// Commits of one ledger follow each other: each holds the ledger's row from taking
// its position until it is durable. Effects run beside each other before that.
package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

var _ mcpreplay.Applier[*Tx] = (*Store)(nil)

// Store is a ledger in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool   *pgxpool.Pool
	owned  bool
	opts   Options
	cfg    config
	name   string // of the ledger, for people
	schema string // quoted

	// What was opened first. What is found later must be the same.
	instance string
	ids      IDs

	// Writers may wait for each other while they hold a connection. One connection
	// is left for reads.
	writers  chan struct{}
	failover failover

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Close waits for the transitions and reads that are running. It closes the pool
// only if Connect made it. Later calls fail with mcpreplay.ErrUnavailable.
//
// It must not be called from inside an effect or a view: it would wait for itself.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	s.running.Wait()
	if first && s.owned {
		s.pool.Close()
	}
	return nil
}

// enter begins a call, unless the store is closed or an effect is calling it.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	if ctx.Value(within{s}) != nil {
		return nil, errNested
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.unavailable(errClosed)
	}
	s.running.Add(1)
	return s.running.Done, nil
}

// scope is what stands before an id in its column: nothing, or a digest of the
// principal that the id is one of.
func (s *Store) scope(principal string) string {
	if s.ids != IDsPrincipal {
		return ""
	}
	sum := sha256.Sum256([]byte(principal))
	return hex.EncodeToString(sum[:16]) + ":"
}

func (s *Store) scoped(key mcpreplay.Key) string { return s.scope(key.Principal) + key.ID }

// Begin claims, declines or fences an operation.
func (s *Store) Begin(ctx context.Context, op mcpreplay.Operation, first mcpreplay.Change) (rec mcpreplay.Record, started bool, err error) {
	first = cleaned(first)
	err = s.write(ctx, func(ctx context.Context, w *work) ([]statement, error) {
		started = false // a run before this one may have come further
		r, isNew, err := w.admit(ctx, op, first.To)
		if err != nil || !isNew {
			rec = r.Record
			return nil, err
		}
		if err := w.mayClaim(ctx, first); err != nil {
			return nil, err
		}
		final, err := w.move(ctx, r, first)
		rec, started = r.Record, true
		return final, err
	})
	if err != nil {
		return mcpreplay.Record{}, false, err
	}
	return rec, started, nil
}

// Apply commits an operation, its effect and its result together.
//
// The effect runs in the caller's goroutine, beside those of other operations. It
// runs again if the transaction has to: after a deadlock, or when the connection is
// lost before COMMIT was sent. If the right to write ends while it runs, it is
// rolled back and the answer is mcpreplay.ErrExpired.
//
// A call of the ledger with the effect's context fails; one with another context
// may wait for itself.
func (s *Store) Apply(ctx context.Context, op mcpreplay.Operation, effect func(context.Context, *Tx) (mcpreplay.Outcome, error)) (rec mcpreplay.Record, started bool, err error) {
	err = s.write(ctx, func(ctx context.Context, w *work) ([]statement, error) {
		started = false // a run before this one may have come further
		r, isNew, err := w.admit(ctx, op, mcpreplay.StateApplied)
		if err != nil || !isNew {
			rec = r.Record
			return nil, err
		}
		var out mcpreplay.Outcome
		ctx = context.WithoutCancel(ctx)
		err = w.call(ctx, false, func(ctx context.Context, tx *Tx) (err error) {
			out, err = effect(ctx, tx)
			return err
		})
		if err != nil {
			return nil, err
		}
		final, err := w.move(ctx, r, cleaned(mcpreplay.Change{
			To: mcpreplay.StateApplied, Effect: out.Effect, Result: &out.Result,
			Event: mcpreplay.Event{Kind: mcpreplay.EventApply, Actor: op.Principal},
		}))
		rec, started = r.Record, true
		return final, err
	})
	if err != nil {
		return mcpreplay.Record{}, false, err
	}
	return rec, started, nil
}

// Advance changes a record if its revision is still c.Revision.
func (s *Store) Advance(ctx context.Context, change mcpreplay.Change) (mcpreplay.Record, error) {
	return s.advance(ctx, change, nil)
}

// ApplyStep runs effect and makes change in one transaction. What is said of the
// effect of Apply holds.
func (s *Store) ApplyStep(ctx context.Context, change mcpreplay.Change, effect func(context.Context, *Tx, *mcpreplay.Change) error) (mcpreplay.Record, error) {
	return s.advance(ctx, change, effect)
}

func (s *Store) advance(ctx context.Context, change mcpreplay.Change, effect func(context.Context, *Tx, *mcpreplay.Change) error) (rec mcpreplay.Record, err error) {
	err = s.write(ctx, func(ctx context.Context, w *work) ([]statement, error) {
		c := cleaned(change)
		r, err := w.hold(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := w.mayClaim(ctx, c); err != nil {
			return nil, err
		}
		if effect != nil {
			if _, err := w.exchange(ctx, s.in(sqlOpen, s.scoped(c.Key))); err != nil {
				return nil, err
			}
			done := c
			ctx = context.WithoutCancel(ctx)
			if err := w.call(ctx, false, func(ctx context.Context, tx *Tx) error { return effect(ctx, tx, &done) }); err != nil {
				return nil, err
			}
			c.Effect, c.Memo, c.Result, c.Event = done.Effect, done.Memo, done.Result, done.Event
			c = cleaned(c)
		}
		final, err := w.move(ctx, r, c)
		rec = r.Record
		return final, err
	})
	if err != nil {
		return mcpreplay.Record{}, err
	}
	return rec, nil
}

// admit decides whether op may be new work. If not, the row is the one that is
// there. If it may, the row is fresh, and its id is ours until the transaction
// ends: whoever wants it waits for that.
func (w *work) admit(ctx context.Context, op mcpreplay.Operation, to mcpreplay.State) (r *row, isNew bool, err error) {
	if err := keepable(op); err != nil {
		return &row{}, false, err
	}
	s := w.s
	answers, err := w.begin(ctx, beginWrite, s.insert(op), s.in(sqlRead, s.scoped(op.Key)))
	if err != nil {
		return &row{}, false, err
	}
	r, found, err := s.one(answers[1])
	switch {
	case err != nil:
		return &row{}, false, err
	case !found && r.Ledger.Forgotten.Refuses(op.ID): // it was there still at the insert
		return &row{}, false, mcpreplay.ErrForgotten
	case !found:
		return &row{}, false, s.incompatible(errNobody, "restore it from a backup")
	case answers[0].tag.RowsAffected() == 0 && r.Principal != op.Principal:
		return &row{}, false, mcpreplay.ErrConflict
	case answers[0].tag.RowsAffected() == 0:
		return r, false, nil
	}
	// Read after the insert, which waits for whoever is just removing the id: so what
	// was forgotten is known here.
	if r.Ledger.Forgotten.Refuses(op.ID) {
		return &row{}, false, mcpreplay.ErrForgotten
	}
	if err := s.believe(r.head, r.clock); err != nil {
		return &row{}, false, err
	}
	now := r.Ledger.Time
	fresh := &row{Row: *rules.Fresh(op, now), head: r.head, clock: r.clock}
	fresh.Ledger = r.Ledger
	if to != mcpreplay.StateNotApplied && fresh.Late(now) {
		return &row{}, false, mcpreplay.ErrExpired
	}
	return fresh, true, nil
}

// hold locks and reads the record that change is about, if it may still be made.
func (w *work) hold(ctx context.Context, change mcpreplay.Change) (*row, error) {
	s := w.s
	if !storable(change.Key.ID) {
		return nil, mcpreplay.ErrNotFound
	}
	id := s.scoped(change.Key)
	answers, err := w.begin(ctx, beginWrite, s.in(sqlLock, id), s.in(sqlRead, id))
	if err != nil {
		return nil, err
	}
	r, found, err := s.one(answers[1])
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, mcpreplay.ErrNotFound
	case r.Principal != change.Key.Principal:
		return nil, mcpreplay.ErrConflict
	case r.Revision != change.Revision:
		return nil, mcpreplay.ErrStale
	}
	if err := r.Legal(change); err != nil {
		return nil, err
	}
	if rules.Takes(change) && r.Live {
		return nil, mcpreplay.ErrStale
	}
	if rules.Writes(change) && r.Late(r.Ledger.Time) {
		return nil, mcpreplay.ErrExpired
	}
	return r, s.believe(r.head, r.clock)
}

// one reads the one row of sqlRead.
func (s *Store) one(a answer) (r *row, found bool, err error) {
	if len(a.rows) != 1 {
		return &row{}, false, s.incompatible(errNobody, s.migrate())
	}
	return s.scan(a.rows[0])
}

// keepable refuses what identifies an operation if it cannot be kept as it is.
func keepable(op mcpreplay.Operation) error {
	for _, text := range []string{op.ID, op.Principal, op.Tool, op.Version, op.Digests.KeyID} {
		if !storable(text) {
			return fmt.Errorf("%w: %q is no text that a ledger can hold", rules.ErrMisuse, text)
		}
	}
	return nil
}

// cleaned is c with texts that can be kept. They tell of an operation and identify
// nothing.
func cleaned(c mcpreplay.Change) mcpreplay.Change {
	c.Owner, c.Effect = clean(c.Owner), clean(c.Effect)
	e := &c.Event
	e.Step, e.Outcome, e.Actor, e.Evidence = clean(e.Step), clean(e.Outcome), clean(e.Actor), clean(e.Evidence)
	return c
}
