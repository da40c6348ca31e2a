//go:build unix

package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
	"mcpreplay/postgres"
)

func benchStore(b *testing.B, conns int32) *postgres.Store {
	b.Helper()
	url := newDatabase(b)
	setup(b, newPool(b, url), nil)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return openPool(b, pool, nil)
}

var benchID atomic.Int64

// many runs do b.N times by a number of callers.
func many(b *testing.B, callers int, do func(id string) error) {
	b.Helper()
	var wg sync.WaitGroup
	var next atomic.Int64
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := do(fmt.Sprintf("op-bench-%d", benchID.Add(1))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkApply(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s := benchStore(b, 16)
			many(b, callers, func(id string) error {
				_, _, err := s.Apply(context.Background(), operation(id), effect(id))
				return err
			})
		})
	}
}

// BenchmarkApplySlowly shows that effects run beside each other.
func BenchmarkApplySlowly(b *testing.B) {
	s := benchStore(b, 16)
	many(b, 64, func(id string) error {
		_, _, err := s.Apply(context.Background(), operation(id), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
			time.Sleep(5 * time.Millisecond)
			return mcpreplay.Outcome{}, writeRow(ctx, tx, id)
		})
		return err
	})
}

func BenchmarkBegin(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s := benchStore(b, 16)
			many(b, callers, func(id string) error {
				_, _, err := s.Begin(context.Background(), operation(id), claim())
				return err
			})
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s := benchStore(b, 16)
	if _, _, err := s.Apply(b.Context(), operation("op-get"), effect("get")); err != nil {
		b.Fatal(err)
	}
	many(b, 8, func(string) error {
		_, err := s.Get(context.Background(), key("op-get"))
		return err
	})
}

// BenchmarkBare is the application's own transaction without a ledger.
func BenchmarkBare(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			url := newDatabase(b)
			setup(b, newPool(b, url), nil)
			config, err := pgxpool.ParseConfig(url)
			if err != nil {
				b.Fatal(err)
			}
			config.MaxConns = 16
			pool, err := pgxpool.NewWithConfig(b.Context(), config)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(pool.Close)
			many(b, callers, func(id string) error {
				_, err := pool.Exec(context.Background(), "INSERT INTO item (label) VALUES ($1)", id)
				return err
			})
		})
	}
}
