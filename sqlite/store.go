// Package sqlite keeps a ledger in one SQLite file, beside the tables of the
// application, so that an effect and its record commit together.
//
// Several processes may use one file, on a local disk. What was acknowledged
// survives the kill of the process and the loss of power: every commit is synced
// (WAL with synchronous=FULL), and no option makes it less.
package sqlite

import (
	"context"
	"os"
	"sync"
	"time"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

var _ mcpreplay.Applier[*Tx] = (*Store)(nil)

// Store is a ledger in an SQLite file. It is safe for concurrent use.
type Store struct {
	path string
	opts Options
	cfg  config
	mode string // how SQLite opens the file

	// What was opened first. A later connection must find the same: a file that
	// was put in its place is another ledger, and while the old log is still
	// there it would even look like this one.
	instance string
	ids      IDs
	file     os.FileInfo

	writer  *writer // nil when read-only
	readers *pool

	closing sync.Once
	closed  error
}

// Close waits for the transitions and reads that are running, and closes the
// file. Later calls fail with mcpreplay.ErrUnavailable.
//
// It must not be called from inside an effect or a view: it would wait for
// itself.
func (s *Store) Close() error {
	s.closing.Do(func() {
		if s.writer != nil {
			s.closed = s.writer.stop()
		}
		if err := s.readers.close(); s.closed == nil {
			s.closed = err
		}
	})
	return s.closed
}

// Info identifies the ledger.
func (s *Store) Info(ctx context.Context) (info mcpreplay.Info, err error) {
	err = s.read(ctx, func(c *conn, i mcpreplay.Info) (err error) {
		info = i
		info.Restores, err = c.restores()
		return err
	})
	return info, err
}

// Get reads one record.
func (s *Store) Get(ctx context.Context, key mcpreplay.Key) (rec mcpreplay.Record, err error) {
	rec.Key = key
	err = s.read(ctx, func(c *conn, info mcpreplay.Info) error {
		r, err := s.look(c, key, info)
		rec = r.Record
		return err
	})
	return rec, err
}

// Events reads the history of one operation, oldest first.
func (s *Store) Events(ctx context.Context, key mcpreplay.Key) (events []mcpreplay.Event, err error) {
	err = s.read(ctx, func(c *conn, info mcpreplay.Info) error {
		r, err := s.look(c, key, info)
		if err != nil {
			return err
		}
		events, err = c.history(r.Seq)
		return err
	})
	return events, err
}

// List reads records, newest first.
func (s *Store) List(ctx context.Context, f mcpreplay.Filter) (recs []mcpreplay.Record, err error) {
	err = s.read(ctx, func(c *conn, info mcpreplay.Info) error {
		rows, err := c.search(f, len(s.scope("")))
		for _, r := range rows {
			r.Ledger = info
			recs = append(recs, r.Record)
		}
		return err
	})
	return recs, err
}

// View reads a record and lets look read the application's tables in the same
// snapshot.
func (s *Store) View(ctx context.Context, key mcpreplay.Key, check func(context.Context, *Tx, mcpreplay.Record) error) (rec mcpreplay.Record, err error) {
	rec.Key = key
	var failed error // the application's own, not to be taken for the ledger's
	err = s.read(ctx, func(c *conn, info mcpreplay.Info) error {
		r, err := s.look(c, key, info)
		rec = r.Record
		if err != nil {
			return err
		}
		c.raw.SetInterrupt(context.Background())
		return s.call(ctx, c, true, 0, func(ctx context.Context, tx *Tx) error {
			failed = check(ctx, tx, rec)
			return nil
		})
	})
	if err == nil {
		err = failed
	}
	return rec, err
}

// write runs a transition on the writing connection.
func (s *Store) write(ctx context.Context, run func(context.Context, *conn) (bool, error)) error {
	if err := s.nested(ctx); err != nil {
		return err
	}
	if s.writer == nil {
		return s.unavailable(errReadOnly)
	}
	return s.writer.do(ctx, run)
}

// Begin claims, declines or fences an operation.
func (s *Store) Begin(ctx context.Context, op mcpreplay.Operation, first mcpreplay.Change) (rec mcpreplay.Record, started bool, err error) {
	err = s.write(ctx, func(_ context.Context, c *conn) (bool, error) {
		started = false // a run before this one may have come further
		r, isNew, err := s.admit(c, op, first.To)
		if err != nil || !isNew {
			rec = r.Record
			return false, err
		}
		e, err := r.Change(first, r.CreatedAt, time.Now(), r.Ledger.Position)
		if err != nil {
			return false, err
		}
		if err := s.add(c, r); err != nil {
			return false, err
		}
		rec, started = r.Record, true
		return true, record(c, r, e, first.Result != nil)
	})
	if err != nil {
		return mcpreplay.Record{}, false, err
	}
	return rec, started, nil
}

// Apply commits an operation, its effect and its result together.
//
// The effect runs on the goroutine that writes: it must not do anything slow
// outside its transaction, and everybody waits for it, though no longer than
// Options.EffectTimeout: then it is rolled back and fails with an EffectError,
// whether or not it ever ends. It sees what the operations
// before it did, also those whose commit it shares. It is run again, and what it did
// before is gone, if another's effect made SQLite give their transaction up. A call of
// the ledger with the effect's context fails; one with another context would wait for
// itself.
func (s *Store) Apply(ctx context.Context, op mcpreplay.Operation, effect func(context.Context, *Tx) (mcpreplay.Outcome, error)) (rec mcpreplay.Record, started bool, err error) {
	err = s.write(ctx, func(ctx context.Context, c *conn) (bool, error) {
		started = false // a run before this one may have come further
		r, isNew, err := s.admit(c, op, mcpreplay.StateApplied)
		if err != nil || !isNew {
			rec = r.Record
			return false, err
		}
		// The row comes first: the id is taken before anything is done under it,
		// and the effect's own rows may refer to it.
		claim := *r
		claim.State = mcpreplay.StateApplied // as it will be, if it will be: no index sees it change
		if err := s.add(c, &claim); err != nil {
			return false, err
		}
		r.Seq = claim.Seq
		var out mcpreplay.Outcome
		err = s.effect(ctx, c, r.Ledger.Position-1, s.opts.EffectTimeout, func(ctx context.Context, tx *Tx) (err error) {
			out, err = effect(ctx, tx)
			return err
		})
		if err != nil {
			return false, err
		}
		e, err := r.Change(mcpreplay.Change{
			To: mcpreplay.StateApplied, Effect: out.Effect, Result: &out.Result,
			Event: mcpreplay.Event{Kind: mcpreplay.EventApply, Actor: op.Principal},
		}, r.CreatedAt, time.Now(), r.Ledger.Position)
		if err != nil {
			return false, err
		}
		if err := c.save(r); err != nil {
			return false, err
		}
		rec, started = r.Record, true
		return true, record(c, r, e, true)
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
	err = s.write(ctx, func(ctx context.Context, c *conn) (bool, error) {
		change := change // a run before this one may have filled it in
		r, now, err := s.hold(c, change)
		if err != nil {
			return false, err
		}
		if effect != nil {
			done := change
			err := s.effect(ctx, c, r.Ledger.Position, s.opts.EffectTimeout, func(ctx context.Context, tx *Tx) error { return effect(ctx, tx, &done) })
			if err != nil {
				return false, err
			}
			change.Effect, change.Memo, change.Result, change.Event = done.Effect, done.Memo, done.Result, done.Event
		}
		e, err := r.Change(change, now, time.Now(), r.Ledger.Position+1)
		if err != nil {
			return false, err
		}
		if err := c.save(r); err != nil {
			return false, err
		}
		r.Ledger.Time = now
		if e != nil {
			r.Ledger.Position = e.Position
		}
		rec = r.Record
		return true, record(c, r, e, change.Result != nil)
	})
	if err != nil {
		return mcpreplay.Record{}, err
	}
	return rec, nil
}

// hold reads the record that change is about, if it may still be made.
func (s *Store) hold(c *conn, change mcpreplay.Change) (*row, time.Time, error) {
	var never time.Time
	info, err := c.read()
	if err != nil {
		return nil, never, err
	}
	r, err := s.find(c, change.Key)
	switch {
	case err != nil:
		return nil, never, err
	case r == nil:
		return nil, never, mcpreplay.ErrNotFound
	case r.Principal != change.Key.Principal:
		return nil, never, mcpreplay.ErrConflict
	case r.Revision != change.Revision:
		return nil, never, mcpreplay.ErrStale
	}
	if err := r.Legal(change); err != nil {
		return nil, never, err
	}
	if rules.Takes(change) && r.Live {
		return nil, never, mcpreplay.ErrStale
	}
	r.Ledger = info
	now, err := s.now(info)
	if err == nil && rules.Writes(change) && r.Late(now) {
		err = mcpreplay.ErrExpired
	}
	return r, now, err
}

// admit decides whether op may be new work. If not, the row is the one that is
// there. If it may, the row is fresh, and its Ledger is the ledger as it will be
// after one more event.
func (s *Store) admit(c *conn, op mcpreplay.Operation, to mcpreplay.State) (r *row, isNew bool, err error) {
	info, err := c.read()
	if err != nil {
		return &row{}, false, err
	}
	r, err = s.find(c, op.Key)
	switch {
	case err != nil:
		return &row{}, false, err
	case r == nil:
	case r.Principal != op.Principal:
		return &row{}, false, mcpreplay.ErrConflict
	default:
		info.Time = s.readTime(info)
		r.Ledger = info
		return r, false, nil
	}
	if info.Forgotten.Refuses(op.ID) {
		return &row{}, false, mcpreplay.ErrForgotten
	}
	now, err := s.now(info)
	if err != nil {
		return &row{}, false, err
	}
	r = rules.Fresh(op, now)
	if to != mcpreplay.StateNotApplied && r.Late(now) {
		return &row{}, false, mcpreplay.ErrExpired
	}
	info.Time = now
	info.Position++
	r.Ledger = info
	return r, true, nil
}

// record writes what stands beside the row of a change: the result and the event.
func record(c *conn, r *row, e *mcpreplay.Event, result bool) error {
	if result {
		if err := c.saveResult(r.Seq, r.Result); err != nil {
			return err
		}
	}
	if e == nil {
		return nil
	}
	return c.append(r.Seq, e)
}
