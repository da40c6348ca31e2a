//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
	"mcpreplay/faults"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"
	"mcpreplay/storetest"
)

// database is the name of a database in where it is.
func database(t testing.TB, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

// TestPooler: between a pooler's transactions the connection is another one, and it
// is somebody else's.
func TestPooler(t *testing.T) {
	direct := newDatabase(t)
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("pooled_%d", i))
	}
	bouncer := pgtest.Shared(t).Bouncer(t, database(t, direct), names...)
	var next atomic.Int64
	// The pooler ends after the parallel parts.
	t.Run("transaction", func(t *testing.T) {
		open := func(t *testing.T) mcpreplay.Applier[*postgres.Tx] {
			name := names[next.Add(1)-1]
			if _, err := newPool(t, direct).Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
				t.Fatal(err)
			}
			opts := &postgres.Options{Schema: "ledger of " + name}
			setup(t, newPool(t, direct+"&search_path="+name), opts)
			return openPool(t, newPool(t, bouncer.URL(name)), opts)
		}
		storetest.Run(t, func(t *testing.T) mcpreplay.Store { return open(t) })
		storetest.RunApplier(t, open, kit)
	})
}

// TestPoolOfTheApplication: its settings have no part in how the ledger's statements
// are sent.
func TestPoolOfTheApplication(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			at := newDatabase(t)
			setup(t, newPool(t, at), nil)
			config, err := pgxpool.ParseConfig(at)
			if err != nil {
				t.Fatal(err)
			}
			config.ConnConfig.DefaultQueryExecMode = mode
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			s := openPool(t, pool, nil)
			for range 2 {
				if _, _, err := s.Apply(t.Context(), operation("op-mode"), effect("mode")); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			var left int // the store leaves the pool to its owner, and nothing in it
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE statement NOT LIKE '%pg_prepared_statements%'").Scan(&left); err != nil || left != 0 {
				t.Errorf("%d prepared statements are left, %v", left, err)
			}
		})
	}
}

// TestWithFaults runs the contract through what injects faults, where the fault's
// exit does not happen.
func TestWithFaults(t *testing.T) {
	fault, err := faults.Parse("exit-after-issue-insert")
	if err != nil {
		t.Fatal(err)
	}
	url := newDatabase(t)
	open := func(t *testing.T) mcpreplay.Applier[*postgres.Tx] {
		s := openBeside(t, url)
		return faults.Wrap[*postgres.Tx](s, fault, faults.Hooks{Exit: func(int) {}})
	}
	storetest.Run(t, func(t *testing.T) mcpreplay.Store { return open(t) })
	storetest.RunApplier(t, open, kit)
}

// Each principal may use an id that another one has used.
func TestIDsOfEachPrincipal(t *testing.T) {
	t.Parallel()
	s := verified(t, newDatabase(t), &postgres.Options{IDs: postgres.IDsPrincipal})
	for _, principal := range []string{"alice", "bob"} {
		op := operation("op-same")
		op.Principal = principal
		rec, started, err := s.Apply(context.Background(), op, effect(principal))
		if err != nil || !started || rec.ID != "op-same" {
			t.Fatalf("Apply() of %s = %q, started %v, %v", principal, rec.ID, started, err)
		}
		if got, err := s.Get(context.Background(), op.Key); err != nil || got.ID != "op-same" || got.Seq != rec.Seq {
			t.Errorf("Get() of %s = %+v, %v", principal, got, err)
		}
		if evs, err := s.Events(context.Background(), op.Key); err != nil || len(evs) != 1 {
			t.Errorf("Events() of %s = %v, %v", principal, evs, err)
		}
	}
	recs, err := s.List(context.Background(), mcpreplay.Filter{ID: "op-same"})
	if err != nil || len(recs) != 2 || recs[0].Principal != "bob" {
		t.Errorf("List() = %d records, %v; want both", len(recs), err)
	}
}
