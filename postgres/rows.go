package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows are rows of the application. They do not give the connection away, and end
// with the loan.
type rows struct {
	loan   *loan
	inner  pgx.Rows // nil: there are none, because of err
	cancel context.CancelFunc
	err    error
	closed bool
}

// finish reads what is left. It is called by whoever holds the loan's turn.
func (r *rows) finish() {
	if r.inner == nil || r.closed {
		return
	}
	r.closed = true
	r.inner.Close()
	r.cancel()
	r.err = r.loan.note(r.inner.Err())
	if r.loan.rows == r {
		r.loan.rows = nil
	}
}

// with runs fn while nobody else has the connection, unless the loan is over.
func (r *rows) with(fn func()) error {
	if r.inner == nil {
		return r.err
	}
	select {
	case r.loan.turn <- struct{}{}:
		defer func() { <-r.loan.turn }()
	default:
		return errBusy
	}
	if r.loan.ended {
		return errEnded
	}
	fn()
	return nil
}

func (r *rows) Close() { r.with(r.finish) }

func (r *rows) Err() error {
	if r.err != nil || r.inner == nil {
		return r.err
	}
	var err error
	if outer := r.with(func() { err = r.inner.Err() }); outer != nil {
		return outer
	}
	return err
}

func (r *rows) Next() (more bool) {
	r.with(func() {
		if r.closed {
			return
		}
		if more = r.inner.Next(); !more {
			r.finish()
		}
	})
	return more
}

func (r *rows) Scan(dest ...any) (err error) {
	if outer := r.with(func() { err = r.inner.Scan(dest...) }); outer != nil {
		return outer
	}
	return err
}

func (r *rows) Values() (values []any, err error) {
	if outer := r.with(func() { values, err = r.inner.Values() }); outer != nil {
		return nil, outer
	}
	return values, err
}

func (r *rows) RawValues() (values [][]byte) {
	r.with(func() { values = r.inner.RawValues() })
	return values
}

func (r *rows) CommandTag() (tag pgconn.CommandTag) {
	r.with(func() { tag = r.inner.CommandTag() })
	return tag
}

func (r *rows) FieldDescriptions() (fields []pgconn.FieldDescription) {
	r.with(func() { fields = r.inner.FieldDescriptions() })
	return fields
}

func (r *rows) TypeMap() *pgtype.Map {
	if r.inner == nil {
		return pgtype.NewMap()
	}
	return r.inner.TypeMap()
}

func (r *rows) Conn() *pgx.Conn { return nil }

// oneRow is the one row that QueryRow reads.
type oneRow rows

func (o *oneRow) Scan(dest ...any) error {
	r := (*rows)(o)
	defer r.Close()
	if !r.Next() {
		if err := r.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.Scan(dest...); err != nil {
		return err
	}
	r.Close()
	return r.Err()
}

// batch is the results of a batch.
type batch struct {
	tx    *Tx
	ctx   context.Context
	queue []*pgx.QueuedQuery
	err   error
}

var errBatchEnd = errors.New("the batch has no more statements")

func (b *batch) take() (*pgx.QueuedQuery, error) {
	if b.err == nil && len(b.queue) == 0 {
		return nil, errBatchEnd
	}
	if b.err != nil {
		return nil, b.err
	}
	q := b.queue[0]
	b.queue = b.queue[1:]
	return q, nil
}

func (b *batch) keep(err error) error {
	if b.err == nil {
		b.err = err
	}
	return err
}

func (b *batch) Exec() (tag pgconn.CommandTag, err error) {
	q, err := b.take()
	if err == nil {
		tag, err = b.tx.Exec(b.ctx, q.SQL, q.Arguments...)
		b.keep(err)
	}
	return tag, err
}

func (b *batch) Query() (pgx.Rows, error) {
	q, err := b.take()
	if err != nil {
		return &rows{loan: b.tx.loan, err: err}, err
	}
	r, err := b.tx.Query(b.ctx, q.SQL, q.Arguments...)
	return r, b.keep(err)
}

func (b *batch) QueryRow() pgx.Row {
	r, _ := b.Query()
	return (*oneRow)(r.(*rows))
}

func (b *batch) Tx() pgx.Tx { return b.tx }

func (b *batch) Close() error {
	for b.err == nil && len(b.queue) > 0 {
		if fn := b.queue[0].Fn; fn != nil {
			b.keep(fn(b))
			continue
		}
		b.Exec()
	}
	return b.err
}
