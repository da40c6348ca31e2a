package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
)

// backupPages is how many pages are copied before the context is looked at.
const backupPages = 1000

// Backup is what a copy of a ledger holds.
type Backup struct {
	Ledger     mcpreplay.Info // as of the copy
	Operations int64
	Bytes      int64
}

// Backup copies the whole file, the application's own tables included, as it is in
// one snapshot, to a new file at out that only its owner may read. It may run
// while others write, and does not keep them waiting. out appears when the copy is
// complete and synced, or not at all, and nothing is ever overwritten; its
// directory needs a file system with hard links.
//
// A server's keys are not in its ledger, so they are not in the copy.
func (s *Store) Backup(ctx context.Context, out string) (b Backup, err error) {
	if out, err = resolve(out); err != nil {
		return b, fmt.Errorf("backup: %w", err)
	}
	if err := vacant(out); err != nil {
		return b, fmt.Errorf("backup: %w", err)
	}
	draft, err := newDraft(out, "partial")
	if err != nil {
		return b, fmt.Errorf("backup: %w", err)
	}
	defer removeAll(draft)
	err = s.read(ctx, func(c *conn, info mcpreplay.Info) (err error) {
		b.Ledger = info
		if b.Ledger.Restores, err = c.restores(); err != nil {
			return err
		}
		if b.Operations, err = c.number("SELECT count(*) FROM main.mcpreplay_operations"); err != nil {
			return err
		}
		return c.copyTo(ctx, draft)
	})
	if err != nil {
		return b, err
	}
	if b.Bytes, err = syncFile(draft); err == nil {
		err = publish(draft, out)
	}
	if err != nil {
		return b, fmt.Errorf("backup: %w", err)
	}
	return b, nil
}

// copyTo copies the snapshot that c is reading, page by page. Pages keep their
// places, unlike in VACUUM INTO, which may number the application's rows anew.
func (c *conn) copyTo(ctx context.Context, path string) (err error) {
	to := &Store{path: path, mode: "rw"}
	copying, err := c.raw.BackupInit("main", to.dsn())
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer func() { err = errors.Join(err, copying.Close()) }()
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if done, err = copying.Step(backupPages); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
	return nil
}

func (c *conn) number(query string) (n int64, err error) {
	st, _, err := c.raw.Prepare(query)
	if err != nil {
		return 0, err
	}
	defer st.Close()
	err = (&stmt{st}).run(func(st *sqlite3.Stmt) { n = st.ColumnInt64(0) })
	return n, err
}

// sides are the files that SQLite may keep beside a database.
var sides = []string{"-wal", "-shm", "-journal"}

// vacant reports what is in the way of a new database at path. A log that was left
// there would be taken for its own.
func vacant(path string) error {
	for _, name := range append([]string{""}, sides...) {
		_, err := os.Lstat(path + name)
		if err == nil {
			return fmt.Errorf("%s%s: %w", path, name, fs.ErrExist)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// newDraft makes an empty file beside path, for its owner only.
func newDraft(path, what string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"."+what+"-*")
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

func removeAll(path string) {
	for _, name := range append([]string{""}, sides...) {
		os.Remove(path + name) // mostly there is none
	}
}

// publish gives a draft its name, if that is free.
func publish(draft, path string) error {
	if err := os.Link(draft, path); err != nil {
		return err
	}
	if err := os.Remove(draft); err != nil {
		return err
	}
	return syncDir(path)
}

// syncFile returns the size of what it synced.
func syncFile(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return 0, err
	}
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// syncDir makes the name of a file as durable as its content.
func syncDir(path string) error {
	if runtime.GOOS == "windows" { // which cannot sync a directory, and does not need to
		return nil
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
