package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkCall compares a guarded call with the same tool unguarded, which makes
// the same insert as durably (WAL, synchronous=FULL, its own connection). Both
// run in turn in one run, through the SDK's client in memory, and what counts is
// the ratio. "replay" is a repeat of a guarded call.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { compareCalls(b, callers) })
	}
}

func compareCalls(b *testing.B, callers int) {
	f := newFixture(b)
	server := newServer()
	g := f.guard(f.store, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	guarded := connect(b, server, nil)
	plain := connect(b, unguardedServer(b), nil)

	var ids int
	turns := []struct {
		name string
		call func(n int) error
		took []time.Duration
	}{
		{name: "unguarded", call: func(n int) error {
			return worked(call(plain, "pay", `{"amount":1}`, nil))
		}},
		{name: "guarded", call: func(n int) error {
			return worked(call(guarded, "pay", fmt.Sprintf(`{"operation_id":"op-%03d","amount":1}`, n), nil))
		}},
		{name: "replay", call: func(int) error {
			return worked(call(guarded, "pay", `{"operation_id":"op-001","amount":1}`, nil))
		}},
	}
	const each = 20 // calls of every caller in one turn
	for b.Loop() {
		for i := range turns {
			var wg sync.WaitGroup
			first := ids
			ids += callers * each
			start := time.Now()
			for c := range callers {
				wg.Go(func() {
					for n := range each {
						if err := turns[i].call(first + c*each + n + 1); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			turns[i].took = append(turns[i].took, time.Since(start)/time.Duration(callers*each))
		}
	}
	// The ratio of each turn to the unguarded one beside it, and its median.
	for _, t := range turns[1:] {
		ratios := make([]float64, len(t.took))
		for i := range t.took {
			ratios[i] = float64(t.took[i]) / float64(turns[0].took[i])
		}
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], t.name+"/unguarded")
	}
	slices.Sort(turns[0].took)
	b.ReportMetric(float64(turns[0].took[len(turns[0].took)/2].Microseconds()), "µs/unguarded-call")
	b.ReportMetric(0, "ns/op") // of three turns together: means nothing
}

func worked(res *mcp.CallToolResult, err error) error {
	if err == nil && res.IsError {
		err = errors.New(text(res))
	}
	return err
}

// unguardedServer has the tool without the guard.
func unguardedServer(b *testing.B) *mcp.Server {
	b.Helper()
	u := url.URL{Scheme: "file", OmitHost: true, Path: filepath.Join(b.TempDir(), "plain.db")}
	db, err := sql.Open("sqlite3", u.String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	db.SetMaxOpenConns(1)
	var level int
	if _, err := db.Exec(`PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL`); err != nil {
		b.Fatal(err)
	}
	if err := db.QueryRow(`PRAGMA synchronous`).Scan(&level); err != nil || level != 2 {
		b.Fatalf("synchronous is %d, not FULL: the comparison would be with less than a durable insert (%v)", level, err)
	}
	if _, err := db.Exec(`CREATE TABLE payments (id INTEGER PRIMARY KEY, operation_id TEXT, amount TEXT) STRICT`); err != nil {
		b.Fatal(err)
	}
	server := newServer()
	mcp.AddTool(server, payTool(), func(ctx context.Context, _ *mcp.CallToolRequest, in payment) (*mcp.CallToolResult, receipt, error) {
		_, err := db.ExecContext(context.WithoutCancel(ctx), `INSERT INTO payments (operation_id, amount) VALUES (?, ?)`, "op", in.Amount.String())
		return nil, receipt{Operation: "op", Paid: in.Amount.String()}, err
	})
	return server
}
