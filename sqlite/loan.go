package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
)

// loan is a connection lent to the application's code for one call: a driver
// for database/sql in front of the real one, which takes everything back when
// the call ends.
//
// From above that cannot be done. Rows and statements that outlive the call, and
// the goroutine that database/sql starts to close rows when their context ends,
// would use the connection at the same time as the ledger; and to close a
// sql.Conn is to wait for whoever holds its rows. So nothing here waits for
// database/sql: every use of the connection holds mu, and after end there is
// none.
type loan struct {
	inner lender
	raw   *sqlite3.Conn // the same connection
	stop  *stop         // interrupts whatever runs
	read  bool          // on a reading connection there is no transaction to lose

	mu     sync.Mutex
	ended  bool
	lost   bool // nothing may run any more: it would commit by itself
	broken bool // a call of the driver did not return
	stmts  map[*loanStmt]struct{}
	untold []*loanRows // of statements that failed, until the application hears of it
}

// lender is what the real driver's connections can do, and lentStmt and lentRows
// what its statements and rows can.
type (
	lender interface {
		driver.Conn
		sqldriver.ExecerContext
	}
	lentStmt interface {
		sqldriver.Stmt
		sqldriver.StmtExecContext
		sqldriver.StmtQueryContext
		sqldriver.NamedValueChecker
		ReadOnly() bool
	}
	lentRows interface {
		sqldriver.Rows
		sqldriver.RowsColumnTypeDatabaseTypeName
		sqldriver.RowsColumnTypeNullable
		sqldriver.RowsColumnTypeScanType
	}
)

func (c *conn) lend(read bool) *loan {
	return &loan{inner: c.inner, raw: c.raw, stop: &c.stop, read: read, stmts: map[*loanStmt]struct{}{}}
}

// use runs one call of the driver, if there may be one. It is asked before each,
// not only after one that failed: rows and statements that the application holds
// can lose the transaction unseen.
func (l *loan) use(call func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended:
		return errEnded
	case l.gone():
		return errLost
	}
	l.broken = true
	err := call()
	l.broken = false
	return l.check(err)
}

// gone reports whether SQLite rolled the transaction back: INSERT OR ROLLBACK,
// RAISE(ROLLBACK), and a full disk do that.
func (l *loan) gone() bool {
	if !l.read && !l.lost {
		l.lost = l.raw.GetAutocommit()
	}
	return l.lost
}

// check says of a failed call whether it took the transaction with it.
func (l *loan) check(err error) error {
	if err != nil && err != io.EOF && l.gone() && !errors.Is(err, errLost) {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}

// end waits for the call of the driver that is running, and makes it the last.
// It reports whether the transaction is still there, with all that was asked for
// in it.
func (l *loan) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for st := range l.stmts {
		st.inner.Close()
	}
	if l.gone() {
		return errLost
	}
	var errs []error
	for _, r := range l.untold {
		if !r.told {
			errs = append(errs, r.err)
		}
	}
	return errors.Join(errs...)
}

// Connect makes the loan a driver.Connector, too.
func (l *loan) Connect(context.Context) (sqldriver.Conn, error) { return l, nil }
func (l *loan) Driver() sqldriver.Driver                        { return nil }

// Close leaves the connection open: it is not database/sql that ends the loan.
func (l *loan) Close() error { return nil }

func (l *loan) Begin() (sqldriver.Tx, error) { return nil, errNoBegin }

func (l *loan) Prepare(query string) (sqldriver.Stmt, error) {
	return l.PrepareContext(context.Background(), query)
}

// PrepareContext, like all that follow, hears no context: to interrupt a
// statement is to lose the transaction.
func (l *loan) PrepareContext(_ context.Context, query string) (st sqldriver.Stmt, err error) {
	err = l.use(func() error {
		inner, err := l.inner.PrepareContext(l.stop, query)
		if err != nil {
			return err
		}
		s := &loanStmt{loan: l, inner: inner.(lentStmt)}
		s.inputs, s.writes = s.inner.NumInput(), !s.inner.ReadOnly()
		l.stmts[s] = struct{}{}
		st = s
		return nil
	})
	return st, err
}

// ExecContext runs statements without arguments, several at once if need be.
func (l *loan) ExecContext(_ context.Context, query string, args []sqldriver.NamedValue) (res sqldriver.Result, err error) {
	if len(args) != 0 {
		return nil, sqldriver.ErrSkip // for database/sql to prepare it
	}
	err = l.use(func() (err error) {
		res, err = l.inner.ExecContext(l.stop, query, nil)
		return err
	})
	return res, err
}

// CheckNamedValue leaves arguments to the statement that gets them.
func (l *loan) CheckNamedValue(*sqldriver.NamedValue) error { return nil }

// loanStmt is a statement of the application.
type loanStmt struct {
	loan   *loan
	inner  lentStmt
	inputs int
	writes bool
	closed bool
	rows   *loanRows // being read
}

func (s *loanStmt) NumInput() int                                    { return s.inputs }
func (s *loanStmt) CheckNamedValue(v *sqldriver.NamedValue) error    { return s.inner.CheckNamedValue(v) }
func (s *loanStmt) Exec([]sqldriver.Value) (sqldriver.Result, error) { return nil, sqldriver.ErrSkip }
func (s *loanStmt) Query([]sqldriver.Value) (sqldriver.Rows, error)  { return nil, sqldriver.ErrSkip }

func (s *loanStmt) Close() error {
	s.loan.mu.Lock()
	defer s.loan.mu.Unlock()
	if s.closed || s.loan.ended {
		return nil
	}
	s.closed = true
	delete(s.loan.stmts, s)
	return s.inner.Close()
}

func (s *loanStmt) ExecContext(_ context.Context, args []sqldriver.NamedValue) (res sqldriver.Result, err error) {
	err = s.use(func() (err error) {
		res, err = s.inner.ExecContext(s.loan.stop, args)
		return err
	})
	return res, err
}

// QueryContext runs a statement that writes to its end, whether or not anybody
// reads what it returns: SQLite would not even begin before the first row is
// asked for.
func (s *loanStmt) QueryContext(_ context.Context, args []sqldriver.NamedValue) (rows sqldriver.Rows, err error) {
	err = s.use(func() error {
		inner, err := s.inner.QueryContext(s.loan.stop, args)
		if err != nil {
			return err
		}
		r := &loanRows{stmt: s, inner: inner.(lentRows), names: inner.Columns()}
		if s.writes {
			r.fetch()
		} else {
			s.rows = r
		}
		rows = r
		return nil
	})
	return rows, err
}

func (s *loanStmt) use(call func() error) error {
	return s.loan.use(func() error {
		switch {
		case s.closed:
			return errStmtClosed
		case s.rows != nil: // running it again would go on with those
			return errRowsOpen
		}
		return call()
	})
}

// loanRows are rows of the application: read from the statement one by one, or
// all there when the statement writes.
type loanRows struct {
	stmt  *loanStmt
	inner lentRows
	names []string

	ahead [][]sqldriver.Value
	err   error // what Next says after the last row; nil: there may be more
	told  bool
}

func (r *loanRows) fetch() {
	for r.err == nil {
		row := make([]sqldriver.Value, len(r.names))
		if r.step(row); r.err == nil {
			r.ahead = append(r.ahead, row)
		}
	}
	r.inner.Close()
	if r.err != io.EOF {
		r.ahead = nil
		r.err = r.stmt.loan.check(r.err)
		r.stmt.loan.untold = append(r.stmt.loan.untold, r)
	}
}

// step reads a row. A blob is copied, because it lies in memory that is SQLite's
// again as soon as mu is free.
func (r *loanRows) step(row []sqldriver.Value) {
	if r.err = r.inner.Next(row); r.err != nil {
		return
	}
	for i, v := range row {
		if b, ok := v.([]byte); ok {
			row[i] = append([]byte{}, b...)
		}
	}
}

func (r *loanRows) Columns() []string { return r.names }

func (r *loanRows) Next(row []sqldriver.Value) error {
	return r.stmt.loan.use(func() error {
		switch {
		case len(r.ahead) > 0:
			copy(row, r.ahead[0])
			r.ahead = r.ahead[1:]
			return nil
		case r.err != nil: // one more step would run the statement again
			r.told = true
			return r.err
		case r.stmt.closed:
			return errStmtClosed
		}
		r.step(row)
		return r.err
	})
}

func (r *loanRows) Close() error {
	l := r.stmt.loan
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || r.stmt.closed || r.stmt.rows != r {
		return nil
	}
	r.stmt.rows = nil
	return r.inner.Close()
}

func (r *loanRows) ColumnTypeDatabaseTypeName(i int) (name string) {
	r.look(func() { name = r.inner.ColumnTypeDatabaseTypeName(i) })
	return name
}

func (r *loanRows) ColumnTypeNullable(i int) (nullable, ok bool) {
	r.look(func() { nullable, ok = r.inner.ColumnTypeNullable(i) })
	return nullable, ok
}

func (r *loanRows) ColumnTypeScanType(i int) reflect.Type {
	t := reflect.TypeFor[any]()
	r.look(func() { t = r.inner.ColumnTypeScanType(i) })
	return t
}

// look asks the statement, if it is still there.
func (r *loanRows) look(ask func()) {
	r.stmt.loan.use(func() error {
		if !r.stmt.closed {
			ask()
		}
		return nil
	})
}
