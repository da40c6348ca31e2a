package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
)

func TestSmoke(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c%d#e.db")
	s, err := sqlite.Open(path, &sqlite.Options{Backend: "issues"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := s.Setup(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS issue(id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT)")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	op := mcpreplay.Operation{Key: mcpreplay.Key{Principal: "alice", ID: "op-1"}, Tool: "t", Version: "1"}
	rec, started, err := s.Apply(ctx, op, func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO issue(title) VALUES(?)", "x")
		return mcpreplay.Outcome{Result: mcpreplay.Result{Body: []byte("{}")}}, err
	})
	t.Logf("%+v %v %v", rec, started, err)
	got, err := s.Get(ctx, op.Key)
	t.Logf("%+v %v", got, err)
	ev, err := s.Events(ctx, op.Key)
	t.Logf("%+v %v", ev, err)
	rec, started, err = s.Begin(ctx, mcpreplay.Operation{Key: mcpreplay.Key{Principal: "alice", ID: "op-2"}, Tool: "t"}, mcpreplay.Change{To: "in_progress", Owner: "me", Lease: time.Minute, Event: mcpreplay.Event{Kind: "claim"}})
	t.Logf("%+v %v %v", rec, started, err)
	t.Log(s.View(ctx, op.Key, func(ctx context.Context, tx *sqlite.Tx, rec mcpreplay.Record) error {
		var n int
		t.Log(tx.QueryRowContext(ctx, "SELECT count(*) FROM issue").Scan(&n), n)
		_, err := tx.ExecContext(ctx, "DELETE FROM issue")
		t.Log(err)
		return nil
	}))
	t.Log(s.Setup(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, "DROP TABLE issue")
		return err
	}))
	m, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	t.Log(m)
	t.Log(s.Close())
	m, _ = filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	t.Log(m)
	r, err := sqlite.Open(path, &sqlite.Options{Backend: "issues", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.Info(ctx))
	m, _ = filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	t.Log(m)
	t.Log(r.Close())
	m, _ = filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	t.Log(m)
}
