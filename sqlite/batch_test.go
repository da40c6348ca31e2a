package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// inLine runs all while the writer is held, so that they go into one
// transaction, and returns what each was told, in their order.
func inLine(t *testing.T, s *sqlite.Store, all ...func() error) []error {
	t.Helper()
	release := hold(t, s, "op-held")
	errs := make([]chan error, len(all))
	for i, fn := range all {
		errs[i] = make(chan error, 1)
		at := s.Waiting()
		go func() { errs[i] <- fn() }()
		for s.Waiting() == at {
			runtime.Gosched()
		}
		time.Sleep(time.Millisecond) // they are served in the order in which they came
	}
	time.Sleep(sqlite.BatchTime) // the transaction that holds them up takes none of them in
	if err := release(); err != nil {
		t.Error(err)
	}
	told := make([]error, len(all))
	for i := range all {
		told[i] = <-errs[i]
	}
	return told
}

// applying is the Apply of an operation whose effect counts its runs in ran.
func applying(s *sqlite.Store, id string, ran *atomic.Int64) func() error {
	return func() error {
		_, started, err := s.Apply(context.Background(), operation(id), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
			ran.Add(1)
			return effect(id)(ctx, tx)
		})
		if err == nil && !started {
			err = errors.New("it was not started")
		}
		return err
	}
}

// syncs counts the syncs of the log.
func syncs(d *disk) *atomic.Int64 {
	var n atomic.Int64
	d.failing(func(op, file string) error {
		if op == "sync" && file == "wal" {
			n.Add(1)
		}
		return nil
	})
	return &n
}

// What is asked for at the same time shares one commit, unless told otherwise.
func TestOperationsShareACommit(t *testing.T) {
	t.Parallel()
	const n = 20
	for _, tt := range []struct{ batch, want int }{{0, 2}, {256, 2}, {10, 3}, {1, n + 1}} {
		path, d := newPath(t), newDisk(t, false)
		s, err := sqlite.OpenWeak(path, &sqlite.Options{Backend: "issues", Batch: tt.batch}, sqlite.Weak{VFS: d.name})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		setup(t, s)
		count := syncs(d)
		var ran atomic.Int64
		var all []func() error
		for i := range n {
			all = append(all, applying(s, fmt.Sprintf("op-%d", i), &ran))
		}
		if err := errors.Join(inLine(t, s, all...)...); err != nil {
			t.Fatal(err)
		}
		// The one that held the writer has its own.
		// A slow machine may need a little more.
		if got := int(count.Load()); got < tt.want || got > min(tt.want+3, n+1) {
			t.Errorf("with Batch %d: %d syncs for %d operations, want about %d", tt.batch, got, n+1, tt.want)
		}
		if n := halves(t, path); n != 0 {
			t.Errorf("%d records have not exactly one effect", n)
		}
		verify(t, s)
	}
	for _, batch := range []int{-1, 257} {
		if _, err := sqlite.Open(newPath(t), &sqlite.Options{Backend: "issues", Batch: batch}); err == nil {
			t.Errorf("Open() with Batch %d = nil", batch)
		}
	}
}

// culprits are effects that fail among others. Lost says that SQLite gives up the
// transaction of them all with it.
var culprits = []struct {
	name string
	do   body
	is   error
	lost bool
}{
	{"refuses", func(context.Context, *sqlite.Tx) error { return context.Canceled }, context.Canceled, false},
	{"panics", func(context.Context, *sqlite.Tx) error { panic("no") }, nil, false},
	{"ends its goroutine", func(context.Context, *sqlite.Tx) error { runtime.Goexit(); return nil }, nil, true},
	{"breaks a constraint", statement("INSERT INTO tag VALUES (NULL)"), sqlite3.CONSTRAINT, false},
	{"breaks a deferred constraint", statement("INSERT INTO tag VALUES (404)"), sqlite3.CONSTRAINT_FOREIGNKEY, false},
	{"commits", statement("COMMIT"), sqlite3.AUTH, false},
	{"rolls back", statement("ROLLBACK"), sqlite3.AUTH, false},
	{"releases", statement("RELEASE operation"), sqlite3.AUTH, false},
	{"changes a setting", statement("PRAGMA synchronous=OFF"), sqlite3.AUTH, false},
	{"loses the transaction", statement("INSERT INTO once VALUES ('x'); INSERT OR ROLLBACK INTO once VALUES ('x')"), sqlite3.CONSTRAINT, true},
	{"loses the transaction and says nothing", func(ctx context.Context, tx *sqlite.Tx) error {
		tx.ExecContext(ctx, "INSERT INTO once VALUES ('x'); INSERT OR ROLLBACK INTO once VALUES ('x')")
		return nil
	}, nil, true},
	{"takes a name of the ledger's", statement("ALTER TABLE once RENAME TO mcpreplay_mine"), nil, false},
	{"fills the disk", statement("INSERT INTO item (label, body) VALUES ('big', zeroblob(1000000))"), sqlite3.FULL, true},
	{"leaves rows open", func(ctx context.Context, tx *sqlite.Tx) error {
		rows, err := tx.QueryContext(ctx, "SELECT label FROM item UNION ALL SELECT label FROM item")
		if err == nil && !rows.Next() {
			err = errors.New("no rows")
		}
		return errors.Join(err, context.Canceled)
	}, context.Canceled, false},
}

func statement(sql string) body {
	return func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, sql)
		return err
	}
}

// One that fails takes nothing of those with it that share its transaction, before
// it or after it.
func TestAnEffectFailsAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range culprits {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s, err := openOn(t, newDisk(t, false), path, "max_page_count=100")
			if err != nil {
				t.Fatal(err)
			}
			var ran, failing atomic.Int64
			culprit := func() error {
				failing.Add(1)
				return run(t, s, tt.do)
			}
			told := inLine(t, s, applying(s, "op-1", &ran), applying(s, "op-2", &ran), culprit, applying(s, "op-3", &ran), applying(s, "op-4", &ran))
			failed := told[2]
			told[2] = nil
			if err := errors.Join(told...); err != nil {
				t.Errorf("its neighbours: %v", err)
			}
			var effect *mcpreplay.EffectError
			if !errors.As(failed, &effect) || tt.is != nil && !errors.Is(failed, tt.is) || errors.Is(failed, mcpreplay.ErrUnknown) {
				t.Errorf("it got %v, want an *EffectError of %v", failed, tt.is)
			}
			want := int64(4)
			if tt.lost {
				want += 2 // those before it
			}
			if ran.Load() != want {
				t.Errorf("the effects of its neighbours ran %d times, want %d", ran.Load(), want)
			}
			if got := query[string](t, path, "SELECT group_concat(label) FROM (SELECT label FROM item ORDER BY label)"); got != "op-1,op-2,op-3,op-4,op-held" {
				t.Errorf("there are the effects %s", got)
			}
			if n := halves(t, path); n != 0 {
				t.Errorf("%d records have not exactly one effect", n)
			}
			apply(t, s, "op-effect")
		})
	}
}

// A caller that leaves while it waits in line takes nobody with it.
func TestACallerLeavesTheLine(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	var ran, never atomic.Int64
	ctx, leave := context.WithCancel(t.Context())
	gone := func() error {
		_, _, err := s.Apply(ctx, operation("op-gone"), func(context.Context, *sqlite.Tx) (out mcpreplay.Outcome, err error) {
			never.Add(1)
			return out, err
		})
		return err
	}
	leaves := func() error {
		_, _, err := s.Apply(t.Context(), operation("op-leaver"), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
			leave()
			return effect("op-leaver")(ctx, tx)
		})
		return err
	}
	told := inLine(t, s, applying(s, "op-1", &ran), leaves, gone, applying(s, "op-2", &ran))
	if err := told[2]; !errors.Is(err, mcpreplay.ErrUnavailable) || !errors.Is(err, context.Canceled) || never.Load() != 0 {
		t.Errorf("who left got %v, and its effect ran %d times", err, never.Load())
	}
	told[2] = nil
	if err := errors.Join(told...); err != nil {
		t.Errorf("the others: %v", err)
	}
}

// Whoever shares a commit that is not confirmed does not know whether it happened.
// Who wrote nothing knows that, and is not told what may not be there.
func TestASharedCommitThatFails(t *testing.T) {
	t.Parallel()
	path, d := newPath(t), newDisk(t, false)
	s, err := openOn(t, d, path)
	if err != nil {
		t.Fatal(err)
	}
	var ran atomic.Int64
	breaks := func() error {
		_, _, err := s.Apply(context.Background(), operation("op-breaks"), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
			d.failing(func(op, _ string) error {
				if op == "sync" {
					return sqlite3.IOERR_FSYNC
				}
				return nil
			})
			return effect("op-breaks")(ctx, tx)
		})
		return err
	}
	twin := func() error {
		_, _, err := s.Apply(context.Background(), operation("op-1"), effect("op-1"))
		return err
	}
	refused := func() error { return run(t, s, func(context.Context, *sqlite.Tx) error { return errors.New("no") }) }
	told := inLine(t, s, applying(s, "op-1", &ran), breaks, twin, refused, applying(s, "op-2", &ran))
	for i, want := range []error{mcpreplay.ErrUnknown, mcpreplay.ErrUnknown, mcpreplay.ErrUnavailable, mcpreplay.ErrUnavailable, mcpreplay.ErrUnknown} {
		if !errors.Is(told[i], want) || want != mcpreplay.ErrUnknown && errors.Is(told[i], mcpreplay.ErrUnknown) {
			t.Errorf("number %d got %v, want %v", i, told[i], want)
		}
	}
	d.failing(nil)
	for _, id := range []string{"op-1", "op-breaks", "op-2", "op-effect"} {
		if rec, _, err := s.Apply(t.Context(), operation(id), effect(id)); err != nil || rec.State != mcpreplay.StateApplied {
			t.Errorf("%s again: %s, %v", id, rec.State, err)
		}
	}
	if n := halves(t, path); n != 0 {
		t.Errorf("%d records have not exactly one effect", n)
	}
}

// A transaction that takes long takes nobody in any more: other processes wait.
func TestALongTransactionIsCommitted(t *testing.T) {
	t.Parallel()
	path, d := newPath(t), newDisk(t, false)
	s, err := openOn(t, d, path)
	if err != nil {
		t.Fatal(err)
	}
	count := syncs(d)
	slow := func() error {
		_, _, err := s.Apply(context.Background(), operation("op-slow"), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
			time.Sleep(3 * sqlite.BatchTime)
			return effect("op-slow")(ctx, tx)
		})
		return err
	}
	var ran atomic.Int64
	told := inLine(t, s, applying(s, "op-1", &ran), slow, applying(s, "op-2", &ran), applying(s, "op-3", &ran))
	if err := errors.Join(told...); err != nil {
		t.Fatal(err)
	}
	if n := count.Load(); n != 3 {
		t.Errorf("%d syncs, want one for what held the writer, one up to what was slow, and one for the rest", n)
	}
}

// An effect that does not end is rolled back after its time, and the others go on.
// What it still does leads nowhere.
func TestAnEffectThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	const endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
	leave := make(chan struct{})
	late := make(chan error, 8)
	for name, stuck := range map[string]body{
		"outside": func(ctx context.Context, tx *sqlite.Tx) error {
			<-leave
			late <- writeRow(ctx, tx, "late")
			return nil
		},
		"outside, and panics": func(ctx context.Context, tx *sqlite.Tx) error {
			<-leave
			late <- writeRow(ctx, tx, "late")
			panic("no")
		},
		"outside, and ends its goroutine": func(ctx context.Context, tx *sqlite.Tx) error {
			<-leave
			late <- writeRow(ctx, tx, "late")
			runtime.Goexit()
			return nil
		},
		"in a query": func(ctx context.Context, tx *sqlite.Tx) error {
			var n int
			return tx.QueryRowContext(ctx, endless+"SELECT count(*) FROM n").Scan(&n)
		},
		"in a statement": statement("INSERT INTO item (label) " + endless + "SELECT x FROM n"),
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			s := verified(t, path, &sqlite.Options{EffectTimeout: 50 * time.Millisecond})
			var ran atomic.Int64
			told := inLine(t, s, applying(s, "op-1", &ran), func() error { return run(t, s, stuck) }, applying(s, "op-2", &ran))
			var failed *mcpreplay.EffectError
			if !errors.As(told[1], &failed) || errors.Is(told[1], mcpreplay.ErrUnknown) || !strings.Contains(failed.Error(), "took too long") {
				t.Errorf("it got %v", told[1])
			}
			apply(t, s, "op-effect")
			told[1] = nil
			if err := errors.Join(told...); err != nil {
				t.Errorf("its neighbours: %v", err)
			}
			if n := halves(t, path); n != 0 {
				t.Errorf("%d records have not exactly one effect", n)
			}
			t.Cleanup(func() { // first of all
				if strings.HasPrefix(name, "outside") {
					leave <- struct{}{}
					if err := <-late; err == nil {
						t.Error("it could write when it was over")
					}
				}
			})
		})
	}
}
