package sqlite_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"mcpreplay/sqlite"
)

// BenchmarkApply is an effect of one row with its record, result and event.
// BenchmarkPlainInsert is the same row without a ledger: what the guarantee costs
// is the difference.
func BenchmarkApply(b *testing.B) {
	s := openStore(b, newPath(b), nil)
	ctx := context.Background()
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("op-%09d", i)
		if _, _, err := s.Apply(ctx, operation(id), effect(id)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkShared is the same by several callers at once, with a commit for each
// operation and with one for many.
func BenchmarkShared(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 256} {
		for _, batch := range []int{1, 256} {
			b.Run(fmt.Sprintf("callers=%d/batch=%d", callers, batch), func(b *testing.B) {
				s := openStore(b, newPath(b), &sqlite.Options{Batch: batch})
				var n atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				for range callers {
					wg.Go(func() {
						for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
							id := fmt.Sprintf("op-%09d", i)
							if _, _, err := s.Apply(context.Background(), operation(id), effect(id)); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
			})
		}
	}
}

func BenchmarkPlainInsert(b *testing.B) {
	path := newPath(b)
	openStore(b, path, nil).Close()
	db, err := sqlite.OpenRaw(path)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("PRAGMA synchronous=FULL"); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := db.Exec("INSERT INTO item (label) VALUES (?)", fmt.Sprintf("op-%09d", i)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	s := openStore(b, newPath(b), nil)
	rec := apply(b, s, "op-known")
	ctx := context.Background()
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Get(ctx, rec.Key); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("apply", func(b *testing.B) {
		for b.Loop() {
			if _, started, err := s.Apply(ctx, operation("op-known"), effect("op-known")); err != nil || started {
				b.Fatal(started, err)
			}
		}
	})
}
