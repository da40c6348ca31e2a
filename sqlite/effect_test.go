package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

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
func TestLostTransactionNeverCommits(t *testing.T) {
	t.Parallel()
	const rollback = "INSERT OR ROLLBACK INTO once VALUES ('x')"
	twice := func(ctx context.Context, tx *sqlite.Tx) error {
		if _, err := tx.ExecContext(ctx, rollback); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, rollback)
		return err
	}
	for _, tt := range []struct {
		name  string
		setup string
		fn    body
	}{
		{"and returns the error", "", twice},
		{"and ignores the error", "", func(ctx context.Context, tx *sqlite.Tx) error {
			twice(ctx, tx)
			return nil
		}},
		{"and goes on with another statement", "", func(ctx context.Context, tx *sqlite.Tx) error {
			twice(ctx, tx)
			return writeRow(ctx, tx, "stray")
		}},
		{"and goes on with a statement it holds", "", func(ctx context.Context, tx *sqlite.Tx) error {
			st, err := tx.PrepareContext(ctx, "INSERT INTO item (label) VALUES ('stray')")
			if err != nil {
				return err
			}
			twice(ctx, tx)
			if _, err := st.ExecContext(ctx); err == nil {
				t.Error("a statement committed by itself")
			}
			return nil
		}},
		{"through a query", "", func(ctx context.Context, tx *sqlite.Tx) error {
			for range 2 {
				rows, err := tx.QueryContext(ctx, rollback+" RETURNING label")
				if err != nil {
					return err
				}
				for rows.Next() {
				}
				rows.Close()
			}
			if rows, err := tx.QueryContext(ctx, "SELECT 1"); err == nil {
				rows.Close()
				t.Error("a query ran without a transaction")
			}
			if err := tx.QueryRowContext(ctx, "INSERT INTO item (label) VALUES ('stray') RETURNING id").Scan(new(int)); err == nil {
				t.Error("a row was inserted without a transaction")
			}
			if _, err := tx.PrepareContext(ctx, "SELECT 1"); err == nil {
				t.Error("a statement was prepared without a transaction")
			}
			return nil
		}},
		{"by a trigger", "CREATE TRIGGER strict BEFORE INSERT ON once BEGIN SELECT RAISE(ROLLBACK, 'no'); END", func(ctx context.Context, tx *sqlite.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO once VALUES ('x')")
			if err == nil {
				t.Error("the trigger let it pass")
			}
			return writeRow(ctx, tx, "stray")
		}},
		{"by an interrupt", "", func(ctx context.Context, tx *sqlite.Tx) error {
			st, err := tx.PrepareContext(ctx, "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e9) INSERT INTO item (label) SELECT i FROM n")
			if err != nil {
				return err
			}
			other, err := tx.PrepareContext(ctx, "INSERT INTO item (label) VALUES ('stray')")
			if err != nil {
				return err
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			defer cancel()
			if _, err := st.ExecContext(short); err == nil {
				t.Error("the statement was not interrupted")
			}
			other.ExecContext(ctx)
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := newPath(t)
			s := verified(t, path, nil)
			if tt.setup != "" {
				meddle(t, path, tt.setup)
			}
			failed := definite(t, s, path, run(t, s, tt.fn))
			if !strings.Contains(failed.Error(), "rolled back under the effect") {
				t.Errorf("Apply() = %v, want it to say that the transaction was lost", failed)
			}
		})
	}
}

func TestEffectContext(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(t, s, func(_ context.Context, tx *sqlite.Tx) error {
		// SQLite would roll everything back, so the handle does not pass it on.
		if err := writeRow(cancelled, tx, "x"); err != nil {
			return err
		}
		_, err := countRows(cancelled, tx, "x")
		return err
	})
	if err != nil {
		t.Errorf("Apply() = %v, want the context of a statement to be ignored", err)
	}
}

func TestEffectThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	for range 2 {
		failed := new(mcpreplay.EffectError)
		err := run(t, s, func(context.Context, *sqlite.Tx) error {
			runtime.Goexit()
			return nil
		})
		if !errors.As(err, &failed) || !failed.Panic {
			t.Fatalf("Apply() = %v, want an *EffectError of a panic", err)
		}
	}
	rec := apply(t, s, "op-other")
	if _, err := s.View(t.Context(), rec.Key, func(context.Context, *sqlite.Tx, mcpreplay.Record) error { return nil }); err != nil {
		t.Error(err)
	}
	// A view runs on the caller's goroutine, which may end: readers must not run out.
	for range 10 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.View(context.Background(), rec.Key, func(context.Context, *sqlite.Tx, mcpreplay.Record) error {
				runtime.Goexit()
				return nil
			})
		}()
		<-done
	}
	err := run(t, s, func(context.Context, *sqlite.Tx) error { panic(nil) })
	var failed *mcpreplay.EffectError
	if !errors.As(err, &failed) || !failed.Panic {
		t.Errorf("Apply() = %v, want an *EffectError of a panic", err)
	}
}

func TestHandleEndsWithItsEffect(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	var (
		kept *sqlite.Tx
		rows *sql.Rows
		row  *sql.Row
		st   *sql.Stmt
	)
	err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) (err error) {
		kept = tx
		if err := writeRow(ctx, tx, "second"); err != nil {
			return err
		}
		if rows, err = tx.QueryContext(ctx, "SELECT id FROM item"); err != nil || !rows.Next() {
			return errors.Join(err, errors.New("no row"))
		}
		row = tx.QueryRowContext(ctx, "INSERT INTO item (label) VALUES ('half read') RETURNING id")
		st, err = tx.PrepareContext(ctx, "INSERT INTO item (label) VALUES ('late')")
		return err
	})
	if err != nil {
		t.Fatalf("Apply() with rows left open = %v", err)
	}
	ctx := t.Context()
	if rows.Next() {
		t.Error("rows go on after the effect")
	}
	if err := row.Scan(new(int)); err == nil {
		t.Error("a row can be scanned after the effect")
	}
	if _, err := st.ExecContext(ctx); err == nil {
		t.Error("a statement runs after the effect")
	}
	if _, err := kept.ExecContext(ctx, "DELETE FROM item"); err == nil {
		t.Error("the handle executes after the effect")
	}
	if _, err := kept.QueryContext(ctx, "SELECT 1"); err == nil {
		t.Error("the handle queries after the effect")
	}
	if _, err := kept.PrepareContext(ctx, "SELECT 1"); err == nil {
		t.Error("the handle prepares after the effect")
	}
	if err := kept.QueryRowContext(ctx, "SELECT 1").Scan(new(int)); err == nil || !strings.Contains(err.Error(), "outlive") {
		t.Errorf("the handle queries a row after the effect: %v", err)
	}
	apply(t, s, "op-next")
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

func TestViewMayNotChangeItsConnection(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	rec := apply(t, s, "op-view")
	_, err := s.View(t.Context(), rec.Key, func(ctx context.Context, tx *sqlite.Tx, _ mcpreplay.Record) error {
		for _, stmt := range []string{
			"PRAGMA query_only=OFF", "COMMIT", "ROLLBACK", "ATTACH ':memory:' AS other",
			"INSERT INTO item (label) VALUES ('x')", "DELETE FROM mcpreplay_events", "CREATE TEMP TABLE x (y)", "DROP TABLE item",
		} {
			if _, err := tx.ExecContext(ctx, stmt); err == nil {
				t.Errorf("%s works in a view", stmt)
			}
		}
		n, err := countRows(ctx, tx, "op-view")
		if n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
