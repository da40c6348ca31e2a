package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Patient is Open with other bounds than an application gets.
func Patient(ctx context.Context, pool *pgxpool.Pool, opts *Options, patience, commit time.Duration) (*Store, error) {
	return open(ctx, pool, opts, config{patience: patience, commitPatience: commit, headPatience: 200 * time.Millisecond})
}

// Raw is the connection under a handle, past everything that guards it.
type Raw struct{ pg *pgconn.PgConn }

func Conn(tx *Tx) Raw { return Raw{tx.loan.conn.PgConn()} }

func (r Raw) Exec(ctx context.Context, sql string) ([]*pgconn.Result, error) {
	return r.pg.Exec(ctx, sql).ReadAll()
}

var Permit = permit
