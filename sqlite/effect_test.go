package sqlite_test

import (
	"context"
	"errors"
	"fmt"
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
		"CREATE VIRTUAL TABLE mcpreplay_mine USING fts5(x)", "CREATE VIRTUAL TABLE temp.mine USING fts5(x)",
		"CREATE TEMP TABLE item (x)", "CREATE TABLE temp.item (x)", "CREATE TEMP TABLE item AS SELECT * FROM main.item",
		"CREATE TEMP VIEW item AS SELECT 1", "CREATE TEMP TRIGGER t AFTER INSERT ON item BEGIN DELETE FROM once; END",
	} {
		err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
			if _, err := tx.PrepareContext(ctx, stmt); !errors.Is(err, sqlite3.AUTH) {
				t.Errorf("%s, prepared = %v, want %v", stmt, err, sqlite3.AUTH)
			}
			if _, err := tx.QueryContext(ctx, stmt); !errors.Is(err, sqlite3.AUTH) {
				t.Errorf("%s, queried = %v, want %v", stmt, err, sqlite3.AUTH)
			}
			if err := tx.QueryRowContext(ctx, stmt).Err(); !errors.Is(err, sqlite3.AUTH) {
				t.Errorf("%s, queried for a row = %v, want %v", stmt, err, sqlite3.AUTH)
			}
			_, err := tx.ExecContext(ctx, stmt)
			return err
		})
		var failed *mcpreplay.EffectError
		if !errors.As(err, &failed) || !errors.Is(failed, sqlite3.AUTH) {
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

// TestTriggerMayNotWriteLedgerForTheLedger: the ledger's own statement could fire
// it, by a cascade, when no effect runs.
func TestTriggerMayNotWriteLedgerForTheLedger(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	first := claim()
	first.Result = &mcpreplay.Result{Body: []byte("round 1")}
	rec, _, err := s.Begin(t.Context(), operation("op-victim"), first)
	if err != nil {
		t.Fatal(err)
	}
	sly := []string{
		"CREATE TABLE child (seq INTEGER REFERENCES mcpreplay_results (seq) ON DELETE CASCADE)",
		"CREATE TRIGGER sly AFTER DELETE ON child BEGIN UPDATE mcpreplay_operations SET principal = 'mallory'; END",
		fmt.Sprintf("INSERT INTO child VALUES (%d)", rec.Seq),
	}
	err = run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		for _, stmt := range sly {
			if _, err := tx.ExecContext(ctx, stmt); err != nil {
				return err
			}
		}
		return nil
	})
	var failed *mcpreplay.EffectError
	if !errors.As(err, &failed) || !errors.Is(err, sqlite3.AUTH) || !strings.Contains(err.Error(), "statement of the ledger's") {
		t.Errorf("Apply() = %v, want an *EffectError that refuses the trigger", err)
	}
	meddle(t, path, strings.Join(sly, ";")) // as another program could
	finish := mcpreplay.Change{
		Key: rec.Key, Revision: rec.Revision, To: mcpreplay.StateApplied,
		Result: &mcpreplay.Result{Digest: make([]byte, 32), Size: 1 << 20}, Event: mcpreplay.Event{Kind: mcpreplay.EventFinish},
	}
	if _, err := s.Advance(t.Context(), finish); !errors.Is(err, sqlite3.AUTH) {
		t.Errorf("Advance() = %v, want %v", err, sqlite3.AUTH)
	}
	if n := query[int](t, path, "SELECT count(*) FROM mcpreplay_operations WHERE principal = 'mallory'"); n != 0 {
		t.Errorf("a trigger changed %d records", n)
	}
	meddle(t, path, "DROP TRIGGER sly")
	if _, err := s.Advance(t.Context(), finish); err != nil {
		t.Errorf("Advance() without the trigger: %v", err)
	}
}

// TestEffectMayNotTakeNamesOfTheLedger: the authorizer does not see the new name
// of what is renamed.
func TestEffectMayNotTakeNamesOfTheLedger(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	rename := func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, "ALTER TABLE once RENAME TO McpReplay_future")
		return err
	}
	if failed := definite(t, s, path, run(t, s, rename)); !strings.Contains(failed.Error(), "name of the ledger's") {
		t.Errorf("Apply() = %v, want it to say what is wrong", failed)
	}
	var failed *mcpreplay.EffectError
	if err := s.Setup(t.Context(), rename); !errors.As(err, &failed) {
		t.Errorf("Setup() = %v, want an *EffectError", err)
	}
	err := s.Setup(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, "ALTER TABLE once RENAME TO twice; ALTER TABLE twice RENAME TO once")
		return err
	})
	if err != nil {
		t.Errorf("Setup() = %v; other names may be given", err)
	}
}

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
	// Through another ledger it is the same one still, and would wait as well.
	err = run(t, other, func(ctx context.Context, _ *sqlite.Tx) error {
		_, _, err := s.Apply(ctx, operation("op-between"), func(ctx context.Context, _ *sqlite.Tx) (out mcpreplay.Outcome, err error) {
			refused(ctx)
			if _, err := other.Info(ctx); err == nil || !strings.Contains(err.Error(), "its own ledger") {
				t.Errorf("Info through another ledger = %v, want an error that says so", err)
			}
			return out, nil
		})
		return err
	})
	if err != nil {
		t.Errorf("Apply() within another ledger = %v", err)
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
