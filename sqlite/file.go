package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// file is a file that a connection has open, and the name it must still have.
type file struct {
	name string
	info fs.FileInfo
}

// watch remembers which files the connection has open: the database, its log,
// and the index of that, which holds the locks. Two processes with an index each
// are two writers.
func (c *conn) watch(path string) error {
	database, err := c.raw.FileControl("main", sqlite3.FCNTL_FILE_POINTER)
	if err != nil {
		return err
	}
	log, err := c.raw.FileControl("main", sqlite3.FCNTL_JOURNAL_POINTER)
	if err != nil {
		return err
	}
	var index any
	for f := range layers(database) {
		if f, ok := f.(vfs.FileSharedMemory); ok {
			index = f.SharedMemory()
		}
	}
	for _, part := range []struct {
		name string
		open any
	}{{path, database}, {path + "-wal", log}, {path + "-shm", index}} {
		for f := range layers(part.open) {
			s, ok := f.(interface{ Stat() (fs.FileInfo, error) })
			if !ok {
				continue
			}
			info, err := s.Stat()
			if errors.Is(err, fs.ErrInvalid) { // it is not open
				break
			}
			if err != nil {
				return err
			}
			c.files = append(c.files, file{part.name, info})
			break
		}
	}
	return nil
}

// layers are a file and what it wraps.
func layers(f any) func(yield func(any) bool) {
	return func(yield func(any) bool) {
		for f != nil && yield(f) {
			outer, ok := f.(vfs.FileUnwrap)
			if !ok {
				return
			}
			f = outer.Unwrap()
		}
	}
}

// attached reports whether the names still lead to the open files, and the
// database has no other name. Writing into a deleted file would succeed, and be
// gone with this process.
func (c *conn) attached() error {
	for i, f := range c.files {
		now, err := os.Stat(f.name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return errGone
		case err != nil:
			return err
		case !os.SameFile(now, f.info):
			return errGone
		case i == 0 && links(now) > 1:
			return errLinked
		}
	}
	return nil
}

// resolve follows symbolic links, as SQLite does: log and index lie beside the
// file itself, not beside a link to it.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return filepath.EvalSymlinks(path)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// create makes an empty file for the database, with its own mode: SQLite would
// make it readable by everyone.
func create(path string) error {
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.IsDir():
		return errIsDir
	case err == nil, !errors.Is(err, fs.ErrNotExist):
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil // another process was first
	}
	if err != nil {
		return err
	}
	return f.Close()
}
