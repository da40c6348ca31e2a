package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

var (
	errClosed       = errors.New("the store has been closed")
	errReadOnly     = errors.New("the ledger was opened to read only")
	errNested       = errors.New("an effect must not call its own ledger: it could wait for itself")
	errGone         = errors.New("another ledger is in its place; restart to use the one that is there now")
	errStandby      = errors.New("the server is a standby, where nothing can be written")
	errNobody       = errors.New("it has the tables of a ledger and no identity in them")
	errLost         = errors.New("the transaction ended under the effect")
	errAborted      = errors.New("a statement of the effect failed, and with it the transaction")
	errEnded        = errors.New("the transaction is over: its handle must not outlive the effect")
	errBusy         = errors.New("the transaction is busy: one statement at a time, and rows are closed before the next")
	errPool         = errors.New("every connection of the pool was in use all the time")
	errIdle         = errors.New("this process was stopped while others waited for it to commit, and lost its turn")
	errNotYours     = errors.New("the transaction is not the effect's to end")
	errUnreplicated = errors.New("the server gave up waiting for its synchronous standby: a failover may lose what it committed")
	errLossy        = errors.New("the server has asynchronous standbys and no synchronous ones: a failover may lose a claim, and what it was for may then be done twice")
)

// ledgerError is trouble with the ledger itself. It names the ledger, and says
// what to do where there is something to do.
type ledgerError struct {
	kind   error // of the port
	name   string
	remedy string
	err    error
}

func (e *ledgerError) Error() string {
	msg := fmt.Sprintf("%v: %s: %v", e.kind, e.name, e.err)
	if e.remedy != "" {
		msg += "; " + e.remedy
	}
	return msg
}

func (e *ledgerError) Unwrap() []error { return []error{e.kind, e.err} }

// unavailable translates what kept the ledger from being used before anything was
// committed. Errors of the port, and of effects, pass unchanged.
func (s *Store) unavailable(err error) error {
	if err == nil || translated(err) {
		return err
	}
	if missing(err) {
		return s.incompatible(err, s.migrate())
	}
	return &ledgerError{kind: mcpreplay.ErrUnavailable, name: s.name, remedy: remedy(err), err: err}
}

// unknown translates the failure of a COMMIT that was sent.
func (s *Store) unknown(err error) error {
	return &ledgerError{kind: mcpreplay.ErrUnknown, name: s.name, remedy: "read the ledger: only a record is evidence", err: err}
}

// incompatible says why this is not a ledger of ours.
func (s *Store) incompatible(why error, remedy string) error {
	return &ledgerError{kind: mcpreplay.ErrIncompatible, name: s.name, remedy: remedy, err: why}
}

func (s *Store) migrate() string {
	command := "mcpreplay migrate --ledger postgres:URL"
	if s.opts.Schema != "mcpreplay" {
		command += " --schema " + s.opts.Schema
	}
	return "run " + command
}

func translated(err error) bool {
	var (
		ledger     *ledgerError
		effect     *mcpreplay.EffectError
		transition *mcpreplay.TransitionError
	)
	if errors.As(err, &ledger) || errors.As(err, &effect) || errors.As(err, &transition) {
		return true
	}
	for _, known := range []error{
		mcpreplay.ErrNotFound, mcpreplay.ErrConflict, mcpreplay.ErrStale, mcpreplay.ErrExpired, mcpreplay.ErrForgotten,
		mcpreplay.ErrUnavailable, mcpreplay.ErrUnknown, mcpreplay.ErrClock, mcpreplay.ErrIncompatible,
		errNested, rules.ErrMisuse,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// readOnly is the SQLSTATE of a write where nothing can be written.
const readOnly = "25006"

// code is the SQLSTATE of an error, or "".
func code(err error) string {
	if failed, ok := errors.AsType[*pgconn.PgError](err); ok {
		return failed.Code
	}
	return ""
}

// passing reports whether the whole transaction may be run again, because the
// error is one that passes by itself: a deadlock, a conflict of snapshots, a
// connection or server that is gone. It is asked only where nothing can have been
// committed.
func passing(err error) bool {
	if err == nil || translated(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errClosed) {
		return false
	}
	if errors.Is(err, errGone) || errors.Is(err, errLost) || errors.Is(err, errPool) || errors.Is(err, errIdle) || strings.HasSuffix(err.Error(), "closed pool") {
		return false
	}
	switch c := code(err); {
	case c == "":
		return true // no answer of the server at all
	case c == "40001", c == "40P01": // serialization failure, deadlock
		return true
	case c == "57P01", c == "57P02", c == "57P03": // ended by an administrator or a crash, not ready yet
		return true
	case c == readOnly: // a primary that has become a standby
		return true
	default:
		return strings.HasPrefix(c, "08")
	}
}

// definite reports whether an answer to COMMIT says that nothing was committed.
// FATAL and PANIC end the connection, perhaps after the commit; what a pooler or
// the operating system says is not about the transaction; and a distributed
// database has a code that says that it does not know.
func definite(e *pgconn.PgError) bool {
	severity := e.SeverityUnlocalized
	if severity == "" {
		severity = e.Severity
	}
	return severity == "ERROR" && e.Code != "40003" && !strings.HasPrefix(e.Code, "08") && !strings.HasPrefix(e.Code, "57P") && !strings.HasPrefix(e.Code, "58")
}

// ofEffect reports whether COMMIT failed for what an effect did, as a deferred
// constraint finds it, and not for want of a working server.
func ofEffect(e *pgconn.PgError) bool {
	for _, class := range []string{"40", "53", "55", "57", "58", "XX"} {
		if strings.HasPrefix(e.Code, class) {
			return false
		}
	}
	return true
}

// missing reports whether a schema, table or column is not there.
func missing(err error) bool {
	switch code(err) {
	case "3F000", "42P01", "42703":
		return true
	}
	return false
}

// remedies are tried in order: the first that matches is told.
var remedies = []struct {
	is     error
	remedy string
}{
	{errLossy, "name a synchronous standby in synchronous_standby_names, or set Options.AllowLossyFailover"},
	{context.Canceled, "nothing was written"},
	{context.DeadlineExceeded, "nothing was written; try again, or allow more time"},
	{errStandby, "connect to the primary: target_session_attrs=read-write with all hosts"},
}

func remedy(err error) string {
	for _, r := range remedies {
		if errors.Is(err, r.is) {
			return r.remedy
		}
	}
	switch code(err) {
	case "55P03":
		return "nothing was written; another transaction held what was needed all the time"
	case "57014":
		return "nothing was written; the statement took too long"
	case "42501":
		return "grant this role what docs/operating.md lists"
	case "53300":
		return "nothing was written; allow more connections, or use fewer"
	case readOnly:
		return "connect to the primary: target_session_attrs=read-write with all hosts"
	}
	return ""
}

// fromPostgres reports whether an error has the server's own text in it, with the
// names of tables and columns.
func fromPostgres(err error) bool { return code(err) != "" }
