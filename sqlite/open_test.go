package sqlite_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ncruces/go-sqlite3"

	"mcpreplay"
	"mcpreplay/sqlite"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestEveryConnectionIsDurable(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	for _, tt := range []struct{ name, writer, reader string }{
		{"journal_mode", "wal", "wal"},
		{"synchronous", "2", "2"},
		{"busy_timeout", "5000", "5000"},
		{"foreign_keys", "1", "1"},
		{"fullfsync", "1", "1"},
		{"checkpoint_fullfsync", "1", "1"},
		{"query_only", "0", "1"},
	} {
		got, err := s.Settings(tt.name)
		want := []string{tt.writer, tt.reader, tt.reader, tt.reader, tt.reader}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s = %v, %v; want %v", tt.name, got, err, want)
		}
	}
}

func TestSchemaIsGolden(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s, err := sqlite.Open(path, &sqlite.Options{Backend: "issues"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := query[string](t, path, `SELECT group_concat(sql || ';', char(10)) || char(10)
FROM (SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY name)`)
	const golden = "testdata/schema.sql"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("schema (-want +got), run with -update if it is meant:\n%s", diff)
	}
	if got := query[int](t, path, "SELECT max(version) FROM mcpreplay_schema"); got != len(sqlite.Migrations) {
		t.Errorf("schema version %d, want %d", got, len(sqlite.Migrations))
	}
}

func TestFilesAreTheOwnersOnly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "it's a led%20ger?mode=ro&x=#1;.db")
	s := verified(t, path, nil)
	apply(t, s, "op-private")
	for _, side := range []string{"", "-wal", "-shm"} {
		fi, err := os.Stat(path + side)
		if err != nil {
			t.Fatal(err)
		}
		if got := fi.Mode().Perm(); got != 0o600 {
			t.Errorf("ledger%s has mode %v, want 0600", side, got)
		}
	}
	names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(names) != 3 {
		t.Errorf("the directory holds %v, %v; want the ledger, its log and index", names, err)
	}
}

func TestExistingDatabaseKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	if err := os.WriteFile(path, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	meddle(t, path, "CREATE TABLE mine (x); INSERT INTO mine VALUES (7); PRAGMA user_version = 41; PRAGMA application_id = 42")
	s := verified(t, path, nil)
	apply(t, s, "op-beside")
	for q, want := range map[string]int{"SELECT x FROM mine": 7, "PRAGMA user_version": 41, "PRAGMA application_id": 42} {
		if got := query[int](t, path, q); got != want {
			t.Errorf("%s = %d, want %d", q, got, want)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("the file has mode %v, %v; want 0640 as before", fi.Mode().Perm(), err)
	}
}

func TestReopenKeepsIdentityAndRecords(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStore(t, path, nil)
	rec := apply(t, s, "op-stays")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := verified(t, path, nil)
	got, err := again.Get(t.Context(), rec.Key)
	if err != nil {
		t.Fatal(err)
	}
	if got.Ledger.Instance != rec.Ledger.Instance || got.Ledger.Position != rec.Ledger.Position || got.Ledger.Backend != "issues" {
		t.Errorf("the ledger is now %+v, was %+v", got.Ledger, rec.Ledger)
	}
	if other := verified(t, newPath(t), nil); true {
		if info, err := other.Info(t.Context()); err != nil || info.Instance == rec.Ledger.Instance {
			t.Errorf("another ledger is the same instance %s, %v", info.Instance, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("no database\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	existing := func(name, change string) string {
		path := filepath.Join(dir, name)
		s := openStore(t, path, nil)
		apply(t, s, "op-there")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if change != "" {
			meddle(t, path, change)
		}
		return path
	}
	plain := filepath.Join(dir, "plain.db")
	meddle2 := func(path, q string) string {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		meddle(t, path, q)
		return path
	}
	for _, tt := range []struct {
		name, path string
		opts       sqlite.Options
		is         []error
		says       []string
	}{
		{
			name: "the ledger of another backend", path: existing("other.db", ""), opts: sqlite.Options{Backend: "orders"},
			is: []error{mcpreplay.ErrIncompatible}, says: []string{"other.db", `"issues"`, `"orders"`, "configure"},
		},
		{
			name: "a newer schema", path: existing("newer.db", "INSERT INTO mcpreplay_schema VALUES (99, 0)"),
			is: []error{mcpreplay.ErrIncompatible}, says: []string{"newer.db", "99", "use a newer version"},
		},
		{
			name: "a newer schema, read only", path: existing("newer2.db", "INSERT INTO mcpreplay_schema VALUES (99, 0)"), opts: sqlite.Options{ReadOnly: true},
			is: []error{mcpreplay.ErrIncompatible}, says: []string{"newer2.db", "99"},
		},
		{
			name: "a ledger without identity", path: existing("lost.db", "DELETE FROM mcpreplay_ledger"),
			is: []error{mcpreplay.ErrIncompatible}, says: []string{"lost.db", "identity", "backup"},
		},
		{
			name: "no database", path: garbage,
			is: []error{mcpreplay.ErrIncompatible, sqlite3.NOTADB}, says: []string{"garbage.db", "not an SQLite database"},
		},
		{
			name: "no database, read only", path: garbage, opts: sqlite.Options{ReadOnly: true},
			is: []error{mcpreplay.ErrIncompatible, sqlite3.NOTADB}, says: []string{"garbage.db"},
		},
		{
			name: "a directory", path: dir,
			is: []error{mcpreplay.ErrUnavailable}, says: []string{dir, "not a directory"},
		},
		{
			name: "a directory, read only", path: dir, opts: sqlite.Options{ReadOnly: true},
			is: []error{mcpreplay.ErrUnavailable}, says: []string{dir},
		},
		{
			name: "a missing directory", path: filepath.Join(dir, "no", "such", "ledger.db"),
			is: []error{mcpreplay.ErrUnavailable, fs.ErrNotExist}, says: []string{"such/ledger.db", "create its directory"},
		},
		{
			name: "a file for a directory", path: filepath.Join(garbage, "ledger.db"),
			is: []error{mcpreplay.ErrUnavailable}, says: []string{"garbage.db/ledger.db"},
		},
		{
			name: "a missing file, read only", path: filepath.Join(dir, "absent.db"), opts: sqlite.Options{ReadOnly: true},
			is: []error{mcpreplay.ErrUnavailable}, says: []string{"absent.db"},
		},
		{
			name: "a database without a ledger, read only", path: meddle2(plain, "CREATE TABLE x (y)"), opts: sqlite.Options{ReadOnly: true},
			is: []error{mcpreplay.ErrIncompatible}, says: []string{"plain.db", "schema version 0", "open it once for writing"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.opts.Backend == "" {
				tt.opts.Backend = "issues"
			}
			before, _ := os.ReadFile(tt.path)
			s, err := sqlite.Open(tt.path, &tt.opts)
			if err == nil {
				s.Close()
				t.Fatal("Open() = nil, want an error")
			}
			for _, want := range tt.is {
				if !errors.Is(err, want) {
					t.Errorf("Open() = %v, want %v", err, want)
				}
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Open() says %q, want it to say %q", err, want)
				}
			}
			if after, _ := os.ReadFile(tt.path); !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "absent.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file was created: %v", err)
	}
}

func TestOptionsAreValidatedTogether(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", ":memory:", "a\x00b"} {
		_, err := sqlite.Open(path, nil)
		if err == nil || !strings.Contains(err.Error(), "sqlite: path: ") || !strings.Contains(err.Error(), "sqlite: Options.Backend: ") {
			t.Errorf("Open(%q, nil) = %v, want both faults", path, err)
		}
	}
	for _, backend := range []string{"a\nb", strings.Repeat("x", 201)} {
		if _, err := sqlite.Open(newPath(t), &sqlite.Options{Backend: backend}); err == nil {
			t.Errorf("backend %.10q was accepted", backend)
		}
	}
}

func TestReadOnlyChangesNothing(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStore(t, path, nil)
	rec := apply(t, s, "op-read")

	look := func(s *sqlite.Store) {
		t.Helper()
		got, err := s.Get(t.Context(), rec.Key)
		if err != nil || got.State != mcpreplay.StateApplied {
			t.Errorf("Get() = %s, %v; want applied", got.State, err)
		}
		verify(t, s)
		_, _, err = s.Begin(t.Context(), operation("op-write"), claim())
		if !errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("Begin() = %v, want %v", err, mcpreplay.ErrUnavailable)
		}
	}
	live := openStore(t, path, &sqlite.Options{ReadOnly: true})
	look(live)
	later := apply(t, s, "op-later")
	if _, err := live.Get(t.Context(), later.Key); err != nil {
		t.Errorf("Get() of what was written since = %v", err)
	}
	for _, store := range []*sqlite.Store{live, s} {
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}

	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	quiet := openStore(t, path, &sqlite.Options{ReadOnly: true})
	look(quiet)
	if err := quiet.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("reading changed the file (%v)", err)
	}
	if names, _ := filepath.Glob(path + "*"); len(names) != 1 {
		t.Errorf("reading left %v", names)
	}
}

func TestOpenWhileAnotherWrites(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	apply(t, openStore(t, path, nil), "op-there")
	unlock := lock(t, path)
	s, err := sqlite.Open(path, &sqlite.Options{Backend: "issues"})
	if err != nil {
		t.Fatalf("Open() while the file is locked: %v", err)
	}
	defer s.Close()
	if _, err := s.Get(t.Context(), key("op-there")); err != nil {
		t.Errorf("Get() while the file is locked: %v", err)
	}
	unlock()
	apply(t, s, "op-next")
}

// lock takes the write lock as another process would, until unlock is called.
func lock(t *testing.T, path string) (unlock func()) {
	t.Helper()
	db, err := sqlite.OpenRaw(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	do := func(q string) {
		t.Helper()
		if _, err := c.ExecContext(context.Background(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	do("BEGIN IMMEDIATE")
	var once bool
	unlock = func() {
		if !once {
			once = true
			do("ROLLBACK")
			closeAll(c, db)
		}
	}
	t.Cleanup(unlock)
	return unlock
}

func closeAll(c *sql.Conn, db *sql.DB) {
	c.Close()
	db.Close()
}

func TestSetupIsOneTransaction(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	cause := errors.New("no")
	err := s.Setup(t.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
		if _, err := tx.ExecContext(ctx, "CREATE TABLE half (x)"); err != nil {
			return err
		}
		return cause
	})
	if !errors.Is(err, cause) {
		t.Errorf("Setup() = %v, want %v", err, cause)
	}
	if n := query[int](t, path, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'"); n != 0 {
		t.Error("half of a setup was committed")
	}
	setup(t, s) // again is fine
}
