package postgres

import (
	"context"

	"mcpreplay"
)

// read runs fn with a connection, outside a transaction. Nothing is lost when it
// is run again.
func (s *Store) read(ctx context.Context, fn func(context.Context, *work) error) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return s.again(ctx, func() error {
		return s.use(ctx, func(w *work) error { return fn(ctx, w) })
	})
}

// look reads the record of key out of an answer to sqlRead, or fails with
// ErrNotFound. The record has its key and its ledger either way.
func (s *Store) look(a answer, key mcpreplay.Key) (mcpreplay.Record, error) {
	r, found, err := s.one(a)
	if err == nil && (!found || r.Principal != key.Principal) {
		err = mcpreplay.ErrNotFound
	}
	if err != nil {
		absent := mcpreplay.Record{}
		absent.Key, absent.Ledger = key, r.Ledger
		return absent, err
	}
	return r.Record, nil
}

// lookup is the statement that reads the record of key. An id that cannot be in
// the ledger is not there.
func (s *Store) lookup(key mcpreplay.Key) statement {
	if !storable(key.ID) {
		return s.in(sqlRead, "")
	}
	return s.in(sqlRead, s.scoped(key))
}

// Info identifies the ledger.
func (s *Store) Info(ctx context.Context) (info mcpreplay.Info, err error) {
	err = s.read(ctx, func(ctx context.Context, w *work) error {
		answers, err := w.begin(ctx, beginRead, s.in(sqlRead, ""), s.in(sqlRestores))
		if err != nil {
			return err
		}
		r, _, err := s.one(answers[0])
		if err != nil {
			return err
		}
		info = r.Ledger
		info.Restores, err = scanRestores(answers[1])
		return err
	})
	return info, err
}

// Get reads one record.
func (s *Store) Get(ctx context.Context, key mcpreplay.Key) (rec mcpreplay.Record, err error) {
	rec.Key = key
	err = s.read(ctx, func(ctx context.Context, w *work) error {
		answers, err := w.exchange(ctx, s.lookup(key))
		if err == nil {
			rec, err = s.look(answers[0], key)
		}
		return err
	})
	return rec, err
}

// Events reads the history of one operation, oldest first.
func (s *Store) Events(ctx context.Context, key mcpreplay.Key) (events []mcpreplay.Event, err error) {
	err = s.read(ctx, func(ctx context.Context, w *work) error {
		find := s.lookup(key)
		answers, err := w.begin(ctx, beginRead, find, s.in(sqlLog, find.args...))
		if err == nil {
			_, err = s.look(answers[0], key)
		}
		if err != nil {
			return err
		}
		events = nil
		for _, values := range answers[1].rows {
			e, err := scanEvent(values)
			if err != nil {
				return s.incompatible(err, "restore it from a backup")
			}
			events = append(events, e)
		}
		return nil
	})
	return events, err
}

// List reads records, newest first.
func (s *Store) List(ctx context.Context, f mcpreplay.Filter) (recs []mcpreplay.Record, err error) {
	for _, text := range []string{f.Principal, f.ID, f.Tool, string(f.State)} {
		if !storable(text) {
			return nil, nil
		}
	}
	err = s.read(ctx, func(ctx context.Context, w *work) error {
		answers, err := w.exchange(ctx, s.search(f))
		if err != nil {
			return err
		}
		recs = nil
		for _, values := range answers[0].rows {
			r, _, err := s.scan(values)
			if err != nil {
				return err
			}
			recs = append(recs, r.Record)
		}
		return nil
	})
	return recs, err
}

// View reads a record and lets look read the application's tables in the same
// snapshot.
func (s *Store) View(ctx context.Context, key mcpreplay.Key, check func(context.Context, *Tx, mcpreplay.Record) error) (rec mcpreplay.Record, err error) {
	rec.Key = key
	var failed error // the application's own, not to be taken for the ledger's
	err = s.read(ctx, func(ctx context.Context, w *work) error {
		answers, err := w.begin(ctx, beginRead, s.lookup(key))
		if err == nil {
			rec, err = s.look(answers[0], key)
		}
		if err != nil {
			return err
		}
		return w.call(ctx, true, func(ctx context.Context, tx *Tx) error {
			failed = check(ctx, tx, rec)
			return nil
		})
	})
	if err == nil {
		err = failed
	}
	return rec, err
}
