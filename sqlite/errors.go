package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/internal/rules"
)

var (
	errClosed     = errors.New("the store is closed")
	errReadOnly   = errors.New("the ledger was opened read-only")
	errNested     = errors.New("an effect must not call its own ledger: it would wait for itself")
	errGone       = errors.New("the ledger's file was deleted, moved or replaced while it was open; restart to use the one that is there now")
	errLinked     = errors.New("its file has another name (a hard link), and whoever opens that one has a log of their own")
	errIsDir      = fmt.Errorf("it is a directory: %w", sqlite3.CANTOPEN_ISDIR)
	errBusy       = errors.New("another process held the write lock all the time")
	errLost       = errors.New("the transaction was rolled back under the effect")
	errEnded      = errors.New("the transaction has ended: its handle must not outlive the effect")
	errNeighbour  = errors.New("it shared a commit that is not confirmed, and wrote nothing")
	errNames      = errors.New("the effect gave something a name of the ledger's (mcpreplay_...)")
	errHinders    = errors.New("the effect made a statement of the ledger's fail")
	errNobody     = errors.New("it has the tables of a ledger and no identity")
	errBehind     = errors.New("its sequence of positions is behind its events")
	errVersion    = errors.New("it has tables of a ledger and no schema version")
	errNoBegin    = errors.New("the transaction is the ledger's")
	errRowsOpen   = errors.New("the statement's rows are still open: close them before it runs again")
	errStmtClosed = errors.New("the statement is closed")
	errSequence   = errors.New("the effect changed the ledger's row of sqlite_sequence")
	errSlow       = errors.New("the effect took too long and was rolled back; its limit is")
	errGoexit     = errors.New("the effect ended its goroutine (runtime.Goexit)")
)

// ledgerError is trouble with the ledger itself. It names the file, and says
// what to do where there is something to do.
type ledgerError struct {
	kind   error // of the port
	file   string
	remedy string
	err    error // of the driver or the system
}

func (e *ledgerError) Error() string {
	msg := fmt.Sprintf("%v: %s: %v", e.kind, e.file, e.err)
	if e.remedy != "" {
		msg += "; " + e.remedy
	}
	return msg
}

func (e *ledgerError) Unwrap() []error { return []error{e.kind, e.err} }

// unavailable translates what kept the ledger from being used before anything
// was committed. Errors of the port, and of effects, pass unchanged.
func (s *Store) unavailable(err error) error {
	if err == nil || translated(err) {
		return err
	}
	kind := mcpreplay.ErrUnavailable
	if errors.Is(err, sqlite3.NOTADB) {
		kind = mcpreplay.ErrIncompatible
	}
	return &ledgerError{kind: kind, file: s.path, remedy: remedy(err), err: err}
}

// unknown translates the failure of a COMMIT that was sent.
func (s *Store) unknown(err error) error {
	return &ledgerError{kind: mcpreplay.ErrUnknown, file: s.path, remedy: remedy(err), err: err}
}

// incompatible says why the file is not a ledger of ours.
func (s *Store) incompatible(why error, remedy string) error {
	return &ledgerError{kind: mcpreplay.ErrIncompatible, file: s.path, remedy: remedy, err: why}
}

// damaged translates what shows that the file was a ledger of ours once: trying
// again does not help.
func (s *Store) damaged(err error) error {
	switch {
	case errors.Is(err, errNobody), errors.Is(err, errBehind), errors.Is(err, errVersion),
		errors.Is(err, sqlite3.ERROR): // a table or column is missing
		return s.incompatible(err, "restore it from a backup")
	}
	return err
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

// remedies are tried in order: the first that matches is told.
var remedies = []struct {
	is     error
	remedy string
}{
	{context.Canceled, "nothing was written"},
	{context.DeadlineExceeded, "nothing was written; try again, or allow more time"},
	{errLinked, "remove the other name, or copy the file to a place of its own"},
	{errBusy, "nothing was written; try again, or find the process that holds it"},
	{sqlite3.FULL, "free space on its disk"},
	{sqlite3.READONLY, "make the file and its directory writable for this user"},
	{sqlite3.PERM, "make the file and its directory writable for this user"},
	{fs.ErrPermission, "make the file and its directory readable and writable for this user"},
	{sqlite3.NOTADB, "name another file: this one is not an SQLite database"},
	{sqlite3.CORRUPT, "stop writing and restore it from a backup"},
	{sqlite3.CANTOPEN_ISDIR, "name a file, not a directory"},
	{fs.ErrNotExist, "create its directory, or name another file"},
	{sqlite3.CANTOPEN, "check that its directory exists and that this user may write there"},
	{sqlite3.IOERR, "check its disk: it may be full or failing"},
	{sqlite3.BUSY, "try again, or find the process that holds it"},
	{sqlite3.PROTOCOL, "use only one SQLite library for the file"},
}

func remedy(err error) string {
	for _, r := range remedies {
		if errors.Is(err, r.is) {
			return r.remedy
		}
	}
	return ""
}

// busy reports whether waiting may help.
func busy(err error) bool {
	return errors.Is(err, sqlite3.BUSY) || errors.Is(err, sqlite3.LOCKED) || errors.Is(err, sqlite3.INTERRUPT)
}

// fromSQLite reports whether an error has SQLite's own text in it, with the names
// of tables and columns.
func fromSQLite(err error) bool {
	_, isError := errors.AsType[*sqlite3.Error](err)
	return isError
}

// spoils reports whether a connection that had this error must not be used
// again.
func spoils(err error) bool {
	for _, code := range []sqlite3.ErrorCode{
		sqlite3.IOERR, sqlite3.CORRUPT, sqlite3.NOTADB, sqlite3.CANTOPEN, sqlite3.READONLY,
		sqlite3.MISUSE, sqlite3.INTERNAL, sqlite3.PROTOCOL, sqlite3.PERM,
	} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// storage reports whether an error of an effect's statement is the ledger's
// trouble and not the statement's.
func storage(err error) bool {
	return spoils(err) && !errors.Is(err, sqlite3.MISUSE) || errors.Is(err, sqlite3.FULL)
}
