package sqlite

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
)

// patience bounds the wait for the write lock when a request brings no deadline.
const patience = 30 * time.Second

// writer owns the one connection that writes. One goroutine runs all requests,
// so they queue in order instead of fighting for SQLite's lock.
//
// What is asked for while a transaction runs goes into it: many operations share
// one commit, and its sync, and none waits for others to come. Each has a
// savepoint of its own, so that one that fails takes nothing of another with it.
// Nobody is answered before the commit.
type writer struct {
	s        *Store
	requests chan *request
	waiting  atomic.Int64 // who wants to be among them
	quit     chan struct{}
	done     chan struct{}

	// Owned by the goroutine.
	turn    *turn // that it has
	conn    *conn // nil: to be opened before the next request
	phase   phase
	batch   []*request // have run in the transaction, and wait for its end
	current *request   // runs, or waits for the lock
	redo    []*request // were in a transaction that was lost through no fault of theirs
	last    int        // how many shared the latest commit
}

// turn is a goroutine's time as the writer's. It ends when an effect ends the
// goroutine, or keeps it for too long.
type turn struct{ state atomic.Int32 }

const (
	working int32 = iota
	lent          // to the application's code
	ended         // whatever that code does now, this goroutine writes no more
)

// phase says what a request that ends without returning may have done.
type phase int

const (
	idle       phase = iota
	inside           // a transaction is open
	committing       // COMMIT was sent
)

// request is one transition: it is run inside a transaction, and answered when
// that has ended. If the transaction is lost it is run again.
type request struct {
	ctx     context.Context
	run     func(context.Context, *conn) (changed bool, err error)
	changed bool
	err     error // what run said
	done    chan error
}

// batchTime bounds how long a transaction takes in others: so long, and as long as
// the last of them runs, other processes wait for the lock.
const batchTime = 20 * time.Millisecond

func (s *Store) startWriter(c *conn) *writer {
	w := &writer{
		s: s, conn: c,
		requests: make(chan *request), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go w.loop(&turn{})
	return w
}

// do runs a transition. ctx is heard until the transition begins; from there on
// the answer is the ledger's.
func (w *writer) do(ctx context.Context, run func(context.Context, *conn) (bool, error)) error {
	r := &request{ctx: ctx, run: run, done: make(chan error, 1)}
	w.waiting.Add(1)
	defer w.waiting.Add(-1)
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
func (w *writer) loop(t *turn) {
	returned := false
	defer func() {
		if !returned && t.state.Load() != ended { // an effect ended this goroutine; the request is answered
			go w.loop(&turn{})
		}
	}()
	w.turn = t
	for {
		for len(w.redo) > 0 { // each alone: whatever it does, it does to itself
			r := w.redo[0]
			w.redo = w.redo[1:]
			w.serve(r, 1)
		}
		select {
		case r := <-w.requests:
			w.serve(r, w.s.opts.Batch)
		case <-w.quit:
			returned = true
			close(w.done)
			return
		}
	}
}

// serve runs r, and up to limit requests with those that come meanwhile. It
// answers whatever happens: a panic of the driver, or the end of the goroutine
// under an effect, must leave neither a caller waiting nor the transaction open.
func (w *writer) serve(r *request, limit int) {
	returned, t := false, w.turn
	w.phase, w.current = idle, r
	defer func() {
		if returned || t.state.Load() == ended {
			return
		}
		p, err := recover(), errGoexit
		if p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		defer func() { // whatever closing the connection does
			switch {
			case w.phase == committing: // nothing is definite any more
				w.failed(w.s.unknown(err))
			case p == nil:
				w.answer(w.current, &mcpreplay.EffectError{Err: err, Panic: true})
			default:
				w.answer(w.current, w.s.unavailable(err))
			}
			w.lost()
		}()
		w.abandon()
	}()
	w.transact(limit)
	returned = true
}

func (w *writer) answer(r *request, err error) {
	if r == w.current {
		w.current = nil
	}
	if r != nil {
		r.done <- err
	}
}

// lend gives the connection to the application's code, for so long. It returns
// what takes the connection back, which must be called before anything else is done
// with it; if the code was too late it ends the goroutine, which is nobody's by then.
func (w *writer) lend(l *loan, limit time.Duration) (back func()) {
	t, c := w.turn, w.conn
	t.state.Store(lent)
	timer := time.AfterFunc(limit, func() {
		if t.state.CompareAndSwap(lent, ended) {
			w.evict(c, l, limit)
		}
	})
	return func() {
		timer.Stop()
		if !t.state.CompareAndSwap(lent, working) {
			runtime.Goexit()
		}
	}
}

// evict takes the connection from an effect that does not end, and goes on without
// its goroutine. Nothing that the effect does from now on reaches the file.
func (w *writer) evict(c *conn, l *loan, limit time.Duration) {
	c.stop.Store(true) // the statement that runs, if one does
	l.end()
	c.gate.shut.Store(false)
	c.stop.Store(false)
	defer func() {
		w.answer(w.current, &mcpreplay.EffectError{Err: fmt.Errorf("%w: %v", errSlow, limit)})
		w.lost()
		w.loop(&turn{})
	}()
	w.abandon()
	w.s.opts.Logger.Error("effect did not end", "ledger", w.s.path, "limit", limit)
}

// lost has the others of a transaction that is gone run again.
func (w *writer) lost() {
	w.redo = append(w.redo, w.batch...)
	w.batch = nil
}

// failed answers everybody in a transaction whose commit failed with err. Who
// changed nothing may have seen what is not there now.
func (w *writer) failed(err error) {
	for _, r := range w.batch {
		if r.changed {
			w.answer(r, err)
		} else {
			w.answer(r, w.s.unavailable(errNeighbour))
		}
	}
	w.batch = nil
}

// transact runs the current request, and others after it, in one transaction.
func (w *writer) transact(limit int) {
	first := w.current
	if err := w.enter(first.ctx); err != nil {
		w.answer(first, w.s.unavailable(err))
		return
	}
	began := time.Now()
	// The first has nobody before it: what it leaves undone is rolled back with the
	// transaction.
	changed, err := w.run(first)
	if err != nil || !changed {
		w.rollback(err)
		w.answer(first, w.s.unavailable(err))
		return
	}
	w.keep(first, nil, true)
	for len(w.batch) < limit && time.Since(began) < batchTime && w.next() {
		if !w.join() {
			return
		}
	}
	w.phase = committing
	if err := w.commit(); err != nil {
		return
	}
	// What went into a file that lost its name meanwhile will not be found.
	if err := w.conn.attached(); err != nil && !errors.Is(err, errLinked) {
		w.failed(w.s.unknown(err))
		return
	}
	w.last = len(w.batch)
	for _, r := range w.batch {
		w.answer(r, w.s.unavailable(r.err))
	}
	w.batch = nil
}

// enter opens a transaction.
func (w *writer) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.ensure(); err != nil {
		return err
	}
	if err := w.begin(ctx); err != nil {
		return err
	}
	w.phase = inside
	// Not before: the file may have been replaced while the lock was waited for.
	if err := w.conn.attached(); err != nil {
		w.rollback(err)
		return err
	}
	return nil
}

// next takes whoever waits. Those that the latest commit answered may be about to
// ask again: they get one chance to, which costs nothing where nobody is.
func (w *writer) next() bool {
	for yielded := w.last < 2; ; yielded = true {
		select {
		case w.current = <-w.requests:
			return true
		default:
		}
		if yielded {
			return false
		}
		runtime.Gosched()
	}
}

// keep leaves a request for the end of the transaction.
func (w *writer) keep(r *request, err error, changed bool) {
	r.err, r.changed = err, changed
	w.batch = append(w.batch, r)
	w.current = nil
}

// run runs a request in the transaction. A deferred foreign key that it leaves
// unsatisfied is its own failure, and not that of the commit.
func (w *writer) run(r *request) (changed bool, err error) {
	changed, err = r.run(r.ctx, w.conn)
	if err == nil && changed {
		pending, _, statusErr := w.conn.raw.Status(sqlite3.DBSTATUS_DEFERRED_FKS, false)
		if err = statusErr; err == nil && pending != 0 {
			err = &mcpreplay.EffectError{Err: sqlite3.CONSTRAINT_FOREIGNKEY, Internal: true}
		}
	}
	return changed, err
}

// join runs the current request in a savepoint of the transaction. It reports
// whether there still is one.
func (w *writer) join() bool {
	r, c := w.current, w.conn
	if err := r.ctx.Err(); err != nil {
		w.answer(r, w.s.unavailable(err))
		return true
	}
	changed := false
	err := c.savepoint.run(nil)
	if err == nil {
		changed, err = w.run(r)
	}
	undo := err != nil || !changed
	switch {
	case c.raw.GetAutocommit() || c.broken || err != nil && spoils(err):
		// SQLite gave the transaction up, or this connection must be.
	case undo && c.undo.run(nil) != nil:
	case c.release.run(nil) == nil:
		w.keep(r, err, !undo)
		return true
	}
	if err == nil {
		err = errLost
	}
	w.rollback(err)
	w.answer(r, w.s.unavailable(err))
	w.lost()
	return false
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
		c.raw.SetInterrupt(&c.stop)
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
		if len(w.batch) > 1 {
			w.lost() // whose it was, each finds out alone
		} else {
			w.failed(&mcpreplay.EffectError{Err: err, Internal: true})
		}
		return err
	}
	w.abandon()
	defer func() { w.failed(w.s.unknown(err)) }() // whatever the logger does
	w.s.opts.Logger.Error("commit not confirmed", "ledger", w.s.path, "error", err)
	return err
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
