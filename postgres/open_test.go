//go:build unix

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"
)

func TestOpenRefusesWhatIsNotItsLedger(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	pool := newPool(t, url)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, opts *postgres.Options, words ...string) {
		t.Helper()
		s, err := postgres.Open(t.Context(), pool, opts)
		if s != nil || !errors.Is(err, mcpreplay.ErrIncompatible) {
			t.Errorf("%s: Open() = %v, want %v", what, err, mcpreplay.ErrIncompatible)
			return
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: Open() = %q, without %q", what, err, word)
			}
		}
	}
	const command = "mcpreplay migrate --ledger postgres:URL"
	refused("no schema", backend(nil), command)
	refused("no schema of that name", &postgres.Options{Backend: "issues", Schema: "Other one"}, command+" --schema Other one")
	exec("CREATE SCHEMA mcpreplay")
	refused("an empty schema", backend(nil), command)
	if err := postgres.Migrate(t.Context(), pool, backend(nil)); err != nil {
		t.Fatal(err)
	}
	refused("another backend", &postgres.Options{Backend: "orders"}, `"issues"`, `"orders"`)
	refused("other ids", &postgres.Options{Backend: "issues", IDs: postgres.IDsPrincipal}, "shared", "principal")
	if s, err := postgres.Open(t.Context(), pool, &postgres.Options{ReadOnly: true}); err != nil {
		t.Errorf("Open() to look = %v", err)
	} else if _, _, err := s.Begin(t.Context(), operation("op-look"), claim()); !errors.Is(err, mcpreplay.ErrUnavailable) {
		t.Errorf("Begin() of a ledger to look at = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
	exec("UPDATE mcpreplay.schema SET version = 99")
	refused("a newer schema", backend(nil), "newer")
	if err := postgres.Migrate(t.Context(), pool, backend(nil)); !errors.Is(err, mcpreplay.ErrIncompatible) {
		t.Errorf("Migrate() of a newer schema = %v, want %v", err, mcpreplay.ErrIncompatible)
	}
	exec("DELETE FROM mcpreplay.schema")
	refused("an older schema", backend(nil), command)
	exec("INSERT INTO mcpreplay.schema VALUES (1, 0); DELETE FROM mcpreplay.ledger")
	refused("no identity", backend(nil), "no identity")
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for word, o := range map[string]*postgres.Options{
		"Backend": nil, "Schema": {Backend: "b", Schema: "pg_x"}, "IDs": {Backend: "b", IDs: "x"},
		"StatementTimeout": {Backend: "b", StatementTimeout: -1}, "LockTimeout": {Backend: "b", LockTimeout: 1 << 62},
		"IdleTimeout": {Backend: "b", IdleTimeout: 1},
	} {
		if _, err := postgres.Migrations(o); err == nil || !strings.Contains(err.Error(), "Options."+word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestMigrationsAtOnceMakeOneLedger(t *testing.T) {
	t.Parallel()
	for range 3 {
		url := newDatabase(t)
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				pool := newPool(t, url)
				if err := postgres.Migrate(t.Context(), pool, backend(nil)); err != nil {
					t.Errorf("Migrate(): %v", err)
				}
			})
		}
		wg.Wait()
		openStore(t, url, nil)
	}
}

// What is printed is what is run: a ledger made by hand is one.
func TestMigrationsCanBeAppliedByHand(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	opts := &postgres.Options{Backend: `O'Neill \ "co"`, Schema: `Led"ger's`, IDs: postgres.IDsPrincipal}
	texts, err := postgres.Migrations(opts)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	for _, text := range texts {
		if strings.Contains(text, "{schema}") {
			t.Errorf("a migration has a name left open:\n%s", text)
		}
		if _, err := c.PgConn().Exec(t.Context(), "BEGIN;"+text+"COMMIT").ReadAll(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	s, err := postgres.Connect(t.Context(), url, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	info, err := s.Info(t.Context())
	if err != nil || info.Backend != opts.Backend || info.Incarnation != 1 || len(info.Instance) != 32 {
		t.Errorf("Info() = %+v, %v", info, err)
	}
	if _, started, err := s.Begin(t.Context(), operation("op-by-hand"), claim()); err != nil || !started {
		t.Errorf("Begin() = %v, %v", started, err)
	}
	verify(t, s)
}

// The role that serves needs less than the one that migrates, and less than a
// ledger can be falsified with.
func TestRoleNeedsFewGrants(t *testing.T) {
	t.Parallel()
	server := pgtest.Own(t)
	url := server.Database(t)
	setup(t, newPool(t, url), nil)
	text, err := os.ReadFile("../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, grants, found := strings.Cut(string(text), "<!-- grants -->\n```sql\n")
	grants, _, end := strings.Cut(grants, "```")
	if !found || !end {
		t.Fatal("docs/operating.md has no grants")
	}
	pool := newPool(t, url)
	for _, sql := range append(strings.Split(grants, ";"), "GRANT ALL ON ALL TABLES IN SCHEMA public TO app") {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	s := openPool(t, newPool(t, strings.Replace(url, "postgres@", "app@", 1)), nil)
	rec := apply(t, s, "op-granted")
	rec, err = s.Advance(t.Context(), mcpreplay.Change{Key: rec.Key, Revision: rec.Revision, Event: mcpreplay.Event{Kind: mcpreplay.EventAcknowledge, Actor: "alice"}})
	if err != nil {
		t.Fatal(err)
	}
	if swept, err := s.Sweep(t.Context(), mcpreplay.SweepPolicy{Acknowledged: true}); err != nil || swept.Dropped != 1 {
		t.Errorf("Sweep() = %+v, %v", swept, err)
	}
	claimed, _, err := s.Begin(t.Context(), operation("op-claimed"), claim())
	if err != nil {
		t.Fatal(err)
	}
	step := mcpreplay.Change{Key: claimed.Key, Revision: claimed.Revision, Event: mcpreplay.Event{Kind: mcpreplay.EventStep, Step: "s"}}
	if _, err := s.ApplyStep(t.Context(), step, func(ctx context.Context, tx *postgres.Tx, _ *mcpreplay.Change) error { return writeRow(ctx, tx, "s") }); err != nil {
		t.Error(err)
	}
	for _, sql := range []string{
		"DELETE FROM mcpreplay.events", "UPDATE mcpreplay.events SET kind = 'fence'", "DELETE FROM mcpreplay.operations",
		"DROP TABLE mcpreplay.results", "UPDATE mcpreplay.ledger SET backend = 'x'", "TRUNCATE mcpreplay.head",
	} {
		err := run(t, s, func(ctx context.Context, tx *postgres.Tx) error { _, err := tx.Exec(ctx, sql); return err })
		if pgCode(err) != "42501" {
			t.Errorf("%s in an effect = %v, want it denied", sql, err)
		}
	}
	verify(t, s)
}

// A name that the application has, too, does not stand in front of the ledger's.
func TestNamesOfTheApplicationDoNotMatter(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	setup(t, newPool(t, url), nil)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	// An application's pool, with settings of its own.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	for name, value := range map[string]string{
		"search_path": "public, pg_catalog", "default_transaction_isolation": "serializable",
		"timezone": "Asia/Kolkata", "bytea_output": "escape", "datestyle": "German", "synchronous_commit": "off", "client_min_messages": "error",
	} {
		config.ConnConfig.RuntimeParams[name] = value
	}
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		for _, table := range []string{"ledger", "head", "operations", "events", "results", "item"} {
			if _, err := c.Exec(ctx, "CREATE TEMP TABLE "+table+" (x int)"); err != nil && table != "item" {
				return err
			}
		}
		_, err := c.Exec(ctx, "SET default_transaction_read_only = on; DROP TABLE pg_temp.item")
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s := openPool(t, pool, nil)
	for i := range 3 {
		_, _, err := s.Apply(t.Context(), operation(fmt.Sprintf("op-names-%d", i)), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
			var setting string
			if err := tx.QueryRow(ctx, "SHOW synchronous_commit").Scan(&setting); err != nil || setting != "on" {
				t.Errorf("synchronous_commit is %q, %v", setting, err)
			}
			return mcpreplay.Outcome{}, writeRow(ctx, tx, "x")
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	verify(t, s)
	var left string
	if err := pool.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&left); err != nil || left != "off" {
		t.Errorf("after an effect the session's synchronous_commit is %q, %v: want it as the application has it", left, err)
	}
}

func TestServerThatIsNotDurableIsRefused(t *testing.T) {
	t.Parallel()
	server := pgtest.Own(t, "fsync=off")
	pool := newPool(t, server.Database(t))
	if err := postgres.Migrate(t.Context(), pool, backend(nil)); !errors.Is(err, mcpreplay.ErrIncompatible) || !strings.Contains(err.Error(), "fsync") {
		t.Errorf("Migrate() = %v, want %v for fsync", err, mcpreplay.ErrIncompatible)
	}
	if _, err := postgres.Open(t.Context(), pool, backend(nil)); !errors.Is(err, mcpreplay.ErrIncompatible) || !strings.Contains(err.Error(), "fsync") {
		t.Errorf("Open() = %v, want %v for fsync", err, mcpreplay.ErrIncompatible)
	}
}

func TestPasswordsAreNotTold(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t%zz"
	for _, url := range []string{
		"postgres://app:" + secret + "@127.0.0.1:1/x", "postgres://app:s3cr3t@127.0.0.1:1/x?sslmode=disable",
		"host=127.0.0.1 port=1 user=app password=s3cr3t dbname=x", "host=127.0.0.1 port=x password=s3cr3t", "postgres://app:s3cr3t@[::1/x",
	} {
		_, err := postgres.Connect(t.Context(), url, backend(nil))
		if err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("Connect() = %v, want an error without the password", err)
		}
	}
}

// TestTimeIsTheServers moves the time that the ledger came to, as a server with
// another clock would have left it.
func TestTimeIsTheServers(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, &postgres.Options{MaxClockJump: time.Hour})
	first := apply(t, s, "op-first")
	pool := newPool(t, url)
	ahead := func(by string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), "UPDATE mcpreplay.head SET at = at + $1::bigint", by); err != nil {
			t.Fatal(err)
		}
	}
	ahead("1800000000") // by another server's clock it was half an hour later
	want := first.CreatedAt.Add(30 * time.Minute)
	if rec := apply(t, s, "op-second"); !rec.CreatedAt.Equal(want) || !rec.Ledger.Time.Equal(want) {
		t.Errorf("created at %v, want %v: time does not run backwards", rec.CreatedAt, want)
	}
	if info, err := s.Info(t.Context()); err != nil || !info.Time.Equal(want) {
		t.Errorf("Info() = %+v, %v; want time %v", info, err, want)
	}
	op := operation("op-late")
	op.Authority = want
	if _, _, err := s.Apply(t.Context(), op, effect("late")); !errors.Is(err, mcpreplay.ErrExpired) {
		t.Errorf("Apply() = %v, want %v by the ledger's time", err, mcpreplay.ErrExpired)
	}

	other := newDatabase(t)
	s = openStore(t, other, &postgres.Options{MaxClockJump: time.Hour})
	apply(t, s, "op-first")
	pool = newPool(t, other)
	ahead("-7200000000") // the server's clock has jumped by two hours
	before, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Begin":          func() error { _, _, err := s.Begin(t.Context(), operation("op-jump"), claim()); return err }(),
		"Apply":          func() error { _, _, err := s.Apply(t.Context(), operation("op-jump"), effect("jump")); return err }(),
		"DeclareRestore": func() error { _, err := s.DeclareRestore(t.Context(), "alice", "test"); return err }(),
	} {
		if !errors.Is(err, mcpreplay.ErrClock) {
			t.Errorf("%s = %v, want %v", name, err, mcpreplay.ErrClock)
		}
	}
	if after, err := s.Info(t.Context()); err != nil || after.Position != before.Position || !after.Time.Equal(before.Time) {
		t.Errorf("Info() = %+v, %v; want it as it was", after, err)
	}
	apply(t, openPool(t, newPool(t, other), nil), "op-believed") // 366 days are more than two hours
}

// The right to write has to be there when the effect commits.
func TestAuthorityMayEndWhileAnEffectRuns(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	op := operation("op-slow")
	op.Authority = info.Time.Add(300 * time.Millisecond)
	_, started, err := s.Apply(t.Context(), op, func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(0.4)")
		return mcpreplay.Outcome{}, errors.Join(err, writeRow(ctx, tx, "slow"))
	})
	if started || !errors.Is(err, mcpreplay.ErrExpired) {
		t.Errorf("Apply() = started %v, %v; want %v", started, err, mcpreplay.ErrExpired)
	}
	if n := query[int](t, url, leftovers); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// TestNoTimeOfThisHost: what is recorded and what is compared with it is the
// server's. Where this process waits, its own clock says for how long.
func TestNoTimeOfThisHost(t *testing.T) {
	t.Parallel()
	waits := map[string][]string{"transact.go": {"again", "begin"}, "replica.go": {"mayClaim"}, "migrate.go": {"Migrate"}, "wire.go": {}}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range tree.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			ast.Inspect(decl, func(n ast.Node) bool {
				if sel, isSel := n.(*ast.SelectorExpr); isSel && (sel.Sel.Name == "Now" || sel.Sel.Name == "Since" || sel.Sel.Name == "Until") {
					if x, isIdent := sel.X.(*ast.Ident); isIdent && x.Name == "time" && !(ok && slices.Contains(waits[name], fn.Name.Name)) {
						t.Errorf("%s asks this host for the time", name)
					}
				}
				return true
			})
		}
	}
}

func TestRestoreIsDeclared(t *testing.T) {
	t.Parallel()
	s := verified(t, newDatabase(t), nil)
	before := apply(t, s, "op-before")
	if _, err := s.DeclareRestore(t.Context(), "", "x"); err == nil {
		t.Error("nobody can declare a restore")
	}
	info, err := s.DeclareRestore(t.Context(), "alice", "disk lost")
	if err != nil {
		t.Fatal(err)
	}
	if info.Incarnation != 2 || info.Position != before.Position+1<<32 || len(info.Restores) != 1 || info.Instance != before.Ledger.Instance {
		t.Errorf("DeclareRestore() = %+v", info)
	}
	if r := info.Restores[0]; r.Actor != "alice" || r.Reason != "disk lost" || r.After != before.Position || r.Until != info.Position || r.Incarnation != 2 {
		t.Errorf("the restore is %+v", r)
	}
	if rec := apply(t, s, "op-after"); rec.Position != info.Position+1 || rec.Ledger.Incarnation != 2 {
		t.Errorf("the next record is at %d of incarnation %d", rec.Position, rec.Ledger.Incarnation)
	}
}

// Another ledger in the place of the one that was opened is not taken for it.
func TestReplacedLedgerIsNoticed(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := openStore(t, url, nil)
	apply(t, s, "op-first")
	pool := newPool(t, url)
	if _, err := pool.Exec(t.Context(), "DROP SCHEMA mcpreplay CASCADE"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), key("op-first")); !errors.Is(err, mcpreplay.ErrIncompatible) {
		t.Errorf("Get() of what was dropped = %v, want %v", err, mcpreplay.ErrIncompatible)
	}
	setup(t, pool, nil)
	_, err1 := s.Get(t.Context(), key("op-first"))
	_, _, err2 := s.Apply(t.Context(), operation("op-first"), effect("x"))
	for _, err := range []error{err1, err2} {
		if !errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "another ledger") {
			t.Errorf("a call of another ledger = %v, want %v", err, mcpreplay.ErrUnavailable)
		}
	}
}

// What cannot be kept as a text is refused where it is an identity, and made
// readable where it only tells.
func TestTextsThatAreNone(t *testing.T) {
	t.Parallel()
	s := verified(t, newDatabase(t), nil)
	bad := "a\x00b\xff"
	for _, change := range []func(*mcpreplay.Operation){
		func(op *mcpreplay.Operation) { op.Principal = bad }, func(op *mcpreplay.Operation) { op.ID = bad },
		func(op *mcpreplay.Operation) { op.Tool = bad }, func(op *mcpreplay.Operation) { op.Version = bad },
	} {
		op := operation("op-text")
		change(&op)
		if _, started, err := s.Begin(t.Context(), op, claim()); started || err == nil {
			t.Errorf("Begin(%+v) = %v, %v; want an error", op, started, err)
		}
	}
	if _, err := s.Get(t.Context(), mcpreplay.Key{Principal: "alice", ID: bad}); !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrNotFound)
	}
	if recs, err := s.List(t.Context(), mcpreplay.Filter{Principal: bad}); err != nil || len(recs) != 0 {
		t.Errorf("List() = %v, %v", recs, err)
	}
	c := claim()
	c.Event.Evidence, c.Effect, c.Owner = bad, bad, bad
	rec, _, err := s.Begin(t.Context(), operation("op-text"), c)
	if err != nil || rec.Effect != "a\uFFFDb\uFFFD" {
		t.Fatalf("Begin() = effect %q, %v", rec.Effect, err)
	}
	if got, err := s.Get(t.Context(), rec.Key); err != nil || got.Effect != rec.Effect || got.Owner != rec.Owner {
		t.Errorf("Get() = %q of %q, %v; want what Begin said", got.Effect, got.Owner, err)
	}
}
