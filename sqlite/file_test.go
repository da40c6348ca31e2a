package sqlite_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/sqlite"
)

func TestFileThatVanishes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		vanish func(t *testing.T, path string) error
	}{
		{"deleted", func(_ *testing.T, path string) error { return os.Remove(path) }},
		{"its log deleted", func(_ *testing.T, path string) error { return os.Remove(path + "-wal") }},
		{"moved away", func(_ *testing.T, path string) error { return os.Rename(path, path+".old") }},
		{"replaced by another ledger", func(t *testing.T, path string) error {
			other := newPath(t)
			s := openStore(t, other, nil)
			apply(t, s, "op-other")
			if err := s.Close(); err != nil {
				return err
			}
			return os.Rename(other, path)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s := openStore(t, path, nil)
			rec := apply(t, s, "op-before")
			if _, err := s.Get(t.Context(), rec.Key); err != nil {
				t.Fatal(err)
			}
			if err := tt.vanish(t, path); err != nil {
				t.Fatal(err)
			}
			_, _, err := s.Apply(t.Context(), operation("op-into-nowhere"), func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
				t.Error("an effect ran in a ledger that is gone")
				return mcpreplay.Outcome{}, nil
			})
			if !errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "restart") {
				t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnavailable)
			}
			if _, err := s.Get(t.Context(), rec.Key); !errors.Is(err, mcpreplay.ErrUnavailable) {
				t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrUnavailable)
			}
		})
	}
}

// TestReplacedFileIsNotAdopted: when the connections have to be opened again, it
// is the ledger that counts and not the name of its file.
func TestReplacedFileIsNotAdopted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		replace func(path, other string) error
	}{
		{"moved into its place", func(path, other string) error { return os.Rename(other, path) }},
		{"copied over it", func(path, other string) error {
			b, err := os.ReadFile(other)
			return errors.Join(err, os.WriteFile(path, b, 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path, other := newPath(t), newPath(t)
			d := newDisk(t, false)
			s, err := sqlite.OpenWeak(path, &sqlite.Options{Backend: "issues"}, sqlite.Weak{VFS: d.name})
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
			if _, _, err := s.Apply(t.Context(), operation("op-lost"), effect("op-lost")); !errors.Is(err, mcpreplay.ErrUnknown) {
				t.Fatalf("Apply() = %v, want %v", err, mcpreplay.ErrUnknown)
			}
			d.failing(nil)
			for _, side := range []string{"-wal", "-shm"} {
				os.Remove(path + side)
			}
			second := openStore(t, other, nil)
			apply(t, second, "op-other")
			if err := errors.Join(second.Close(), tt.replace(path, other)); err != nil {
				t.Fatal(err)
			}
			_, _, err = s.Apply(t.Context(), operation("op-lost"), effect("op-lost"))
			if !errors.Is(err, mcpreplay.ErrUnavailable) {
				t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnavailable)
			}
			if _, err := s.Get(t.Context(), key("op-other")); !errors.Is(err, mcpreplay.ErrUnavailable) {
				t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrUnavailable)
			}
		})
	}
}

// TestDamagedFile: whatever is wrong with the file, it is an error and no panic.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		damage func(f *os.File, size int64) error
	}{
		{"truncated to nothing", func(f *os.File, _ int64) error { return f.Truncate(0) }},
		{"truncated to a page", func(f *os.File, _ int64) error { return f.Truncate(4096) }},
		{"truncated within a page", func(f *os.File, size int64) error { return f.Truncate(size/2 + 100) }},
		{"overwritten with noise", func(f *os.File, size int64) error {
			noise := make([]byte, size-4096)
			for i := range noise {
				noise[i] = byte(i*7 + 1)
			}
			_, err := f.WriteAt(noise, 4096)
			return err
		}},
		{"its header overwritten", func(f *os.File, _ int64) error {
			_, err := f.WriteAt([]byte(strings.Repeat("x", 4096)), 0)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			s := openStore(t, path, nil)
			rec := apply(t, s, "op-before")
			meddle(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fi, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.damage(f, fi.Size()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := s.Get(t.Context(), rec.Key)
				broken(t, "Get()", err)
				_, _, err = s.Apply(t.Context(), operation("op-after"), effect("op-after"))
				if err == nil {
					t.Error("Apply() was acknowledged by a damaged file")
				}
				broken(t, "Apply()", err)
			}
		})
	}
}

func broken(t *testing.T, what string, err error) {
	t.Helper()
	var failed *mcpreplay.EffectError
	if !errors.Is(err, mcpreplay.ErrUnavailable) && !errors.Is(err, mcpreplay.ErrIncompatible) && !errors.As(err, &failed) {
		t.Errorf("%s on a damaged file = %v, want %v", what, err, mcpreplay.ErrUnavailable)
	}
}
