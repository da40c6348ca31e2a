package sqlite

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
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
	inner  lender        // for the application's statements
	raw    *sqlite3.Conn // the same connection, for the ledger's own
	gate   *gate
	stop   stop
	broken bool // the driver did not return from a call
	files  []file
	names  string // what of the schema is the ledger's
}

// stop is what interrupts the statement that runs when it is set. It is a context
// because that is what the driver looks at.
type stop struct{ atomic.Bool }

func (*stop) Deadline() (time.Time, bool) { return time.Time{}, false }
func (*stop) Done() <-chan struct{}       { return nil }
func (*stop) Value(any) any               { return nil }

func (s *stop) Err() error {
	if s.Load() {
		return context.Canceled
	}
	return nil
}

// dial opens the file without changing anything in it.
func (s *Store) dial() (_ *conn, err error) {
	connector, err := new(driver.SQLite).OpenConnector(s.dsn())
	if err != nil {
		return nil, err
	}
	// Not through database/sql: its pool must never close this connection, or
	// open a second one that nobody has configured.
	dc, err := connector.Connect(context.Background())
	if err != nil {
		return nil, err
	}
	c := &conn{inner: dc.(lender), gate: &gate{}}
	c.raw = c.inner.Raw()
	defer func() {
		if err != nil {
			c.close()
		}
	}()
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
	if c.names, err = c.text(sqlNames); err != nil {
		return err
	}
	if err := c.watch(path); err != nil {
		return err
	}
	// The index of the log is made by the driver with default permissions.
	if fi, err := os.Stat(path); err == nil {
		if shm, err := os.Stat(path + "-shm"); err == nil && shm.Mode() != fi.Mode() {
			os.Chmod(path+"-shm", fi.Mode().Perm()) // its owner has to do it, others cannot
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
	if errors.Is(c.attached(), errGone) {
		// The last to close removes the log by its name, which may lead to that of
		// another ledger now.
		c.raw.FileControl("main", sqlite3.FCNTL_PERSIST_WAL, true)
	}
	errs = append(errs, c.inner.Close())
	return errors.Join(errs...)
}
