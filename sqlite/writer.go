package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
)

// patience bounds the wait for the write lock when a request brings no deadline.
const patience = 30 * time.Second

// writer owns the one connection that writes. One goroutine runs all requests,
// so they queue in order instead of fighting for SQLite's lock.
type writer struct {
	s        *Store
	requests chan *request
	quit     chan struct{}
	done     chan struct{}

	// Owned by the goroutine.
	conn  *conn // nil: to be opened before the next request
	phase phase
}

// phase says what a request that ends without returning may have done.
type phase int

const (
	idle       phase = iota
	inside           // a transaction is open
	committing       // COMMIT was sent
)

// request is one transition: it is run inside a transaction, and answered when
// that has ended.
type request struct {
	ctx  context.Context
	run  func(context.Context, *conn) (changed bool, err error)
	done chan error
}

func (s *Store) startWriter(c *conn) *writer {
	w := &writer{
		s: s, conn: c,
		requests: make(chan *request), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go w.loop()
	return w
}

// do runs a transition. ctx is heard until the transaction has begun; from there
// on the answer is the ledger's.
func (w *writer) do(ctx context.Context, run func(context.Context, *conn) (bool, error)) error {
	r := &request{ctx: ctx, run: run, done: make(chan error, 1)}
	select {
	case w.requests <- r:
		return <-r.done
	case <-ctx.Done():
		return w.s.unavailable(ctx.Err())
	case <-w.quit:
		return w.s.unavailable(errClosed)
	}
}

func (w *writer) stop() error {
	close(w.quit)
	<-w.done
	return w.conn.close()
}

// loop is the only place where transactions are made.
func (w *writer) loop() {
	returned := false
	defer func() {
		if !returned { // an effect ended this goroutine; the request is answered
			go w.loop()
		}
	}()
	for {
		select {
		case r := <-w.requests:
			w.serve(r)
		case <-w.quit:
			returned = true
			close(w.done)
			return
		}
	}
}

// serve answers r whatever happens: a panic of the driver, or the end of the
// goroutine under an effect, must leave neither the caller waiting nor the
// transaction open.
func (w *writer) serve(r *request) {
	returned := false
	w.phase = idle
	defer func() {
		if returned {
			return
		}
		p, err := recover(), errGoexit
		if p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		switch {
		case w.phase == committing: // nothing is definite any more
			err = w.s.unknown(err)
		case p == nil:
			err = &mcpreplay.EffectError{Err: err, Panic: true}
		default:
			err = w.s.unavailable(err)
		}
		defer func() { r.done <- err }() // whatever closing the connection does
		w.abandon()
	}()
	err := w.transact(r)
	returned = true
	r.done <- err
}

func (w *writer) transact(r *request) error {
	if err := r.ctx.Err(); err != nil {
		return w.s.unavailable(err)
	}
	if err := w.ensure(); err != nil {
		return w.s.unavailable(err)
	}
	if err := w.begin(r.ctx); err != nil {
		return w.s.unavailable(err)
	}
	w.phase = inside
	// Not before: the file may have been replaced while the lock was waited for.
	if err := w.conn.attached(); err != nil {
		w.rollback(err)
		return w.s.unavailable(err)
	}
	changed, err := r.run(r.ctx, w.conn)
	if err != nil || !changed {
		w.rollback(err)
		return w.s.unavailable(err)
	}
	w.phase = committing
	if err := w.commit(); err != nil {
		return err
	}
	// What went into a file that lost its name meanwhile will not be found.
	if err := w.conn.attached(); err != nil && !errors.Is(err, errLinked) {
		return w.s.unknown(err)
	}
	return nil
}

// ensure provides a connection.
func (w *writer) ensure() error {
	if w.conn == nil {
		c, err := w.s.connect(false)
		if err != nil {
			return err
		}
		w.conn = c
	}
	return nil
}

// begin takes the write lock. This is the one statement that hears the request's
// context: once there is a transaction, an interrupted statement would roll all
// of it back.
func (w *writer) begin(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.s.cfg.patience, errBusy)
		defer cancel()
	}
	c := w.conn
	for {
		c.raw.SetInterrupt(ctx)
		err := c.begin.run(nil)
		c.raw.SetInterrupt(context.Background())
		switch {
		case ctx.Err() != nil:
			w.rollback(nil)
			if cause := context.Cause(ctx); cause == errBusy {
				return errBusy
			}
			if busy(err) {
				return fmt.Errorf("%w (%w)", ctx.Err(), errBusy)
			}
			return ctx.Err()
		case err == nil:
			return nil
		case !busy(err):
			w.rollback(err)
			return err
		}
	}
}

// commit ends the transaction. A deferred constraint is the effect's own failure
// and definite. After any other error the commit frame may be in the log, where
// a recovery would find it valid, or not: nothing but reading the ledger can
// tell. The connection is given up, because its view of the log may differ from
// what is on disk.
func (w *writer) commit() error {
	err := w.conn.commit.run(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlite3.CONSTRAINT):
		w.rollback(err)
		return &mcpreplay.EffectError{Err: err, Internal: true}
	}
	w.abandon()
	w.s.opts.Logger.Error("commit not confirmed", "ledger", w.s.path, "error", err)
	return w.s.unknown(err)
}

// rollback ends the transaction, if there still is one, after err.
func (w *writer) rollback(err error) {
	c := w.conn
	if !c.raw.GetAutocommit() {
		if c.rollback.run(nil) != nil || !c.raw.GetAutocommit() {
			w.abandon()
			return
		}
	}
	if c.broken || err != nil && spoils(err) {
		w.abandon()
	}
}

// abandon gives the connection up. Closing it ends its transaction.
func (w *writer) abandon() {
	c := w.conn
	if c == nil {
		return
	}
	w.conn = nil
	defer func() {
		if p := recover(); p != nil {
			w.s.opts.Logger.Error("close connection", "ledger", w.s.path, "panic", p)
		}
	}()
	if !c.raw.GetAutocommit() {
		c.rollback.run(nil)
	}
	if err := c.close(); err != nil {
		w.s.opts.Logger.Warn("close connection", "ledger", w.s.path, "error", err)
	}
}
