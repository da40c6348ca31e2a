package sqlite_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/sqlite"
)

type body = func(context.Context, *sqlite.Tx) error

// run applies op-effect with the effect, which writes one row first.
func run(t *testing.T, s *sqlite.Store, fn body) error {
	t.Helper()
	_, _, err := s.Apply(t.Context(), operation("op-effect"), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
		if err := writeRow(ctx, tx, "op-effect"); err != nil {
			return mcpreplay.Outcome{}, err
		}
		return mcpreplay.Outcome{}, fn(ctx, tx)
	})
	return err
}

// definite requires that the effect failed for sure, that nothing of it is left,
// and that the same id can be used at once.
func definite(t *testing.T, s *sqlite.Store, path string, err error) *mcpreplay.EffectError {
	t.Helper()
	var failed *mcpreplay.EffectError
	if !errors.As(err, &failed) || errors.Is(err, mcpreplay.ErrUnknown) {
		t.Fatalf("Apply() = %v, want an *EffectError that is definite", err)
	}
	if _, err := s.Get(t.Context(), key("op-effect")); !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrNotFound)
	}
	if n := query[int](t, path, "SELECT (SELECT count(*) FROM item) + (SELECT count(*) FROM once) + (SELECT count(*) FROM mcpreplay_operations)"); n != 0 {
		t.Errorf("%d rows are left of a failed effect", n)
	}
	apply(t, s, "op-effect")
	return failed
}

func TestEffectMayNotTouchTransactionOrLedger(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	for _, stmt := range []string{
		"COMMIT", "END", "ROLLBACK", "BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT a", "RELEASE a", "ROLLBACK TO a",
		"PRAGMA synchronous=OFF", "PRAGMA journal_mode", "PRAGMA writable_schema=ON", "PRAGMA user_version",
		"ATTACH ':memory:' AS other", "DETACH other",
		"INSERT INTO mcpreplay_schema VALUES (99, 0)",
		"INSERT OR REPLACE INTO mcpreplay_results (seq, body) VALUES (1, x'00')",
		"UPDATE mcpreplay_operations SET state = 'applied'",
		"UPDATE MCPREPLAY_ledger SET backend = 'x'",
		"DELETE FROM mcpreplay_events",
		"DELETE FROM main.mcpreplay_events",
		"WITH x AS (SELECT 1) DELETE FROM mcpreplay_events WHERE seq IN x",
		"DROP TABLE mcpreplay_events", "DROP INDEX mcpreplay_events_seq",
		"ALTER TABLE mcpreplay_operations ADD COLUMN x", "ALTER TABLE mcpreplay_operations RENAME TO y",
		"CREATE INDEX i ON mcpreplay_operations (tool)",
		"CREATE INDEX mcpreplay_i ON item (body)",
		"CREATE TRIGGER t AFTER INSERT ON mcpreplay_events BEGIN DELETE FROM item; END",
		"CREATE TEMP TRIGGER t AFTER INSERT ON mcpreplay_events BEGIN DELETE FROM item; END",
		"CREATE TABLE mcpreplay_mine (x)", "CREATE TABLE McpReplay_Mine (x)", "CREATE VIEW mcpreplay_v AS SELECT 1",
		"CREATE TEMP TABLE mcpreplay_operations (x)", "CREATE TEMP VIEW mcpreplay_operations AS SELECT 1",
		"CREATE VIRTUAL TABLE mcpreplay_mine USING fts5(x)",
	} {
		err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
			if _, err := tx.PrepareContext(ctx, stmt); err == nil {
				t.Errorf("%s can be prepared", stmt)
			}
			if rows, err := tx.QueryContext(ctx, stmt); err == nil {
				rows.Close()
				t.Errorf("%s can be queried", stmt)
			}
			if err := tx.QueryRowContext(ctx, stmt).Err(); err == nil {
				t.Errorf("%s can be queried for a row", stmt)
			}
			_, err := tx.ExecContext(ctx, stmt)
			return err
		})
		var failed *mcpreplay.EffectError
		if !errors.As(err, &failed) || strings.Contains(failed.Error(), "syntax") {
			t.Errorf("%s: Apply() = %v, want an *EffectError that refuses it", stmt, err)
		}
	}
	definite(t, s, path, run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, "VACUUM")
		return err
	}))
}

// TestTriggerMayNotWriteLedger: the body of a trigger is checked when the
// statement that fires it is prepared.
func TestTriggerMayNotWriteLedger(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	meddle(t, path, "CREATE TRIGGER sly AFTER INSERT ON once BEGIN DELETE FROM mcpreplay_events; END")
	err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO once VALUES ('x')")
		return err
	})
	if failed := definite(t, s, path, err); !errors.Is(failed, sqlite3.AUTH) {
		t.Errorf("Apply() = %v, want not authorized", failed)
	}
}

func TestEffectMayUseTheApplicationsTables(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		// A schema change makes SQLite prepare the ledger's statements again.
		for _, stmt := range []string{
			"CREATE TABLE added (id INTEGER PRIMARY KEY AUTOINCREMENT, op TEXT REFERENCES mcpreplay_operations (operation_id))",
			"CREATE INDEX added_op ON added (op)",
			"INSERT INTO added (op) VALUES ('op-effect')",
			"ALTER TABLE added ADD COLUMN at INTEGER",
			"CREATE TABLE passing (id INTEGER PRIMARY KEY AUTOINCREMENT)", "INSERT INTO passing DEFAULT VALUES", "DROP TABLE passing",
			"CREATE TEMP TABLE scratch (x)", "INSERT INTO scratch VALUES (1)", "DROP TABLE scratch",
		} {
			if _, err := tx.ExecContext(ctx, stmt); err != nil {
				t.Errorf("%s: %v", stmt, err)
			}
		}
		var state string
		return tx.QueryRowContext(ctx, "SELECT state FROM mcpreplay_operations").Scan(&state)
	})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, "op-next")
	if got := query[string](t, path, "SELECT op FROM added"); got != "op-effect" {
		t.Errorf("the effect's own table holds %q, want op-effect", got)
	}
}

func TestEffectMayNotResetTheSequence(t *testing.T) {
	t.Parallel()
	for _, stmt := range []string{"DELETE FROM sqlite_sequence", "UPDATE sqlite_sequence SET seq = 99"} {
		path := newPath(t)
		s := verified(t, path, nil)
		before := apply(t, s, "op-before")
		_, _, err := s.Apply(t.Context(), operation("op-effect"), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
			_, err := tx.ExecContext(ctx, stmt)
			return mcpreplay.Outcome{}, err
		})
		var failed *mcpreplay.EffectError
		if !errors.As(err, &failed) {
			t.Errorf("%s: Apply() = %v, want an *EffectError", stmt, err)
		}
		err = s.Setup(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
			_, err := tx.ExecContext(ctx, stmt)
			return err
		})
		if !errors.As(err, &failed) {
			t.Errorf("%s: Setup() = %v, want an *EffectError", stmt, err)
		}
		if after := apply(t, s, "op-after"); after.Position != before.Position+1 {
			t.Errorf("%s: the next position is %d, want %d", stmt, after.Position, before.Position+1)
		}
	}
}

// TestLostTransactionNeverCommits: each effect makes SQLite roll the transaction
// back and then goes on writing, which would commit statement by statement.
func TestEffectMayNotCallItsLedger(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	other := verified(t, newPath(t), nil)
	known := apply(t, s, "op-known")
	calls := func(ctx context.Context) map[string]error {
		_, err1 := s.Info(ctx)
		_, err2 := s.Get(ctx, known.Key)
		_, err3 := s.Events(ctx, known.Key)
		_, err4 := s.List(ctx, mcpreplay.Filter{})
		_, _, err5 := s.Begin(ctx, operation("op-nested"), claim())
		_, err6 := s.Advance(ctx, mcpreplay.Change{Key: known.Key})
		_, _, err7 := s.Apply(ctx, operation("op-nested"), effect("op-nested"))
		_, err8 := s.ApplyStep(ctx, mcpreplay.Change{Key: known.Key}, nil)
		_, err9 := s.View(ctx, known.Key, nil)
		err10 := s.Setup(ctx, nil)
		return map[string]error{
			"Info": err1, "Get": err2, "Events": err3, "List": err4, "Begin": err5,
			"Advance": err6, "Apply": err7, "ApplyStep": err8, "View": err9, "Setup": err10,
		}
	}
	refused := func(ctx context.Context) {
		for name, err := range calls(ctx) {
			if err == nil || !strings.Contains(err.Error(), "its own ledger") {
				t.Errorf("%s inside an effect = %v, want an error that says so", name, err)
			}
		}
	}
	err := run(t, s, func(ctx context.Context, _ *sqlite.Tx) error {
		refused(ctx)
		_, _, err := other.Begin(ctx, operation("op-other"), claim())
		return err
	})
	if err != nil {
		t.Errorf("Apply() = %v; another ledger may be called", err)
	}
	_, err = s.View(t.Context(), known.Key, func(ctx context.Context, _ *sqlite.Tx, _ mcpreplay.Record) error {
		refused(ctx)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDeferredConstraintIsDefinite(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO tag VALUES (404)")
		return err
	})
	if failed := definite(t, s, path, err); !errors.Is(failed, sqlite3.CONSTRAINT_FOREIGNKEY) {
		t.Errorf("Apply() = %v, want the foreign key's error", failed)
	}
}

func TestConstraintInsideLeavesTheEffectItsChoice(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		for range 2 {
			tx.ExecContext(ctx, "INSERT INTO once VALUES ('x')") // the second fails, and only that
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, path, "SELECT count(*) FROM once"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}
