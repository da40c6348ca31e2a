package sqlite

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// openPatience bounds the wait for other processes that are creating, migrating
// or recovering the file.
const openPatience = 10 * time.Second

// Open opens the ledger in the file at path, and creates it there if there is
// none, readable by its owner only. An existing database gets the ledger's
// tables added beside its own.
//
// It returns an error matching mcpreplay.ErrIncompatible if the file belongs to
// another backend, was written by a newer version, or is no database, and one
// matching mcpreplay.ErrUnavailable if it cannot be used now.
func Open(path string, opts *Options) (*Store, error) {
	return open(path, opts, config{synchronous: "FULL", patience: patience})
}

func open(path string, opts *Options, cfg config) (*Store, error) {
	o, err := opts.resolve()
	if path == "" || strings.HasPrefix(path, ":memory:") || strings.ContainsRune(path, 0) {
		err = errors.Join(fmt.Errorf("sqlite: path: must name a file (got %q)", path), err)
	}
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, opts: o, cfg: cfg, readers: newPool()}
	if s.path, err = resolve(path); err != nil {
		s.path = path
		return nil, s.unavailable(err)
	}
	for deadline := time.Now().Add(openPatience); ; {
		if err = s.start(); err == nil {
			return s, nil
		}
		if !busy(err) || time.Now().After(deadline) {
			return nil, s.unavailable(err)
		}
		time.Sleep(time.Millisecond + mathrand.N(10*time.Millisecond))
	}
}

// start opens the first connection, and leaves nothing open if that fails.
func (s *Store) start() error {
	if !s.opts.ReadOnly {
		// Never rwc: create makes the file, with its own permissions.
		s.mode = "rw"
		if err := create(s.path); err != nil {
			return err
		}
	} else {
		s.mode = s.readMode()
	}
	if fi, err := os.Stat(s.path); err == nil && fi.Mode().IsRegular() && links(fi) > 1 {
		return s.incompatible(errLinked, remedy(errLinked))
	}
	c, err := s.dial()
	if err != nil {
		return err
	}
	if ro, _ := c.raw.ReadOnly("main"); ro && !s.opts.ReadOnly {
		c.close()
		return sqlite3.READONLY
	}
	if err := s.enter(c); err != nil {
		c.close()
		return err
	}
	if s.file, err = os.Stat(s.path); err == nil {
		err = c.attached()
	}
	if err != nil {
		c.close()
		return err
	}
	if s.opts.ReadOnly {
		<-s.readers.tokens
		s.readers.tokens <- c
		return nil
	}
	s.writer = s.startWriter(c)
	return nil
}

// readMode is how to open for reading only. A connection that may not write
// leaves the log it has to make behind. So where there is no log, because nobody
// has the file open, and the file could be written, it is opened as if to write
// and only forbidden to (query_only): then closing removes the log again.
func (s *Store) readMode() string {
	if _, err := os.Stat(s.path + "-wal"); err == nil {
		return "ro"
	}
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		return "ro"
	}
	f.Close()
	return "rw"
}

// enter makes a fresh connection usable: it finds or makes the ledger. When the
// ledger is there and current nothing is written and no lock is taken, so that
// opening works while others write.
func (s *Store) enter(c *conn) error {
	if encoding, err := c.pragma("encoding"); err != nil {
		return err
	} else if encoding != "UTF-8" {
		// Text that is not UTF-8 would not come back as it was written.
		return s.incompatible(fmt.Errorf("its encoding is %s, not UTF-8", encoding), "copy its tables into a new file")
	}
	version, err := s.version(c)
	if err != nil {
		return err
	}
	if version > 0 {
		if err := s.identify(c); err != nil {
			return err
		}
	}
	if version < len(migrations) && s.opts.ReadOnly {
		return s.incompatible(fmt.Errorf("it holds schema version %d of %d", version, len(migrations)), "open it once for writing")
	}
	if err := s.harden(c, s.opts.ReadOnly); err != nil {
		return err
	}
	if version < len(migrations) {
		if err := s.migrate(c); err != nil {
			return err
		}
		if err := s.identify(c); err != nil {
			return err
		}
	}
	return s.damaged(c.ready(s.path))
}

// connect opens a further connection to the ledger that was opened first.
func (s *Store) connect(reader bool) (*conn, error) {
	c, err := s.dial()
	if err != nil {
		return nil, err
	}
	if fi, statErr := os.Stat(s.path); statErr != nil || !os.SameFile(fi, s.file) {
		err = errGone
	}
	if err == nil {
		err = s.identify(c)
	}
	if err == nil {
		err = s.harden(c, reader)
	}
	if err == nil {
		err = s.damaged(c.ready(s.path))
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// sqlBehind is whether a position could be used twice.
const sqlBehind = `SELECT coalesce((SELECT max(position) FROM main.mcpreplay_events), 0) >
  coalesce((SELECT seq FROM main.sqlite_sequence WHERE name = 'mcpreplay_events'), 0)`

// identify checks that the ledger is the configured backend's, and the one that
// was opened first.
func (s *Store) identify(c *conn) error {
	st, _, err := c.raw.Prepare("SELECT backend, instance, ids FROM main.mcpreplay_ledger")
	if err != nil {
		return s.damaged(err)
	}
	defer st.Close()
	found := st.Step()
	if err := st.Err(); err != nil {
		return err
	}
	if !found || st.ColumnText(1) == "" {
		return s.damaged(errNobody)
	}
	if behind, err := c.text(sqlBehind); err != nil {
		return s.damaged(err)
	} else if behind != "0" {
		return s.damaged(errBehind)
	}
	if backend := st.ColumnText(0); backend != s.opts.Backend && s.opts.Backend != "" {
		return s.incompatible(fmt.Errorf("it is the ledger of backend %q, not of %q", backend, s.opts.Backend),
			"name the ledger of this backend, or configure the backend of this ledger")
	}
	ids := IDs(st.ColumnText(2))
	if s.opts.IDs != "" && s.opts.IDs != ids {
		return s.incompatible(fmt.Errorf("its operation ids are %q, not %q", ids, s.opts.IDs), "configure Options.IDs as this ledger was made")
	}
	switch instance := st.ColumnText(1); s.instance {
	case "":
		s.instance, s.ids = instance, ids
	case instance:
	default:
		return errGone
	}
	return nil
}

// Setup lets the application make its own tables beside the ledger, in one
// transaction. Several processes may do so at once: they take turns, so
// CREATE TABLE IF NOT EXISTS is enough. The rules of effects hold, but that it may
// take as long as it takes, and a failure is an *mcpreplay.EffectError.
func (s *Store) Setup(ctx context.Context, fn func(context.Context, *Tx) error) error {
	return s.write(ctx, func(ctx context.Context, c *conn) (bool, error) {
		info, err := c.read()
		if err == nil {
			err = s.effect(ctx, c, info.Position, 0, fn)
		}
		return err == nil, err
	})
}

func newInstance() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}
