package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"

	"mcpreplay"
	"mcpreplay/sqlite"
)

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
		if _, err := countRows(cancelled, tx, "x"); err != nil {
			return err
		}
		st, err := tx.PrepareContext(cancelled, "INSERT INTO item (label) VALUES ('y')")
		if err != nil {
			return err
		}
		_, err = st.ExecContext(cancelled)
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
	path := newPath(t)
	s := verified(t, path, nil)
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
		if st, err = tx.PrepareContext(ctx, "INSERT INTO item (label) VALUES ('in time')"); err != nil {
			return err
		}
		_, err = st.ExecContext(ctx)
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
	if n := query[int](t, path, "SELECT count(*) FROM item WHERE label = 'in time'"); n != 1 {
		t.Errorf("the statement ran %d times, want once", n)
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
