package sqlite_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/sqlite"
)

func openOn(t *testing.T, d *disk, path string, pragmas ...string) (*sqlite.Store, error) {
	t.Helper()
	s, err := sqlite.OpenWeak(path, &sqlite.Options{Backend: "issues"}, sqlite.Weak{VFS: d.name, Pragmas: pragmas})
	if err == nil {
		t.Cleanup(func() {
			d.failing(nil)
			verify(t, s)
			s.Close()
		})
		setup(t, s)
	}
	return s, err
}

// TestFullDiskAtStatementIsDefinite: SQLite rolls the transaction back itself.
func TestFullDiskAtStatementIsDefinite(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s, err := openOn(t, newDisk(t, false), path, "max_page_count=40")
	if err != nil {
		t.Fatal(err)
	}
	for _, swallow := range []bool{false, true} {
		_, _, err = s.Apply(t.Context(), operation("op-effect"), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO item (label, body) VALUES ('big', zeroblob(1000000))")
			if !errors.Is(err, sqlite3.FULL) {
				t.Errorf("the statement = %v, want a full disk", err)
			}
			if swallow {
				err = nil
			}
			return mcpreplay.Outcome{}, err
		})
		var failed *mcpreplay.EffectError
		if !swallow && !errors.As(err, &failed) {
			t.Errorf("Apply() = %v, want an *EffectError", err)
		}
		if !swallow && (!errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "free space")) {
			t.Errorf("Apply() = %v, want it to tell of the disk", err)
		}
	}
	// The ledger's own statement, with a result that does not fit.
	_, _, err = s.Begin(t.Context(), operation("op-big"), mcpreplay.Change{
		To: mcpreplay.StateInProgress, Result: &mcpreplay.Result{Body: make([]byte, 1e6)}, Event: mcpreplay.Event{Kind: mcpreplay.EventClaim},
	})
	if !errors.Is(err, mcpreplay.ErrUnavailable) || !errors.Is(err, sqlite3.FULL) || errors.Is(err, mcpreplay.ErrUnknown) {
		t.Errorf("Begin() = %v, want %v of a full disk", err, mcpreplay.ErrUnavailable)
	}
	if _, err := s.Get(t.Context(), key("op-big")); !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrNotFound)
	}
	apply(t, s, "op-small")
}

func TestFailedCommitIsUnknown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		op   string
		err  error
	}{
		{"full disk", "write", sqlite3.FULL},
		{"disk error", "write", sqlite3.IOERR_WRITE},
		{"read-only disk", "write", sqlite3.READONLY},
		{"failed sync", "sync", sqlite3.IOERR_FSYNC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			d := newDisk(t, false)
			s, err := openOn(t, d, path)
			if err != nil {
				t.Fatal(err)
			}
			apply(t, s, "op-before")
			d.failing(func(op, file string) error {
				if op == tt.op && file == "wal" {
					return tt.err
				}
				return nil
			})
			rec, started, err := s.Apply(t.Context(), operation("op-lost"), effect("op-lost"))
			if !errors.Is(err, mcpreplay.ErrUnknown) || !errors.Is(err, tt.err) || errors.Is(err, mcpreplay.ErrUnavailable) {
				t.Errorf("Apply() = %v, want %v of %v", err, mcpreplay.ErrUnknown, tt.err)
			}
			if started || rec.State != "" || !strings.Contains(err.Error(), path) {
				t.Errorf("Apply() = %+v, started %v, %v; want nothing but an error naming the file", rec, started, err)
			}
			if _, err := s.Get(t.Context(), key("op-before")); err != nil {
				t.Errorf("Get() while the disk fails: %v", err)
			}
			if n := d.opens(func() { apply(t, s, "op-after") }); n != 1 {
				t.Errorf("the file was opened %d times, want 1: the connection's view of the log may be wrong", n)
			}
			rec, started, err = s.Apply(t.Context(), operation("op-lost"), effect("op-lost"))
			if err != nil || rec.State != mcpreplay.StateApplied {
				t.Errorf("Apply() again = %s, started %v, %v; want applied", rec.State, started, err)
			}
			if n := halves(t, path); n != 0 {
				t.Errorf("%d records have not exactly one effect", n)
			}
		})
	}
}

// TestFailedCommitMayHaveHappened shows why the outcome is unknown: nobody was
// answered, and yet a recovery finds the commit.
func TestFailedCommitMayHaveHappened(t *testing.T) {
	t.Parallel()
	d := newDisk(t, true)
	s, err := openOn(t, d, newPath(t))
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, "op-before")
	d.failing(func(op, file string) error {
		if op == "sync" {
			return sqlite3.IOERR_FSYNC
		}
		return nil
	})
	if _, _, err := s.Apply(t.Context(), operation("op-lost"), effect("op-lost")); !errors.Is(err, mcpreplay.ErrUnknown) {
		t.Fatalf("Apply() = %v, want %v", err, mcpreplay.ErrUnknown)
	}
	for _, tt := range []struct {
		keep float64
		want int
	}{{0, 1}, {1, 0}} {
		dir := t.TempDir()
		if err := d.cut(dir, rand.New(rand.NewPCG(1, 1)), tt.keep); err != nil {
			t.Fatal(err)
		}
		if n := missing(t, filepath.Join(dir, "ledger.db"), []string{"op-before", "op-lost"}); n != tt.want {
			t.Errorf("when %.0f of what was not synced survives, %d operations are missing, want %d", tt.keep, n, tt.want)
		}
	}
}

func TestDiskThatFailsBeforeCommitIsDefinite(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := newDisk(t, false)
	s, err := openOn(t, d, path)
	if err != nil {
		t.Fatal(err)
	}
	rec := apply(t, s, "op-before")
	if _, err := s.Get(t.Context(), rec.Key); err != nil {
		t.Fatal(err)
	}
	meddle(t, path, "INSERT INTO once VALUES ('x')") // makes everybody read again
	d.failing(func(op, file string) error {
		if op == "read" {
			return sqlite3.IOERR_READ
		}
		return nil
	})
	_, _, errApply := s.Apply(t.Context(), operation("op-fails"), func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
		t.Error("the effect ran")
		return mcpreplay.Outcome{}, nil
	})
	for name, err := range map[string]error{
		"Get":     second(s.Get(t.Context(), rec.Key)),
		"Events":  second(s.Events(t.Context(), rec.Key)),
		"List":    second(s.List(t.Context(), mcpreplay.Filter{})),
		"Info":    second(s.Info(t.Context())),
		"Advance": second(s.Advance(t.Context(), mcpreplay.Change{Key: rec.Key})),
		"Apply":   errApply,
	} {
		if !errors.Is(err, mcpreplay.ErrUnavailable) || !errors.Is(err, sqlite3.IOERR) || errors.Is(err, mcpreplay.ErrUnknown) {
			t.Errorf("%s on a disk that cannot be read = %v, want %v", name, err, mcpreplay.ErrUnavailable)
		}
	}
	if n := d.opens(func() { apply(t, s, "op-after") }); n != 1 {
		t.Errorf("the writer opened the file %d times after an error, want 1", n)
	}
	n := d.opens(func() {
		for range 4 { // as many as there are readers
			if _, err := s.Get(t.Context(), rec.Key); err != nil {
				t.Errorf("Get() when the disk works again: %v", err)
			}
		}
	})
	if n != 4 {
		t.Errorf("the readers opened the file %d times after an error, want 4", n)
	}
}

func second[T any](_ T, err error) error { return err }

func TestOpenOnDiskThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, op, file string
		err            error
		is             error
	}{
		{"read-only directory", "open", "wal", sqlite3.READONLY_DIRECTORY, sqlite3.READONLY},
		{"no permission for the log", "open", "wal", syscall.EACCES, sqlite3.CANTOPEN},
		{"no permission for the file", "open", "db", syscall.EACCES, fs.ErrPermission},
		{"full disk", "write", "db", sqlite3.FULL, sqlite3.FULL},
		{"read-only file", "write", "db", sqlite3.READONLY, sqlite3.READONLY},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			d := newDisk(t, false)
			d.failing(func(op, file string) error {
				if op == tt.op && file == tt.file {
					return tt.err
				}
				return nil
			})
			_, err := openOn(t, d, path)
			if !errors.Is(err, mcpreplay.ErrUnavailable) || !errors.Is(err, tt.is) {
				t.Fatalf("Open() = %v, want %v of %v", err, mcpreplay.ErrUnavailable, tt.is)
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "; ") {
				t.Errorf("Open() says %q, want the file and a remedy", err)
			}
			d.failing(nil)
			s, err := openOn(t, d, path)
			if err != nil {
				t.Fatalf("Open() when it can be written: %v", err)
			}
			apply(t, s, "op-after")
		})
	}
}

// TestOpenWaitsForOthers: creating and recovering need locks that SQLite does not
// always wait for by itself.
func TestOpenWaitsForOthers(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := newDisk(t, false)
	left := 3
	d.failing(func(op, file string) error {
		if op == "open" && file == "db" && left > 0 {
			left--
			return sqlite3.BUSY
		}
		return nil
	})
	s, err := openOn(t, d, path)
	if err != nil || left > 0 {
		t.Fatalf("Open() of a busy file = %v, with %d refusals to come", err, left)
	}
	apply(t, s, "op-after")
}

// TestPanicDuringCommitIsUnknown: by then it may be on the disk.
func TestPanicDuringCommitIsUnknown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, op string }{{"as it writes", "write"}, {"as it syncs", "sync"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			d := newDisk(t, false)
			s, err := openOn(t, d, path)
			if err != nil {
				t.Fatal(err)
			}
			apply(t, s, "op-before")
			once := true
			d.failing(func(op, file string) error {
				if op == tt.op && file == "wal" && once {
					once = false
					panic("a fault of the disk")
				}
				return nil
			})
			_, started, err := s.Apply(t.Context(), operation("op-lost"), effect("op-lost"))
			if started || !errors.Is(err, mcpreplay.ErrUnknown) || !strings.Contains(err.Error(), "a fault of the disk") {
				t.Errorf("Apply() = started %v, %v; want %v", started, err, mcpreplay.ErrUnknown)
			}
			rec, _, err := s.Apply(t.Context(), operation("op-lost"), effect("op-lost"))
			if err != nil || rec.State != mcpreplay.StateApplied {
				t.Errorf("Apply() again = %s, %v; want applied", rec.State, err)
			}
			if n := halves(t, path); n != 0 {
				t.Errorf("%d records have not exactly one effect", n)
			}
		})
	}
}

// TestPanicDuringAnEffectGivesTheConnectionUp: nobody knows what state it is in.
func TestPanicDuringAnEffectGivesTheConnectionUp(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	d := newDisk(t, false)
	s, err := openOn(t, d, path)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, "op-before")
	meddle(t, path, "INSERT INTO once VALUES ('x')") // makes everybody read again
	var inEffect bool
	d.failing(func(op, file string) error {
		if inEffect && op == "read" {
			inEffect = false
			panic("a fault of the disk")
		}
		return nil
	})
	err = run(t, s, func(ctx context.Context, tx *sqlite.Tx) error {
		inEffect = true
		_, err := tx.ExecContext(ctx, "INSERT INTO once VALUES ('y')")
		return err
	})
	var failed *mcpreplay.EffectError
	if !errors.As(err, &failed) || !failed.Panic {
		t.Errorf("Apply() = %v, want an *EffectError of a panic", err)
	}
	if n := d.opens(func() { apply(t, s, "op-effect") }); n != 1 {
		t.Errorf("the file was opened %d times, want 1", n)
	}
}

// ending is a logger that ends the goroutine, as a test's own does.
type ending struct{ slog.Handler }

func (ending) Enabled(context.Context, slog.Level) bool { return true }

func (ending) Handle(context.Context, slog.Record) error {
	runtime.Goexit()
	return nil
}

// TestGoroutineThatEndsDuringCommitIsUnknown: the commit was sent, whoever ended
// the goroutine then.
func TestGoroutineThatEndsDuringCommitIsUnknown(t *testing.T) {
	t.Parallel()
	d := newDisk(t, false)
	s, err := sqlite.OpenWeak(newPath(t), &sqlite.Options{Backend: "issues", Logger: slog.New(ending{})}, sqlite.Weak{VFS: d.name})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	setup(t, s)
	d.failing(func(op, _ string) error {
		if op == "sync" {
			return sqlite3.IOERR_FSYNC
		}
		return nil
	})
	var failed *mcpreplay.EffectError
	_, _, err = s.Apply(t.Context(), operation("op-lost"), effect("op-lost"))
	if !errors.Is(err, mcpreplay.ErrUnknown) || errors.As(err, &failed) {
		t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnknown)
	}
	d.failing(nil)
	rec, _, err := s.Apply(t.Context(), operation("op-lost"), effect("op-lost"))
	if err != nil || rec.State != mcpreplay.StateApplied {
		t.Errorf("Apply() again = %s, %v; want applied", rec.State, err)
	}
}
