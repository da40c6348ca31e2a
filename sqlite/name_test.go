package sqlite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// TestFileThatVanishesUnderTheEffect: what goes into a file without a name is
// gone with the process, whatever SQLite says of the commit.
func TestFileThatVanishesUnderTheEffect(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"", "-wal", "-shm"} {
		path := newPath(t)
		s := openStore(t, path, nil)
		_, started, err := s.Apply(t.Context(), operation("op-gone"), func(ctx context.Context, tx *sqlite.Tx) (out mcpreplay.Outcome, err error) {
			return out, errors.Join(writeRow(ctx, tx, "op-gone"), os.Remove(path+side))
		})
		if started || !errors.Is(err, mcpreplay.ErrUnknown) || !strings.Contains(err.Error(), "restart") {
			t.Errorf("ledger%s deleted: Apply() = started %v, %v; want %v", side, started, err, mcpreplay.ErrUnknown)
		}
		if _, _, err := s.Begin(t.Context(), operation("op-after"), claim()); !errors.Is(err, mcpreplay.ErrUnavailable) {
			t.Errorf("ledger%s deleted: Begin() = %v, want %v", side, err, mcpreplay.ErrUnavailable)
		}
	}
}

// beginning tells when the writer, which is past all its checks by then, asks how
// long it may wait for the lock.
type beginning struct {
	context.Context
	once    sync.Once
	reached chan struct{}
}

func (b *beginning) Deadline() (time.Time, bool) {
	b.once.Do(func() { close(b.reached) })
	return time.Now().Add(time.Minute), true
}

// TestFileReplacedWhileWaiting is a restore by another process that holds the
// lock: the one who waits for it must not write into what was there before, nor
// take the new log away when it closes.
func TestFileReplacedWhileWaiting(t *testing.T) {
	t.Parallel()
	path, backup := newPath(t), newPath(t)
	s := openStore(t, path, nil)
	apply(t, s, "op-before")
	meddle(t, path, "VACUUM INTO '"+backup+"'")
	unlock := lock(t, path)
	waiting := &beginning{Context: context.Background(), reached: make(chan struct{})}
	done := make(chan error)
	go func() {
		_, _, err := s.Apply(waiting, operation("op-late"), func(context.Context, *sqlite.Tx) (out mcpreplay.Outcome, err error) {
			t.Error("the effect ran")
			return out, nil
		})
		done <- err
	}()
	<-waiting.reached
	if err := errors.Join(os.Rename(backup, path), os.Remove(path+"-wal"), os.Remove(path+"-shm")); err != nil {
		t.Fatal(err)
	}
	unlock()
	if err := <-done; !errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "restart") {
		t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
	restored := verified(t, path, nil)
	apply(t, restored, "op-late")
	if err := s.Close(); err != nil {
		t.Errorf("Close() of the old ledger: %v", err)
	}
	apply(t, restored, "op-after")
	for _, id := range []string{"op-before", "op-late", "op-after"} {
		if n := query[int](t, path, "SELECT count(*) FROM mcpreplay_operations WHERE operation_id = '"+id+"'"); n != 1 {
			t.Errorf("%s has %d records in the restored ledger, want 1", id, n)
		}
	}
}

// TestTwoIndexesAreNotTwoWriters: the locks are in the index of the log, so who
// lost it must stop.
func TestTwoIndexesAreNotTwoWriters(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	first := openStore(t, path, nil)
	apply(t, first, "op-before")
	if err := os.Remove(path + "-shm"); err != nil {
		t.Fatal(err)
	}
	second := verified(t, path, nil)
	apply(t, second, "op-second")
	_, started, err := first.Apply(t.Context(), operation("op-second"), effect("op-second"))
	if started || !errors.Is(err, mcpreplay.ErrUnavailable) {
		t.Errorf("Apply() without an index = started %v, %v; want %v", started, err, mcpreplay.ErrUnavailable)
	}
	if err := first.Close(); err != nil {
		t.Errorf("Close(): %v", err)
	}
	apply(t, second, "op-after")
	if n := halves(t, path); n != 0 {
		t.Errorf("%d records have not exactly one effect", n)
	}
}

// TestTwoNamesAreNotTwoWriters: each name has a log and locks of its own.
func TestTwoNamesAreNotTwoWriters(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the number of links is not looked at")
	}
	path := newPath(t)
	s := verified(t, path, nil)
	apply(t, s, "op-before")
	other := filepath.Join(filepath.Dir(path), "other.db")
	if err := os.Link(path, other); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, other} {
		_, err := sqlite.Open(name, &sqlite.Options{Backend: "issues"})
		if !errors.Is(err, mcpreplay.ErrIncompatible) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "; remove the other name") {
			t.Errorf("Open() = %v, want %v with a remedy", err, mcpreplay.ErrIncompatible)
		}
	}
	if _, _, err := s.Apply(t.Context(), operation("op-linked"), effect("op-linked")); !errors.Is(err, mcpreplay.ErrUnavailable) {
		t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	apply(t, s, "op-linked")
}

func TestSymbolicLinkIsFollowed(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	first := openStore(t, path, nil)
	apply(t, first, "op-first")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s := verified(t, link, nil)
	apply(t, s, "op-linked")
	for _, side := range []string{"", "-wal", "-shm"} {
		if fi, err := os.Stat(path + side); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("ledger%s: %v, %v; want mode 0600", side, fi, err)
		}
	}
	if err := os.Remove(path + "-shm"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Apply(t.Context(), operation("op-late"), effect("op-late")); !errors.Is(err, mcpreplay.ErrUnavailable) {
		t.Errorf("Apply() without an index = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
}
