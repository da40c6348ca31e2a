package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
	"github.com/ncruces/go-sqlite3/vfs"
)

// config is what only tests change: there is no option that makes a ledger less
// durable.
type config struct {
	vfs         string
	synchronous string
	pragmas     []string
	patience    time.Duration
}

// conn is one connection to the ledger's file. One goroutine uses it at a time.
type conn struct {
	*ledger
	db   *sql.DB
	sql  *sql.Conn     // for the application's statements
	raw  *sqlite3.Conn // the same connection, for the ledger's own
	gate *gate
	open []vfs.FileHasMoved // the database and its log, as this connection has them open
}

// dial opens the file without changing anything in it.
func (s *Store) dial() (_ *conn, err error) {
	db, err := driver.Open(s.dsn())
	if err != nil {
		return nil, err
	}
	c := &conn{db: db, gate: &gate{}}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	// One native connection is pinned for life: the pool of database/sql must
	// never close it or open a second one that nobody has configured.
	db.SetMaxOpenConns(1)
	if c.sql, err = db.Conn(context.Background()); err != nil {
		return nil, err
	}
	err = c.sql.Raw(func(dc any) error {
		c.raw = dc.(driver.Conn).Raw()
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Statements are checked when they are prepared, and changing the authorizer
	// expires them all: it is set once, before anything is prepared.
	if err := c.raw.SetAuthorizer(c.gate.authorize); err != nil {
		return nil, err
	}
	c.raw.CommitHook(c.gate.mayCommit)
	return c, c.set("busy_timeout", "5000", "5000")
}

func (s *Store) dsn() string {
	// SQLite knows only %HH escapes, so + must not stand for a space.
	escape := func(t string) string { return strings.ReplaceAll(url.QueryEscape(t), "+", "%20") }
	// The log holds the same data as the database and gets the same mode.
	dsn := "file:" + escape(s.path) + "?mode=" + s.mode + "&modeof=" + escape(s.path)
	if s.cfg.vfs != "" {
		dsn += "&vfs=" + escape(s.cfg.vfs)
	}
	return dsn
}

// harden makes the connection durable and proves it: a setting that did not
// take is an error, because drivers and builds differ in their defaults.
func (s *Store) harden(c *conn, reader bool) error {
	if err := checkVersion(c); err != nil {
		return err
	}
	if mode, err := c.pragma("journal_mode"); err != nil {
		return err
	} else if mode != "wal" && reader {
		return s.incompatible(fmt.Errorf("its journal mode is %s", mode), "open it once for writing")
	}
	journal, queryOnly := "WAL", "0"
	if reader {
		journal, queryOnly = "", "1" // only a writer may set the journal mode
	}
	for _, p := range []struct{ name, value, want string }{
		{"foreign_keys", "1", "1"},
		{"temp_store", "MEMORY", "2"},
		{"fullfsync", "1", "1"}, // only macOS needs and heeds these two
		{"checkpoint_fullfsync", "1", "1"},
		{"journal_mode", journal, "wal"},
		// After the journal mode: changing that resets it.
		{"synchronous", s.cfg.synchronous, map[string]string{"FULL": "2", "NORMAL": "1"}[s.cfg.synchronous]},
		{"query_only", queryOnly, queryOnly},
	} {
		if err := c.set(p.name, p.value, p.want); err != nil {
			return err
		}
	}
	for _, p := range s.cfg.pragmas {
		if err := c.raw.Exec("PRAGMA " + p); err != nil {
			return err
		}
	}
	return nil
}

// set sets a pragma, unless value is "", and reads it back.
func (c *conn) set(name, value, want string) error {
	if value != "" {
		if err := c.raw.Exec("PRAGMA " + name + "=" + value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	got, err := c.pragma(name)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s is %s, not %s: this file cannot be made durable", name, got, want)
	}
	return nil
}

func (c *conn) pragma(name string) (string, error) { return c.text("PRAGMA " + name) }

func (c *conn) text(query string) (string, error) {
	st, _, err := c.raw.Prepare(query)
	if err != nil {
		return "", err
	}
	defer st.Close()
	var text string
	if st.Step() {
		text = st.ColumnText(0)
	}
	return text, st.Err()
}

// oldest is the first SQLite without the WAL-reset bug, which can corrupt a
// file that several connections use.
var oldest = [3]int{3, 51, 3}

func checkVersion(c *conn) error {
	text, err := c.text("SELECT sqlite_version()")
	if err != nil {
		return err
	}
	return versionOK(text)
}

func versionOK(text string) error {
	var v [3]int
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return fmt.Errorf("SQLite version %q is not understood: %w", text, err)
	}
	for i := range v {
		if v[i] != oldest[i] {
			if v[i] < oldest[i] {
				return fmt.Errorf("SQLite %s can corrupt shared files: 3.51.3 or newer is needed", text)
			}
			break
		}
	}
	return nil
}

// ready prepares the ledger's statements and remembers which files are open.
func (c *conn) ready(path string) (err error) {
	if c.ledger, err = prepare(c.raw); err != nil {
		return err
	}
	for _, op := range []sqlite3.FcntlOpcode{sqlite3.FCNTL_FILE_POINTER, sqlite3.FCNTL_JOURNAL_POINTER} {
		file, err := c.raw.FileControl("main", op)
		if err != nil {
			return err
		}
		for file != nil {
			if f, ok := file.(vfs.FileHasMoved); ok {
				c.open = append(c.open, f)
				break
			}
			outer, ok := file.(vfs.FileUnwrap)
			if !ok {
				break
			}
			file = outer.Unwrap()
		}
	}
	// The index of the log is made by the driver with default permissions.
	if fi, err := os.Stat(path); err == nil {
		if shm, err := os.Stat(path + "-shm"); err == nil && shm.Mode() != fi.Mode() {
			os.Chmod(path+"-shm", fi.Mode().Perm()) // its owner has to do it, others cannot
		}
	}
	return nil
}

// attached reports whether the names still lead to the open files. Writing into
// a deleted file would succeed, and be gone with this process.
func (c *conn) attached() error {
	for _, f := range c.open {
		switch moved, err := f.HasMoved(); {
		case err != nil:
			return err
		case moved:
			return errGone
		}
	}
	return nil
}

func (c *conn) close() error {
	if c == nil {
		return nil
	}
	var errs []error
	if c.ledger != nil {
		errs = append(errs, c.ledger.close())
	}
	if c.sql != nil {
		errs = append(errs, c.sql.Close())
	}
	errs = append(errs, c.db.Close())
	return errors.Join(errs...)
}

// gate keeps the statements of effects from ending the ledger's transaction or
// writing the ledger's tables.
type gate struct {
	shut atomic.Bool // while the application's code has the handle
}

// mayCommit refuses every commit while an effect runs. It is the last line: a
// statement that runs after the transaction was lost would commit by itself.
func (g *gate) mayCommit() bool { return !g.shut.Load() }

func (g *gate) authorize(action sqlite3.AuthorizerActionCode, third, fourth, _, _ string) sqlite3.AuthorizerReturnCode {
	if !g.shut.Load() {
		return sqlite3.AUTH_OK
	}
	switch action {
	case sqlite3.AUTH_TRANSACTION, sqlite3.AUTH_SAVEPOINT, sqlite3.AUTH_PRAGMA, sqlite3.AUTH_ATTACH, sqlite3.AUTH_DETACH:
		return sqlite3.AUTH_DENY
	case sqlite3.AUTH_READ, sqlite3.AUTH_SELECT, sqlite3.AUTH_FUNCTION, sqlite3.AUTH_RECURSIVE:
		return sqlite3.AUTH_OK
	}
	// All that is left changes something, named by the third or fourth argument.
	if ours(third) || ours(fourth) {
		return sqlite3.AUTH_DENY
	}
	return sqlite3.AUTH_OK
}

const prefix = "mcpreplay_"

func ours(name string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}
