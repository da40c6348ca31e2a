package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

const (
	// patience bounds how long what may pass by itself is tried again: a deadlock,
	// a server that is being restarted, a standby that is being promoted.
	patience = 15 * time.Second

	// commitPatience bounds the wait for the answer to COMMIT, which a synchronous
	// standby that is away may hold up for as long as it likes.
	commitPatience = 30 * time.Second

	// headPatience bounds how long a process that is gone, or stopped, can keep all
	// others from committing: between taking a position and COMMIT it has nothing to do
	// but to send that.
	headPatience = 3 * time.Second

	// grace is what a call may take beyond the timeouts that the server knows of,
	// before the connection is taken for dead.
	grace = 5 * time.Second
)

// sqlSettings are for one transaction. What is set for a session would stay on a
// connection that is somebody else's next, or be set on another one behind a
// pooler. synchronous_commit is raised, never lowered.
const sqlSettings = `SELECT pg_catalog.set_config('statement_timeout', $1, true), pg_catalog.set_config('lock_timeout', $2, true),
  pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true), ` + sqlDurable

// sqlDurable is said again after an effect, which may have set it. A
// commit that did not wait for its standby is told by a warning, which must not be
// kept from us.
const sqlDurable = `pg_catalog.set_config('client_min_messages', 'warning', true), pg_catalog.set_config('synchronous_commit',
  CASE pg_catalog.current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)`

const (
	beginWrite = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
	beginRead  = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
)

// work is one transaction on one connection. One goroutine uses it.
type work struct {
	s        *Store
	conn     *pgxpool.Conn
	pg       *pgconn.PgConn
	broken   bool // nobody knows where in the conversation it is
	sent     bool // COMMIT
	affected bool // the application's code ran in it
}

// again does something until it is done, or failed for good.
func (s *Store) again(ctx context.Context, try func() error) error {
	until := time.Now().Add(s.cfg.patience)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := try()
		if err == nil || !passing(err) || ctx.Err() != nil || time.Now().After(until) {
			if err != nil && ctx.Err() != nil && !translated(err) {
				err = fmt.Errorf("%w (%w)", ctx.Err(), err)
			}
			return s.unavailable(err)
		}
		s.opts.Logger.Debug("try again", "ledger", s.name, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)):
		}
	}
}

// write runs a transition, which hands back the last statements of its
// transaction: none if there is nothing to commit. It may be run several times.
func (s *Store) write(ctx context.Context, run func(context.Context, *work) ([]statement, error)) error {
	if s.opts.ReadOnly {
		return s.unavailable(errReadOnly)
	}
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	select {
	case s.writers <- struct{}{}:
		defer func() { <-s.writers }()
	case <-ctx.Done():
		return s.unavailable(ctx.Err())
	}
	return s.again(ctx, func() error {
		return s.use(ctx, func(w *work) error {
			final, err := run(ctx, w)
			if err != nil || final == nil {
				return err
			}
			return w.commit(final)
		})
	})
}

// use runs fn with a connection, and leaves no transaction open on it.
func (s *Store) use(ctx context.Context, fn func(*work) error) error {
	if err := ctx.Err(); err != nil {
		return ctx.Err()
	}
	bounded, cancel := context.WithTimeoutCause(ctx, s.cfg.patience, errPool)
	defer cancel()
	conn, err := s.pool.Acquire(bounded)
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			return fmt.Errorf("%w: %w", errPool, err)
		}
		return err
	}
	w := &work{s: s, conn: conn, pg: conn.Conn().PgConn()}
	defer w.end() // whatever fn does: an effect may end the goroutine
	err = fn(w)
	// The pool is to find the primary, wherever that is now.
	w.broken = w.broken || errors.Is(err, errStandby) || code(err) == readOnly && !w.affected
	return err
}

// exchange sends statements before COMMIT: whatever goes wrong, nothing has
// happened.
func (w *work) exchange(ctx context.Context, statements ...statement) ([]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, w.s.opts.StatementTimeout+w.s.opts.LockTimeout+grace)
	defer cancel()
	answers, _, err := exchange(ctx, w.pg, statements...)
	w.broken = w.broken || err != nil && !errors.As(err, new(*pgconn.PgError))
	return answers, err
}

// begin opens a transaction with its first statements.
func (w *work) begin(ctx context.Context, mode string, statements ...statement) ([]answer, error) {
	o := &w.s.opts
	lock := o.LockTimeout
	if deadline, ok := ctx.Deadline(); ok {
		lock = max(min(lock, time.Until(deadline)), time.Millisecond)
	}
	all := append([]statement{do(mode), do(sqlSettings, ms(o.StatementTimeout), ms(lock), ms(o.IdleTimeout))}, statements...)
	answers, err := w.exchange(ctx, all...)
	if code(err) == "0A000" && len(answers) == 0 { // BEGIN of what writes
		return nil, fmt.Errorf("%w: %w", errStandby, err)
	}
	if err != nil {
		return nil, err
	}
	return answers[2:], nil
}

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// next takes the next position. From here on every other writer waits, so what is
// left to do is to commit. After an effect it is only taken in the transaction that
// the effect began in: nobody else sees the operation at no event.
func (w *work) next(ctx context.Context, r *row, positions int64) (at, clock time.Time, err error) {
	take := w.s.in(sqlNext, positions, w.s.opts.MaxClockJump.Microseconds())
	if w.affected {
		take.sql, take.args = take.sql+" WHERE (SELECT position = 0 FROM "+w.s.schema+".operations WHERE operation_id = $3)"+sqlTaken, append(take.args, w.s.scoped(r.Key))
	} else {
		take.sql += sqlTaken
	}
	answers, err := w.exchange(ctx, do("SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true), "+sqlDurable, ms(w.s.cfg.headPatience)), take)
	switch {
	case err == nil && len(answers[1].rows) != 1 && w.affected:
		err = &mcpreplay.EffectError{Err: errLost}
	case err == nil && len(answers[1].rows) != 1:
		err = w.s.incompatible(errNobody, "restore it from a backup")
	case code(err) == readOnly && w.affected:
		err = &mcpreplay.EffectError{Err: err, Internal: true}
	}
	if err != nil {
		return at, clock, err
	}
	c := reader{row: answers[1].rows[0]}
	r.Ledger.Position, at, r.Ledger.Incarnation, clock = c.int(), c.time(), c.int(), c.time()
	r.Ledger.Time = at
	if c.err == nil {
		c.err = w.s.believe(at, clock)
	}
	return at, clock, c.err
}

// move makes change of r, at the ledger's next position unless it is a renewal.
func (w *work) move(ctx context.Context, r *row, change mcpreplay.Change) ([]statement, error) {
	trial := *r // what cannot be is refused before others have to wait
	if _, err := trial.Change(change, r.clock, r.clock, 0); err != nil {
		return nil, err
	}
	isNew := r.Seq == 0
	at, clock := r.clock, r.clock
	if change.Event.Kind != "" {
		var err error
		if at, clock, err = w.next(ctx, r, 1); err != nil {
			return nil, err
		}
		if r.Late(at) && (rules.Writes(change) || isNew && change.To != mcpreplay.StateNotApplied) {
			return nil, mcpreplay.ErrExpired
		}
		if isNew {
			r.Seq, r.CreatedAt = r.Ledger.Position, at
		}
	}
	e, err := r.Change(change, at, clock, r.Ledger.Position)
	if err != nil {
		return nil, err
	}
	return w.s.save(r, e, change.Result != nil), nil
}

// commit ends the transaction with its last statements. They and COMMIT go in one
// message, so that the others wait for one round trip less. An answer that says
// ERROR says that nothing was committed; every other failure says nothing.
func (w *work) commit(final []statement) error {
	final = append(final, do("COMMIT"))
	ctx, cancel := context.WithTimeout(context.Background(), w.s.cfg.commitPatience)
	defer cancel()
	w.sent = true
	answers, notices, err := exchange(ctx, w.pg, final...)
	failed, isAnswer := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil && answers[len(answers)-1].tag.String() != "COMMIT":
		return errLost
	case err == nil && unreplicated(notices):
		return w.s.unknown(errUnreplicated)
	case err == nil:
		return nil
	case isAnswer && definite(failed) && w.affected && len(answers) == len(final)-1 && ofEffect(failed):
		return &mcpreplay.EffectError{Err: err, Internal: true}
	case isAnswer && definite(failed):
		return err
	case code(err) == "25P03" && len(answers) == 0: // it was ended while it waited for COMMIT
		return fmt.Errorf("%w: %w", errIdle, err)
	}
	w.broken = true
	w.s.opts.Logger.Error("commit not confirmed", "ledger", w.s.name, "error", err)
	return w.s.unknown(err)
}

// unreplicated reports whether the server gave up to wait for a standby: what was
// committed is there, and a failover would lose it.
func unreplicated(notices []*pgproto3.NoticeResponse) bool {
	for _, n := range notices {
		if n.File == "syncrep.c" || strings.Contains(n.Message, "synchronous replication") {
			return true
		}
	}
	return false
}

// end leaves the connection as it was found, or closes it.
func (w *work) end() {
	defer w.conn.Release()
	if w.pg.IsClosed() || w.pg.TxStatus() == 'I' && !w.broken {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if !w.broken && !w.pg.IsBusy() {
		if _, _, err := exchange(ctx, w.pg, do("ROLLBACK")); err == nil {
			return
		}
	}
	if !w.sent {
		// What is still running holds locks. A COMMIT is left alone: to cancel it is
		// to give up its wait for a standby.
		w.pg.CancelRequest(ctx)
	}
	w.conn.Conn().Close(ctx)
}
