package sqlite_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// soon requires that fn returns.
func soon(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not return", what)
	}
}

// awkward is an argument that does not become a value.
type awkward struct{ value func() }

func (a awkward) Value() (driver.Value, error) {
	a.value()
	return nil, nil
}

// TestWhatAnEffectLeavesOpenHoldsNobodyUp: database/sql would wait for all of it
// before it lets go of a connection.
func TestWhatAnEffectLeavesOpenHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]body{
		"rows": func(ctx context.Context, tx *sqlite.Tx) error {
			rows, err := tx.QueryContext(ctx, "SELECT id FROM item")
			return errors.Join(err, next(rows))
		},
		"rows of a prepared statement": func(ctx context.Context, tx *sqlite.Tx) error {
			st, err := tx.PrepareContext(ctx, "SELECT id FROM item")
			if err != nil {
				return err
			}
			rows, err := st.QueryContext(ctx)
			return errors.Join(err, next(rows))
		},
		"a row of a prepared statement": func(ctx context.Context, tx *sqlite.Tx) error {
			st, err := tx.PrepareContext(ctx, "SELECT id FROM item")
			if err != nil {
				return err
			}
			st.QueryRowContext(ctx)
			return errors.New("before the row was scanned")
		},
		"rows, by a panic": func(ctx context.Context, tx *sqlite.Tx) error {
			st, _ := tx.PrepareContext(ctx, "SELECT id FROM item")
			st.QueryContext(ctx)
			panic("between query and close")
		},
		"a query, by a panic of its argument": func(ctx context.Context, tx *sqlite.Tx) error {
			_, err := tx.QueryContext(ctx, "SELECT id FROM item WHERE label = ?", awkward{func() { panic("no value") }})
			return err
		},
		"a query, by a goroutine that waits": func(ctx context.Context, tx *sqlite.Tx) error {
			inside := make(chan struct{})
			go tx.QueryContext(ctx, "SELECT id FROM item WHERE label = ?", awkward{func() {
				close(inside)
				<-t.Context().Done()
			}})
			<-inside
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t, false)
			s, err := sqlite.OpenWeak(newPath(t), &sqlite.Options{Backend: "issues"}, sqlite.Weak{VFS: d.name})
			if err != nil {
				t.Fatal(err)
			}
			setup(t, s)
			rec := apply(t, s, "op-before")
			soon(t, "the effect", func() { run(t, s, fn) })
			soon(t, "a view", func() {
				s.View(t.Context(), rec.Key, func(ctx context.Context, tx *sqlite.Tx, _ mcpreplay.Record) error {
					defer func() { recover() }()
					return fn(ctx, tx)
				})
			})
			soon(t, "the next effect", func() { apply(t, s, "op-next") })
			d.failing(func(op, _ string) error {
				if op == "sync" {
					return sqlite3.IOERR_FSYNC
				}
				return nil
			})
			soon(t, "a commit that fails, and gives the connection up", func() {
				if _, _, err := s.Apply(t.Context(), operation("op-lost"), effect("op-lost")); !errors.Is(err, mcpreplay.ErrUnknown) {
					t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnknown)
				}
			})
			d.failing(nil)
			soon(t, "Close()", func() {
				if err := s.Close(); err != nil {
					t.Errorf("Close(): %v", err)
				}
			})
		})
	}
}

func next(rows interface{ Next() bool }) error {
	if !rows.Next() {
		return errors.New("no row")
	}
	return nil
}

// TestRowsThatOutliveTheirEffectTouchNothing is for the race detector.
func TestRowsThatOutliveTheirEffectTouchNothing(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	for i := range 20 {
		apply(t, s, fmt.Sprintf("op-seed-%d", i))
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 5 {
		id := fmt.Sprintf("op-leaks-%d", i)
		_, _, err := s.Apply(t.Context(), operation(id), func(ctx context.Context, tx *sqlite.Tx) (out mcpreplay.Outcome, err error) {
			st, err := tx.PrepareContext(ctx, "SELECT label, randomblob(9000) FROM item")
			if err != nil {
				return out, err
			}
			rows, err := st.QueryContext(ctx)
			if err != nil || !rows.Next() {
				return out, errors.Join(err, errors.New("no row"))
			}
			wg.Go(func() {
				var label string
				var blob []byte
				for {
					select {
					case <-stop:
						rows.Close()
						return
					default:
						rows.Scan(&label, &blob)
						rows.Next()
						rows.ColumnTypes()
						st.ExecContext(ctx)
					}
				}
			})
			return out, writeRow(ctx, tx, id)
		})
		if err != nil {
			t.Error(err)
		}
	}
	for i := range 30 {
		apply(t, s, fmt.Sprintf("op-next-%d", i))
	}
	close(stop)
	wg.Wait()
	if n := halves(t, path); n != 0 {
		t.Errorf("%d records have not exactly one effect", n)
	}
}

// TestRowsWhoseContextEndsWithTheEffect: database/sql closes them from a
// goroutine of its own, which is late. This, too, is for the race detector.
func TestRowsWhoseContextEndsWithTheEffect(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	apply(t, s, "op-seed")
	for i := range 100 {
		id := fmt.Sprintf("op-%d", i)
		_, _, err := s.Apply(t.Context(), operation(id), func(ctx context.Context, tx *sqlite.Tx) (out mcpreplay.Outcome, err error) {
			short, cancel := context.WithCancel(ctx)
			defer cancel()
			st, err := tx.PrepareContext(ctx, "SELECT id FROM item")
			if err != nil {
				return out, err
			}
			rows, err := st.QueryContext(short)
			if err != nil {
				return out, err
			}
			return out, errors.Join(next(rows), writeRow(ctx, tx, id))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := halves(t, path); n != 0 {
		t.Errorf("%d records have not exactly one effect", n)
	}
}

const insert = "INSERT INTO once VALUES ('a'), ('b') RETURNING label"

// TestInsertRunsWhoeverReadsWhatItReturns: SQLite begins only when the first row
// is asked for.
func TestInsertRunsWhoeverReadsWhatItReturns(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]body{
		"rows that are closed": func(ctx context.Context, tx *sqlite.Tx) error {
			rows, err := tx.QueryContext(ctx, insert)
			return errors.Join(err, rows.Close())
		},
		"rows that are left": func(ctx context.Context, tx *sqlite.Tx) error {
			_, err := tx.QueryContext(ctx, insert)
			return err
		},
		"a row that is not scanned": func(ctx context.Context, tx *sqlite.Tx) error {
			return tx.QueryRowContext(ctx, insert).Err()
		},
		"a row that is scanned": func(ctx context.Context, tx *sqlite.Tx) error {
			var label string
			err := tx.QueryRowContext(ctx, insert).Scan(&label)
			if label != "a" {
				t.Errorf("the row says %q, want a", label)
			}
			return err
		},
		"a prepared statement": func(ctx context.Context, tx *sqlite.Tx) error {
			st, err := tx.PrepareContext(ctx, insert)
			if err != nil {
				return err
			}
			_, err = st.QueryContext(ctx)
			return err
		},
		"a prepared statement, twice": func(ctx context.Context, tx *sqlite.Tx) error {
			st, err := tx.PrepareContext(ctx, "INSERT INTO once VALUES (?) RETURNING label")
			if err != nil {
				return err
			}
			return errors.Join(st.QueryRowContext(ctx, "a").Err(), st.QueryRowContext(ctx, "b").Err())
		},
		"rows that are read": func(ctx context.Context, tx *sqlite.Tx) error {
			rows, err := tx.QueryContext(ctx, insert)
			if err != nil {
				return err
			}
			var got []string
			for rows.Next() {
				got = append(got, "")
				rows.Scan(&got[len(got)-1])
			}
			if !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("the rows say %q, want a and b", got)
			}
			return rows.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			if err := run(t, verified(t, path, nil), fn); err != nil {
				t.Fatal(err)
			}
			if n := query[int](t, path, "SELECT count(*) FROM once"); n != 2 {
				t.Errorf("%d rows were inserted, want 2", n)
			}
		})
	}
}

func TestFailureThatNobodyReadFailsTheEffect(t *testing.T) {
	t.Parallel()
	const again = "INSERT INTO once VALUES ('x') RETURNING label"
	for name, fn := range map[string]body{
		"rows that are closed": func(ctx context.Context, tx *sqlite.Tx) error {
			rows, err := tx.QueryContext(ctx, again)
			if err == nil {
				rows.Close()
			}
			return nil
		},
		"rows that are left": func(ctx context.Context, tx *sqlite.Tx) error {
			tx.QueryContext(ctx, again)
			return nil
		},
		"a row that is not scanned": func(ctx context.Context, tx *sqlite.Tx) error {
			return tx.QueryRowContext(ctx, again).Err()
		},
		"a row of a prepared statement": func(ctx context.Context, tx *sqlite.Tx) error {
			st, err := tx.PrepareContext(ctx, again)
			if err != nil {
				return err
			}
			st.QueryRowContext(ctx)
			return nil
		},
		"a row that is scanned": func(ctx context.Context, tx *sqlite.Tx) error {
			return tx.QueryRowContext(ctx, again).Scan(new(string))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s := verified(t, path, nil)
			err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
				if _, err := tx.ExecContext(ctx, "INSERT INTO once VALUES ('x')"); err != nil {
					return err
				}
				return fn(ctx, tx)
			})
			failed := definite(t, s, path, err)
			if !errors.Is(failed, sqlite3.CONSTRAINT_PRIMARYKEY) || !failed.Internal {
				t.Errorf("Apply() = %+v, want the constraint's error, marked as SQLite's", failed)
			}
		})
	}
	// One that was read is the effect's to judge.
	s := verified(t, newPath(t), nil)
	err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		for range 2 {
			tx.QueryRowContext(ctx, again).Scan(new(string))
		}
		return nil
	})
	if err != nil {
		t.Errorf("Apply() = %v, want the effect to have its choice", err)
	}
}

// TestStatementWaitsForItsRows: run again, it would go on where they are.
func TestStatementWaitsForItsRows(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	apply(t, s, "op-other")
	err := run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		st, err := tx.PrepareContext(ctx, "SELECT label FROM item ORDER BY label DESC")
		if err != nil {
			return err
		}
		rows, err := st.QueryContext(ctx)
		if err != nil {
			return err
		}
		if err := next(rows); err != nil {
			return err
		}
		var label string
		if err := st.QueryRowContext(ctx).Scan(&label); err == nil || !strings.Contains(err.Error(), "still open") {
			t.Errorf("the statement runs again and says %q, %v", label, err)
		}
		rows.Close()
		if err := st.QueryRowContext(ctx).Scan(&label); err != nil || label != "op-other" {
			t.Errorf("the first row is %q, %v; want op-other", label, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
