package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
)

// config is what only tests change.
type config struct {
	patience       time.Duration
	commitPatience time.Duration
	headPatience   time.Duration
}

// Open opens the ledger that Migrate made in the database of pool, which stays the
// caller's: its settings do not matter, and Close leaves it open. At least one
// connection of it should be free while all writers wait for each other.
//
// It returns an error matching mcpreplay.ErrIncompatible if the ledger is not
// there, belongs to another backend, has an older or newer schema, or if the server
// is not durable, and one matching mcpreplay.ErrUnavailable if the server cannot be
// used now.
func Open(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	return open(ctx, pool, opts, config{patience: patience, commitPatience: commitPatience, headPatience: headPatience})
}

// Connect is Open with a pool of the store's own, which Close closes. Errors do not
// repeat the connection string, which may hold a password.
func Connect(ctx context.Context, connString string, opts *Options) (*Store, error) {
	if _, err := opts.resolve(); err != nil {
		return nil, err
	}
	pool, err := NewPool(ctx, connString)
	if err != nil {
		return nil, err
	}
	s, err := Open(ctx, pool, opts)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// NewPool makes the pool that Connect uses: of a connection string as libpq has
// them, a URL or words. It connects to the primary among several hosts, and uses no
// statement that has a name.
func NewPool(ctx context.Context, connString string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(connString)
	if err != nil { // its text may have parts of the password in it
		return nil, errors.New("postgres: the connection string is not one: want postgres://USER@HOST:PORT/DATABASE?OPTION=VALUE")
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", mcpreplay.ErrUnavailable, err)
	}
	return pool, nil
}

func open(ctx context.Context, pool *pgxpool.Pool, opts *Options, cfg config) (*Store, error) {
	s, err := newStore(pool, opts, cfg)
	if err != nil {
		return nil, err
	}
	err = s.use(ctx, func(w *work) error {
		if err := s.durable(ctx, w); err != nil {
			return err
		}
		return s.identify(ctx, w)
	})
	if err != nil {
		return nil, s.unavailable(err)
	}
	return s, nil
}

func newStore(pool *pgxpool.Pool, opts *Options, cfg config) (*Store, error) {
	o, err := opts.resolve()
	if pool == nil {
		err = errors.Join(errors.New("postgres: pool: must not be nil"), err)
	}
	if err != nil {
		return nil, err
	}
	c := pool.Config()
	return &Store{
		pool: pool, opts: o, cfg: cfg, schema: o.quoted(),
		name:    fmt.Sprintf("database %q on %s, schema %q", c.ConnConfig.Database, c.ConnConfig.Host, o.Schema),
		writers: make(chan struct{}, max(1, c.MaxConns-1)),
	}, nil
}

const sqlServer = `SELECT pg_catalog.current_setting('server_version_num')::bigint, pg_catalog.current_setting('server_encoding'),
  pg_catalog.current_setting('client_encoding'), pg_catalog.current_setting('fsync'), pg_catalog.current_setting('full_page_writes'),
  pg_catalog.pg_is_in_recovery()`

// durable refuses a server that would lose what it acknowledged.
func (s *Store) durable(ctx context.Context, w *work) error {
	answers, err := w.exchange(ctx, do(sqlServer))
	if err != nil {
		return err
	}
	c := reader{row: answers[0].rows[0]}
	version, server, client, fsync, pages, standby := c.int(), c.text(), c.text(), c.text(), c.text(), c.bool()
	switch {
	case version < 130000:
		return s.incompatible(fmt.Errorf("the server is version %d", version/10000), "use PostgreSQL 13 or newer")
	case server != "UTF8" || client != "UTF8":
		return s.incompatible(fmt.Errorf("the encoding of the database is %s, and of the connection %s", server, client), "use a database in UTF8")
	case fsync != "on":
		return s.incompatible(errors.New("the server runs with fsync off: it may lose or damage what it acknowledged"), "set fsync = on")
	case standby:
		return errStandby
	}
	if pages != "on" {
		s.opts.Logger.Warn("the server runs with full_page_writes off: that is safe only on storage that never writes half a page", "ledger", s.name)
	}
	return nil
}

// identify checks that the schema is current, and the ledger the configured
// backend's.
func (s *Store) identify(ctx context.Context, w *work) error {
	version, err := s.version(ctx, w)
	if err != nil {
		return err
	}
	if version < len(migrations) {
		return s.incompatible(fmt.Errorf("it holds schema version %d of %d", version, len(migrations)), s.migrate())
	}
	answers, err := w.exchange(ctx, s.in("SELECT backend, instance, ids FROM {schema}.ledger CROSS JOIN {schema}.head"))
	if err != nil {
		return err
	}
	if len(answers[0].rows) != 1 {
		return s.incompatible(errNobody, s.migrate())
	}
	c := reader{row: answers[0].rows[0]}
	backend := c.text()
	s.instance, s.ids = c.text(), IDs(c.text())
	if backend != s.opts.Backend && s.opts.Backend != "" {
		return s.incompatible(fmt.Errorf("it is the ledger of backend %q, not of %q", backend, s.opts.Backend),
			"name the schema of this backend, or configure the backend of this ledger")
	}
	if s.opts.IDs != "" && s.opts.IDs != s.ids {
		return s.incompatible(fmt.Errorf("its operation ids are %q, not %q", s.ids, s.opts.IDs), "configure Options.IDs as this ledger was made")
	}
	return nil
}
