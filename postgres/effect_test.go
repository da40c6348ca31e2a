//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mcpreplay"
	"mcpreplay/postgres"
)

type body = func(context.Context, *postgres.Tx) error

// run applies op-effect with the effect, which writes one row first.
func run(t *testing.T, s *postgres.Store, fn body) error {
	t.Helper()
	_, _, err := s.Apply(t.Context(), operation("op-effect"), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
		if err := writeRow(ctx, tx, "op-effect"); err != nil {
			return mcpreplay.Outcome{}, err
		}
		return mcpreplay.Outcome{}, fn(ctx, tx)
	})
	return err
}

const leftovers = `SELECT (SELECT count(*) FROM item) + (SELECT count(*) FROM once) + (SELECT count(*) FROM tag)
  + (SELECT count(*) FROM mcpreplay.operations) + (SELECT count(*) FROM mcpreplay.events)`

// definite requires that the effect failed for sure and that nothing of it is left.
func definite(t *testing.T, url, what string, err error) *mcpreplay.EffectError {
	t.Helper()
	var failed *mcpreplay.EffectError
	if !errors.As(err, &failed) || errors.Is(err, mcpreplay.ErrUnknown) {
		t.Fatalf("%s: Apply() = %v, want an *EffectError that is definite", what, err)
	}
	if n := query[int](t, url, leftovers); n != 0 {
		t.Fatalf("%s: %d rows are left of a failed effect", what, n)
	}
	return failed
}

func TestEffectMayNotEndTheTransaction(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	for _, stmt := range []string{
		"COMMIT", "commit", "END", "ROLLBACK", "ABORT", "BEGIN", "START TRANSACTION", "COMMIT AND CHAIN",
		"  \n\t;; COMMIT", "/* a /* b */ c */ COMMIT", "-- a\nCOMMIT", "-- a\rCOMMIT",
		"SELECT 1; COMMIT", "INSERT INTO once VALUES ('x'); COMMIT; BEGIN",
		"PREPARE TRANSACTION 'x'", "SAVEPOINT a", "RELEASE a", "ROLLBACK TO a", "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE ALL",
		"SET synchronous_commit = off", "SET SESSION search_path = x", "RESET ALL", "DISCARD ALL",
		"LISTEN x", "DECLARE c CURSOR WITH HOLD FOR SELECT 1", "COPY item FROM stdin",
		"DO $$ BEGIN COMMIT; END $$", "VACUUM",
	} {
		for name, send := range map[string]body{
			"Exec": func(ctx context.Context, tx *postgres.Tx) error { _, err := tx.Exec(ctx, stmt); return err },
			"simple": func(ctx context.Context, tx *postgres.Tx) error {
				_, err := tx.Exec(ctx, stmt, pgx.QueryExecModeSimpleProtocol)
				return err
			},
			"Query": func(ctx context.Context, tx *postgres.Tx) error {
				rows, err := tx.Query(ctx, stmt)
				rows.Close()
				return errors.Join(err, rows.Err())
			},
			"QueryRow": func(ctx context.Context, tx *postgres.Tx) error { return tx.QueryRow(ctx, stmt).Scan() },
			"rewritten": func(ctx context.Context, tx *postgres.Tx) error {
				_, err := tx.Exec(ctx, "SELECT 1", rewriter(stmt))
				return err
			},
			"batch": func(ctx context.Context, tx *postgres.Tx) error {
				b := &pgx.Batch{}
				b.Queue(stmt)
				return tx.SendBatch(ctx, b).Close()
			},
		} {
			definite(t, url, name+" "+stmt, run(t, s, send))
		}
		// An effect that goes on as if nothing had been is no different.
		err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
			if _, err := tx.Exec(ctx, stmt); err == nil {
				return nil
			}
			return errors.New("refused")
		})
		definite(t, url, "ignored "+stmt, err)
	}
	definite(t, url, "read only", run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		_, err := tx.Exec(ctx, "SET LOCAL transaction_read_only = on")
		return err
	}))
	definite(t, url, "Commit", run(t, s, func(ctx context.Context, tx *postgres.Tx) error { return tx.Commit(ctx) }))
	definite(t, url, "Rollback", run(t, s, func(ctx context.Context, tx *postgres.Tx) error { return tx.Rollback(ctx) }))
	if tx := (&postgres.Tx{}); tx.Conn() != nil {
		t.Error("the handle gives its connection away")
	}
	apply(t, s, "op-effect")
}

// rewriter is a pgx.QueryRewriter that makes another statement.
type rewriter string

func (r rewriter) RewriteQuery(_ context.Context, _ *pgx.Conn, _ string, _ []any) (string, []any, error) {
	return string(r), []any{pgx.QueryExecModeSimpleProtocol}, nil
}

// What is half done cannot be committed by anybody: the last line is the database's.
func TestHalfAnOperationCannotBeCommitted(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	raw := func(tx *postgres.Tx, sql string) error {
		_, err := postgres.Conn(tx).Exec(t.Context(), sql)
		return err
	}
	for _, sql := range []string{"COMMIT", "COMMIT AND CHAIN", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"} {
		var said error
		err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
			said = raw(tx, sql)
			return nil
		})
		if strings.HasPrefix(sql, "COMMIT") && pgCode(said) != "23503" {
			t.Errorf("%s inside an effect = %v, want a violated constraint", sql, said)
		}
		definite(t, url, sql, err)
	}
	claimed, _, err := s.Begin(t.Context(), operation("op-step"), claim())
	if err != nil {
		t.Fatal(err)
	}
	step := mcpreplay.Change{Key: claimed.Key, Revision: claimed.Revision, Event: mcpreplay.Event{Kind: mcpreplay.EventStep, Step: "one"}}
	for _, sql := range []string{"COMMIT", "ROLLBACK; BEGIN"} {
		_, err = s.ApplyStep(t.Context(), step, func(ctx context.Context, tx *postgres.Tx, _ *mcpreplay.Change) error {
			if err := writeRow(ctx, tx, "step"); err != nil {
				return err
			}
			raw(tx, sql)
			return nil
		})
		if !errors.As(err, new(*mcpreplay.EffectError)) {
			t.Errorf("ApplyStep() with %s = %v, want an *EffectError", sql, err)
		}
	}
	if n := query[int](t, url, "SELECT count(*) FROM item"); n != 0 {
		t.Errorf("%d rows of a step without its event", n)
	}
	if again, err := s.Get(t.Context(), claimed.Key); err != nil || again.Revision != claimed.Revision || again.Position != claimed.Position {
		t.Errorf("Get() = %+v, %v; want it as it was", again, err)
	}
}

func pgCode(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

func TestFailedStatementFailsTheEffect(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	fails := func(ctx context.Context, tx *postgres.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1/0")
		return err
	}
	err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		fails(ctx, tx)
		return nil // as if it had not been
	})
	if failed := definite(t, url, "an ignored error", err); !failed.Internal || pgCode(failed) != "22012" {
		t.Errorf("Apply() = %v, want the statement's error", failed)
	}
	err = run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		tx.Query(ctx, "SELECT 1/(n-2) FROM generate_series(1, 3) n") // nobody reads it
		return nil
	})
	definite(t, url, "an error nobody read", err)
	err = run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := inner.Exec(ctx, "INSERT INTO once VALUES ('gone')"); err != nil {
			return err
		}
		if _, err := inner.Exec(ctx, "SELECT 1/0"); err == nil {
			t.Error("a division by zero did not fail")
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		if err := inner.Commit(ctx); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("Commit() after Rollback() = %v", err)
		}
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO once VALUES ('kept')")
			return err
		})
	})
	if err != nil {
		t.Fatalf("an effect with savepoints: %v", err)
	}
	if got := query[string](t, url, "SELECT string_agg(label, ',') FROM once"); got != "kept" {
		t.Errorf("the rows are %q, want what was not rolled back", got)
	}
}

func TestDeferredConstraintIsDefinite(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO tag VALUES (404)")
		return err
	})
	if failed := definite(t, url, "a deferred constraint", err); pgCode(failed) != "23503" {
		t.Errorf("Apply() = %v, want the foreign key's error", failed)
	}
	if _, err := newPool(t, url).Exec(t.Context(), `
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$;
CREATE CONSTRAINT TRIGGER full_disk AFTER INSERT ON once DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION full_disk();`); err != nil {
		t.Fatal(err)
	}
	err = run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO once VALUES ('x')")
		return err
	})
	if !errors.Is(err, mcpreplay.ErrUnavailable) || query[int](t, url, leftovers) != 0 {
		t.Errorf("Apply() = %v, want %v where it is not the effect's fault", err, mcpreplay.ErrUnavailable)
	}
	apply(t, s, "op-effect")
}

func TestHandleIsOfOneEffect(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	var kept *postgres.Tx
	var open pgx.Rows
	err := run(t, s, func(ctx context.Context, tx *postgres.Tx) (err error) {
		kept = tx
		if open, err = tx.Query(ctx, "SELECT n FROM generate_series(1, 100000) n"); err != nil {
			return err
		}
		open.Next()
		if open.Conn() != nil {
			t.Error("rows give the connection away")
		}
		if _, err := tx.Exec(ctx, "SELECT 1"); err == nil {
			t.Error("two statements ran at once")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Exec(t.Context(), "INSERT INTO once VALUES ('late')"); err == nil {
		t.Error("the handle works after its effect")
	}
	if open.Next() || open.Scan(new(int)) == nil {
		t.Error("rows go on after their effect")
	}
	open.Close()
	apply(t, s, "op-next")
}

func TestEffectUsesPgx(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	type pair struct {
		Label string
		N     int64
	}
	err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO once SELECT unnest(@labels::text[]), 7", pgx.NamedArgs{"labels": []string{"a", "b"}})
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue("INSERT INTO once VALUES ($1, $2)", "c", 1).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() != 1 {
				t.Errorf("a statement of a batch = %v", tag)
			}
			return nil
		})
		b.Queue("SELECT count(*) FROM once").QueryRow(func(row pgx.Row) error {
			var n int
			if err := row.Scan(&n); err != nil || n != 3 {
				t.Errorf("a batch counts %d rows, %v", n, err)
			}
			return nil
		})
		b.Queue("UPDATE once SET n = n + 1")
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT label, n FROM once ORDER BY label")
		if err != nil {
			return err
		}
		got, err := pgx.CollectRows(rows, pgx.RowToStructByName[pair])
		if err != nil || fmt.Sprint(got) != "[{a 8} {b 8} {c 2}]" {
			t.Errorf("the rows are %v, %v", got, err)
		}
		if err := tx.QueryRow(ctx, "SELECT label FROM once WHERE n = 99").Scan(new(string)); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("no row = %v, want %v", err, pgx.ErrNoRows)
		}
		_, err = tx.Exec(ctx, "SET LOCAL application_name = 'effect'")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEffectMayNotCallItsLedger(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	known := apply(t, s, "op-known")
	err := run(t, s, func(ctx context.Context, _ *postgres.Tx) error {
		_, err1 := s.Info(ctx)
		_, err2 := s.Get(ctx, known.Key)
		_, _, err3 := s.Begin(ctx, operation("op-nested"), claim())
		_, err4 := s.Advance(ctx, mcpreplay.Change{Key: known.Key})
		_, _, err5 := s.Apply(ctx, operation("op-nested"), effect("op-nested"))
		_, err6 := s.View(ctx, known.Key, nil)
		_, err7 := s.Sweep(ctx, mcpreplay.SweepPolicy{})
		for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
			if err == nil || !strings.Contains(err.Error(), "its own ledger") {
				t.Errorf("call %d inside an effect = %v, want an error that says so", i, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestGoexitRollsBack(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Apply(context.Background(), operation("op-effect"), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
			writeRow(ctx, tx, "op-effect")
			runtime.Goexit()
			return mcpreplay.Outcome{}, nil
		})
	}()
	<-done
	if n := query[int](t, url, leftovers); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	apply(t, s, "op-effect")
}

// TestDeadlockIsRunAgain lets two effects lock two rows in opposite orders.
func TestDeadlockIsRunAgain(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	pool := newPool(t, url)
	if _, err := pool.Exec(t.Context(), "INSERT INTO once VALUES ('a'), ('b')"); err != nil {
		t.Fatal(err)
	}
	var wg, met sync.WaitGroup
	var runs atomic.Int64
	met.Add(2)
	for i, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		wg.Go(func() {
			first := true
			_, started, err := s.Apply(t.Context(), operation(fmt.Sprintf("op-lock-%d", i)), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
				runs.Add(1)
				for _, label := range order {
					if _, err := tx.Exec(ctx, "UPDATE once SET n = n + 1 WHERE label = $1", label); err != nil {
						return mcpreplay.Outcome{}, errors.New("something of the application's own")
					}
					if first {
						first = false
						met.Done()
						met.Wait()
					}
				}
				return mcpreplay.Outcome{}, nil
			})
			if err != nil || !started {
				t.Errorf("Apply() = started %v, %v; want true, nil", started, err)
			}
		})
	}
	wg.Wait()
	if n := query[int](t, url, "SELECT sum(n) FROM once"); n != 4 || runs.Load() != 3 {
		t.Errorf("%d updates in %d runs, want 4 in 3: one of two was run again", n, runs.Load())
	}
}

func TestTimeoutsEndAnEffect(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, &postgres.Options{StatementTimeout: 100 * time.Millisecond, IdleTimeout: 200 * time.Millisecond})
	err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(30)")
		return err
	})
	if failed := definite(t, url, "a slow statement", err); pgCode(failed) != "57014" {
		t.Errorf("Apply() = %v, want the timeout", failed)
	}
	runs := 0
	err = run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		runs++
		var pid int
		if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			return err
		}
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if query[int](t, url, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0 {
				break
			}
		}
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
	definite(t, url, "an effect that does something else", err)
	if runs != 1 {
		t.Errorf("it ran %d times, want once", runs)
	}
	apply(t, s, "op-effect")
}

// A second attempt under an id waits for the first, and is refused what it waits
// for when that takes too long.
func TestWaitForAnotherAttemptIsBounded(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	impatient := openPool(t, newPool(t, url), &postgres.Options{LockTimeout: 50 * time.Millisecond})
	err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error {
		_, _, err := impatient.Apply(t.Context(), operation("op-effect"), effect("other"))
		if !errors.Is(err, mcpreplay.ErrUnavailable) || pgCode(err) != "55P03" {
			t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnavailable)
		}
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, _, err = s.Apply(short, operation("op-effect"), effect("other"))
		if !errors.Is(err, mcpreplay.ErrUnavailable) {
			t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnavailable)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, url, "SELECT count(*) FROM item"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// TestCommitIsRunAgain: COMMIT itself fails with what passes, and another attempt is
// perhaps faster than the second run.
func TestCommitIsRunAgain(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	if _, err := newPool(t, url).Exec(t.Context(), `
CREATE SEQUENCE tries; -- which is not rolled back
CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('tries') = 1 THEN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER conflict AFTER INSERT ON once DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION conflict();`); err != nil {
		t.Fatal(err)
	}
	insert := func(ctx context.Context, tx *postgres.Tx, label string) (mcpreplay.Outcome, error) {
		_, err := tx.Exec(ctx, "INSERT INTO once VALUES ($1)", label)
		return mcpreplay.Outcome{Effect: label}, err
	}
	runs, others := 0, make(chan bool, 1)
	rec, started, err := s.Apply(t.Context(), operation("op-again"), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
		if runs++; runs == 1 {
			go func() {
				_, started, err := s.Apply(t.Context(), operation("op-again"), effect("other"))
				others <- started && err == nil
			}()
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if query[int](t, url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0 {
					break
				}
			}
		}
		return insert(ctx, tx, "first")
	})
	want, effects := "", "twice" // nearly always the other is faster
	if started {
		want, effects = "first", "first,twice"
	}
	if other := <-others; other == started || err != nil || rec.State != mcpreplay.StateApplied || rec.Effect != want {
		t.Errorf("Apply() = %s %q, started %v, %v, and the other started %v; want one of them", rec.State, rec.Effect, started, err, other)
	}
	runs = 0
	if _, err := newPool(t, url).Exec(t.Context(), "ALTER SEQUENCE tries RESTART"); err != nil {
		t.Fatal(err)
	}
	_, started, err = s.Apply(t.Context(), operation("op-twice"), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
		runs++
		return insert(ctx, tx, "twice")
	})
	if !started || err != nil || runs != 2 {
		t.Errorf("Apply() = started %v, %v after %d runs; want it to be run twice", started, err, runs)
	}
	if got := query[string](t, url, "SELECT string_agg(label, ',' ORDER BY label) FROM once"); got != effects {
		t.Errorf("the effects are %q, want %q", got, effects)
	}
}
