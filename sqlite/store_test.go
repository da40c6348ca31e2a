package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"mcpreplay"
	"mcpreplay/sqlite"
	"mcpreplay/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) mcpreplay.Store { return openStore(t, newPath(t), nil) })
}

func TestApplier(t *testing.T) {
	storetest.RunApplier(t,
		func(t *testing.T) mcpreplay.Applier[*sqlite.Tx] { return openStore(t, newPath(t), nil) },
		storetest.Kit[*sqlite.Tx]{Write: writeRow, Count: countRows})
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "ledger.db") }

// openStore opens a ledger with the application's table beside it.
func openStore(t testing.TB, path string, opts *sqlite.Options) *sqlite.Store {
	t.Helper()
	if opts == nil {
		opts = &sqlite.Options{}
	}
	opts.Backend = "issues"
	s, err := sqlite.Open(path, opts)
	if err != nil {
		t.Fatalf("Open(): %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close(): %v", err)
		}
	})
	if !opts.ReadOnly {
		setup(t, s)
	}
	return s
}

// verified is openStore with a ledger that must be consistent at the end.
func verified(t testing.TB, path string, opts *sqlite.Options) *sqlite.Store {
	t.Helper()
	s := openStore(t, path, opts)
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

const tables = `
CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY AUTOINCREMENT, label TEXT NOT NULL, body TEXT);
CREATE INDEX IF NOT EXISTS item_label ON item (label);
CREATE TABLE IF NOT EXISTS tag (item INTEGER NOT NULL REFERENCES item (id) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE IF NOT EXISTS once (label TEXT PRIMARY KEY)`

func setup(t testing.TB, s *sqlite.Store) {
	t.Helper()
	err := s.Setup(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, tables)
		return err
	})
	if err != nil {
		t.Fatalf("Setup(): %v", err)
	}
}

func writeRow(ctx context.Context, tx *sqlite.Tx, label string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO item (label) VALUES (?)", label)
	return err
}

func countRows(ctx context.Context, tx *sqlite.Tx, label string) (n int, err error) {
	err = tx.QueryRowContext(ctx, "SELECT count(*) FROM item WHERE label = ?", label).Scan(&n)
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
func effect(id string) func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
	return func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
		return mcpreplay.Outcome{Result: mcpreplay.Result{Body: []byte(`{}`)}}, writeRow(ctx, tx, id)
	}
}

func apply(t testing.TB, s *sqlite.Store, id string) mcpreplay.Record {
	t.Helper()
	rec, started, err := s.Apply(t.Context(), operation(id), effect(id))
	if err != nil || !started {
		t.Fatalf("Apply(%s) = started %v, %v; want true, nil", id, started, err)
	}
	return rec
}

// query reads one value through a connection of its own that no store knows.
func query[T any](t testing.TB, path, q string) (v T) {
	t.Helper()
	db, err := sqlite.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(q).Scan(&v); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
	return v
}

// meddle changes the file behind every store's back.
func meddle(t testing.TB, path, q string) {
	t.Helper()
	db, err := sqlite.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(q); err != nil {
		t.Fatalf("%s: %v", q, err)
	}
}
