//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"
	"mcpreplay/storetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childRole) != "" {
		childMain()
	}
	pgtest.Main(m)
}

func TestStore(t *testing.T) {
	url := newDatabase(t)
	storetest.Run(t, func(t *testing.T) mcpreplay.Store { return openBeside(t, url) })
}

var kit = storetest.Kit[*postgres.Tx]{Write: writeRow, Count: countRows}

func TestApplier(t *testing.T) {
	url := newDatabase(t)
	storetest.RunApplier(t, func(t *testing.T) mcpreplay.Applier[*postgres.Tx] { return openBeside(t, url) }, kit)
}

var ledgers atomic.Int64

// openBeside opens a new ledger in a database that has others, with an application
// of its own: to make a database takes longer than most tests.
func openBeside(t testing.TB, url string) *postgres.Store {
	t.Helper()
	n := ledgers.Add(1)
	app := fmt.Sprintf("app_%d", n)
	if _, err := newPool(t, url).Exec(t.Context(), "CREATE SCHEMA "+app); err != nil {
		t.Fatal(err)
	}
	return openStore(t, url+"&search_path="+app, &postgres.Options{Schema: fmt.Sprintf("ledger %d", n)})
}

// newDatabase is a database of its own on the shared server.
func newDatabase(t testing.TB) string {
	t.Helper()
	return pgtest.Shared(t).Database(t)
}

func newPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.NewPool(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// openStore opens a ledger with the application's tables beside it, and makes both
// if they are not there.
func openStore(t testing.TB, url string, opts *postgres.Options) *postgres.Store {
	t.Helper()
	pool := newPool(t, url)
	setup(t, pool, opts)
	return openPool(t, pool, opts)
}

func backend(opts *postgres.Options) *postgres.Options {
	o := postgres.Options{}
	if opts != nil {
		o = *opts
	}
	o.Backend = "issues"
	return &o
}

const tables = `
CREATE TABLE IF NOT EXISTS item (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, label text NOT NULL, body text);
CREATE INDEX IF NOT EXISTS item_label ON item (label);
CREATE TABLE IF NOT EXISTS tag (item bigint NOT NULL REFERENCES item (id) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE IF NOT EXISTS once (label text PRIMARY KEY, n bigint NOT NULL DEFAULT 0)`

func setup(t testing.TB, pool *pgxpool.Pool, opts *postgres.Options) {
	t.Helper()
	if err := postgres.Migrate(t.Context(), pool, backend(opts)); err != nil {
		t.Fatalf("Migrate(): %v", err)
	}
	if _, err := pool.Exec(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
}

func openPool(t testing.TB, pool *pgxpool.Pool, opts *postgres.Options) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), pool, backend(opts))
	if err != nil {
		t.Fatalf("Open(): %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close(): %v", err)
		}
	})
	return s
}

// verified is openStore with a ledger that must be consistent at the end.
func verified(t testing.TB, url string, opts *postgres.Options) *postgres.Store {
	t.Helper()
	s := openStore(t, url, opts)
	t.Cleanup(func() { verify(t, s) })
	return s
}

func verify(t testing.TB, s mcpreplay.Store) {
	t.Helper()
	report, err := mcpreplay.Verify(context.Background(), s)
	if err != nil {
		t.Errorf("verify: %v", err)
	}
	for _, f := range report.Findings {
		t.Errorf("verify: %v", f)
	}
}

func writeRow(ctx context.Context, tx *postgres.Tx, label string) error {
	_, err := tx.Exec(ctx, "INSERT INTO item (label) VALUES ($1)", label)
	return err
}

func countRows(ctx context.Context, tx *postgres.Tx, label string) (n int, err error) {
	err = tx.QueryRow(ctx, "SELECT count(*) FROM item WHERE label = $1", label).Scan(&n)
	return n, err
}

func key(id string) mcpreplay.Key { return mcpreplay.Key{Principal: "alice", ID: id} }

func operation(id string) mcpreplay.Operation {
	digest := make([]byte, 32)
	return mcpreplay.Operation{
		Key: key(id), Tool: "create_issue", Version: "1",
		Digests: mcpreplay.Digests{KeyID: "k1", Fingerprint: digest, Arguments: digest, Answers: digest, State: digest, Sent: digest},
	}
}

func claim() mcpreplay.Change {
	return mcpreplay.Change{
		To: mcpreplay.StateInProgress, Owner: "owner-1",
		Event: mcpreplay.Event{Kind: mcpreplay.EventClaim, Actor: "owner-1"},
	}
}

// effect writes one row with the id as its label.
func effect(id string) func(context.Context, *postgres.Tx) (mcpreplay.Outcome, error) {
	return func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
		return mcpreplay.Outcome{Result: mcpreplay.Result{Body: []byte(`{}`)}}, writeRow(ctx, tx, id)
	}
}

func apply(t testing.TB, s *postgres.Store, id string) mcpreplay.Record {
	t.Helper()
	rec, started, err := s.Apply(t.Context(), operation(id), effect(id))
	if err != nil || !started {
		t.Fatalf("Apply(%s) = started %v, %v; want true, nil", id, started, err)
	}
	return rec
}

// query reads one value through a connection of its own that no store knows.
func query[T any](t testing.TB, url, q string, args ...any) (v T) {
	t.Helper()
	pool, err := postgres.NewPool(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close() // now: some ask a hundred times
	if err := pool.QueryRow(context.Background(), q, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return v
}
