package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
)

// Restoring says how a backup is put in the place of a ledger.
type Restoring struct {
	Actor  string // who declares the restore; required
	Reason string // why; required

	// Replace moves a ledger that is there aside. It is not deleted.
	Replace bool

	// After is the latest incarnation that a client may have seen; the ledger
	// becomes a later one. Of a ledger that is replaced, and can be read, it is
	// known. It matters where one backup is restored twice: the second time would
	// else be the same incarnation as the first.
	After int64

	Clock        func() time.Time // as in Options
	MaxClockJump time.Duration    // as in Options
}

// Restored is what a restore put into place.
type Restored struct {
	Ledger   mcpreplay.Info
	Report   mcpreplay.Report // of the ledger in its place, without findings other than contradictions
	Replaced string           // where the ledger that was there is now; "" if there was none
}

// ErrInUse means that a ledger cannot be replaced, because a process has it open.
var ErrInUse = errors.New("another process has the ledger open")

// ErrNotSound means that a backup is no consistent ledger, and was not restored.
var ErrNotSound = errors.New("the backup is not sound")

// Restore puts a copy of the file backup in the place of the ledger at path, and
// declares that: see Store.DeclareRestore. The copy is declared and proved
// consistent under another name first, so at any moment, and after a crash at any
// moment, path holds what was there before or the declared ledger. The backup
// itself is only read.
//
// A ledger that is there stays, unless o.Replace; then it keeps all its names but
// the one, and must not be open in any process. That a late outcome once
// contradicted a record is no fault of a backup.
func Restore(ctx context.Context, backup, path string, o Restoring) (Restored, error) {
	return restore(ctx, backup, path, o, func(string) error { return nil })
}

// restore calls at wherever a crash would leave something else behind.
func restore(ctx context.Context, backup, path string, o Restoring, at func(point string) error) (r Restored, err error) {
	if path, err = resolve(path); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	there, err := place(backup, path, o.Replace)
	if err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	var old *sqlite3.Conn
	if there != nil { // held until the new one is in its place
		if old, err = seize(path); err != nil {
			return r, fmt.Errorf("restore: %s: %w", path, err)
		}
		defer old.Close()
	}
	draft, err := copyFile(ctx, backup, path)
	crashed := false
	defer func() {
		if draft != "" && !crashed {
			removeAll(draft)
		}
	}()
	point := func(name string) error {
		err := at(name)
		crashed = crashed || err != nil
		return err
	}
	if err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if err := point("copied"); err != nil {
		return r, err
	}
	before, latest, _ := identity(old) // nothing, if it is no ledger any more
	if after, _, err := identityOf(draft); err != nil {
		return r, fmt.Errorf("restore: %s: %w", backup, err)
	} else if before != "" && before != after {
		return r, fmt.Errorf("restore: %s is the ledger of backend %q, and the backup one of %q", path, before, after)
	}
	o.After = max(o.After, latest)
	if r.Ledger, r.Report, err = declare(ctx, draft, o); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if there != nil {
		if err := os.Chmod(draft, there.Mode().Perm()); err != nil {
			return r, fmt.Errorf("restore: %w", err)
		}
	}
	if _, err := syncFile(draft); err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	if err := point("declared"); err != nil {
		return r, err
	}
	if there == nil {
		err = publish(draft, path)
	} else {
		r.Replaced, err = swap(old, draft, path, point)
	}
	if err != nil {
		return r, fmt.Errorf("restore: %w", err)
	}
	return r, point("placed")
}

// place checks that backup can be put at path. It returns what is there.
func place(backup, path string, replace bool) (fs.FileInfo, error) {
	fi, err := os.Stat(backup)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", backup)
	}
	if log, err := os.Stat(backup + "-wal"); err == nil && log.Size() > 0 {
		return nil, fmt.Errorf("%s has a log (-wal) beside it, so it is no backup but a ledger itself", backup)
	}
	there, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, vacant(path)
	case err != nil:
		return nil, err
	case os.SameFile(fi, there):
		return nil, fmt.Errorf("%s is the ledger itself", backup)
	case !there.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", path)
	case !replace:
		return nil, fmt.Errorf("%s: %w", path, fs.ErrExist)
	}
	return there, nil
}

// seize takes a ledger for itself: whoever opens it from now on waits. What is so
// damaged that it cannot be opened needs no holding; then the connection is nil.
func seize(path string) (*sqlite3.Conn, error) {
	c, err := sqlite3.OpenFlags((&Store{path: path, mode: "rw"}).dsn(), sqlite3.OPEN_READWRITE|sqlite3.OPEN_URI)
	if err != nil {
		return nil, nil
	}
	// When it is closed there is another ledger at path: its log is not ours.
	_, err = c.FileControl("main", sqlite3.FCNTL_PERSIST_WAL, true)
	if err == nil {
		_, err = c.Config(sqlite3.DBCONFIG_NO_CKPT_ON_CLOSE, true)
	}
	if err == nil {
		err = c.Exec("PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT")
	}
	if err == nil {
		return c, nil
	}
	c.Close()
	if busy(err) {
		return nil, ErrInUse
	}
	return nil, nil
}

// copyFile copies a backup to a draft beside path.
func copyFile(ctx context.Context, backup, path string) (draft string, err error) {
	from, err := os.Open(backup)
	if err != nil {
		return "", err
	}
	defer from.Close()
	if draft, err = newDraft(path, "restoring"); err != nil {
		return draft, err
	}
	to, err := os.OpenFile(draft, os.O_WRONLY, 0)
	if err != nil {
		return draft, err
	}
	_, err = io.Copy(to, readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return from.Read(p)
	}))
	return draft, errors.Join(err, to.Close())
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// identity reads which ledger it is; "" if it is none, or c is nil.
func identity(c *sqlite3.Conn) (backend string, incarnation int64, err error) {
	if c == nil {
		return "", 0, nil
	}
	st, _, err := c.Prepare("SELECT backend, incarnation FROM main.mcpreplay_ledger")
	if err != nil {
		return "", 0, err
	}
	defer st.Close()
	err = (&stmt{st}).run(func(st *sqlite3.Stmt) { backend, incarnation = st.ColumnText(0), st.ColumnInt64(1) })
	return backend, incarnation, err
}

func identityOf(path string) (backend string, incarnation int64, err error) {
	c, err := sqlite3.OpenFlags((&Store{path: path, mode: "rw"}).dsn(), sqlite3.OPEN_READWRITE|sqlite3.OPEN_URI)
	if err == nil {
		defer c.Close()
		backend, incarnation, err = identity(c)
	}
	if err != nil || backend == "" {
		err = fmt.Errorf("%w: it holds no ledger", errors.Join(ErrNotSound, err))
	}
	return backend, incarnation, err
}

// declare makes the draft the next incarnation, and proves it consistent. It is
// closed when declare returns.
func declare(ctx context.Context, draft string, o Restoring) (info mcpreplay.Info, report mcpreplay.Report, err error) {
	backend, _, err := identityOf(draft)
	if err != nil {
		return info, report, err
	}
	s, err := Open(draft, &Options{Backend: backend, Clock: o.Clock, MaxClockJump: o.MaxClockJump})
	if err != nil {
		return info, report, fmt.Errorf("%w: %w", ErrNotSound, err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.sound(ctx); err != nil {
		return info, report, fmt.Errorf("%w: %w", ErrNotSound, err)
	}
	for first := true; first || info.Incarnation <= o.After; first = false {
		if info, err = s.DeclareRestore(ctx, o.Actor, o.Reason); err != nil {
			return info, report, err
		}
	}
	if report, err = mcpreplay.Verify(ctx, s); err != nil {
		return info, report, fmt.Errorf("verify: %w", err)
	}
	for _, f := range report.Findings {
		if f.Rule != mcpreplay.RuleContradiction {
			return info, report, fmt.Errorf("%w: %s, and %d more findings", ErrNotSound, f, len(report.Findings)-1)
		}
	}
	return info, report, nil
}

// sound reports whether the file is whole, the application's tables included.
func (s *Store) sound(ctx context.Context) error {
	return s.read(ctx, func(c *conn, _ mcpreplay.Info) error {
		found, err := c.text("PRAGMA quick_check(1)")
		if err == nil && found != "ok" {
			err = fmt.Errorf("%s: %w", strings.TrimSpace(found), sqlite3.CORRUPT)
		}
		return err
	})
}

// swap moves the ledger at path aside and the draft into its place. Until the last
// step path is the old one: under two names, by which no store opens it. Its log
// is emptied into it first, so that it is whole without.
func swap(old *sqlite3.Conn, draft, path string, point func(string) error) (aside string, err error) {
	if old != nil {
		old.WALCheckpoint("main", sqlite3.CHECKPOINT_TRUNCATE) // if that fails, the log still goes with it
	}
	name := path + ".replaced-" + time.Now().UTC().Format("20060102T150405Z")
	for n := 1; ; n++ {
		aside = name
		if n > 1 {
			aside = fmt.Sprintf("%s-%d", name, n)
		}
		if vacant(aside) != nil && n < 100 {
			continue
		}
		if err = os.Link(path, aside); err == nil || n == 100 || !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return "", err
	}
	if err := point("linked"); err != nil {
		return aside, err
	}
	for _, side := range sides {
		if err := os.Rename(path+side, aside+side); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return aside, err
		}
	}
	if err := syncDir(path); err != nil {
		return aside, err
	}
	if err := point("log aside"); err != nil {
		return aside, err
	}
	if err := os.Rename(draft, path); err != nil {
		return aside, err
	}
	return aside, syncDir(path)
}
