package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mcpreplay"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"
)

// For as long as MCPREPLAY_CHAOS says (make chaos), 12 clients call four hosts, each
// another host after every reply that is lost. Two of the hosts are behind a pgbouncer.
// One host after the other is killed, and the database once.
func TestChaos(t *testing.T) {
	long := 6 * time.Second
	if text := os.Getenv("MCPREPLAY_CHAOS"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	server := pgtest.Own(t, "max_connections=200")
	database := server.Database(t)
	migrate(t, database)
	name := database[strings.LastIndex(database, "/")+1:]
	name, _, _ = strings.Cut(name, "?")
	bouncer := server.Bouncer(t, name, "public").URL("public")
	b := &bank{done: map[string]int{}}
	api := httptest.NewServer(b)
	defer api.Close()
	f, keys := &fleet{t: t}, filepath.Join(t.TempDir(), "keys")
	for _, url := range []string{database, database, bouncer, bouncer} {
		f.env = append(f.env, []string{"CHAOS_DATABASE=" + url, "CHAOS_BANK=" + api.URL, "CHAOS_KEYS=" + keys})
	}
	f.start()

	h := &history{start: time.Now(), count: map[string]int{}}
	end := time.Now().Add(long)
	var next atomic.Int64
	var wg sync.WaitGroup
	for client := range 12 {
		wg.Go(func() {
			for time.Now().Before(end) {
				n := next.Add(1)
				tool := []string{"book", "charge"}[n%2]
				var twins sync.WaitGroup
				for twin := range 1 + rand.IntN(4)/3 { // some are sent twice at once
					twins.Go(func() { f.order(h, client+12*twin, tool, fmt.Sprintf("%s-%06d", tool, n), int(n)+twin) })
				}
				twins.Wait()
			}
		})
	}
	kills, restarted := 0, false
	for time.Now().Before(end) {
		time.Sleep(time.Duration(100+rand.IntN(900)) * time.Millisecond)
		if time.Until(end) < long/2 && !restarted {
			restarted = true
			server.Kill()
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
		}
		f.kill(kills % len(f.env))
		kills++
	}
	wg.Wait()
	h.check(t)
	judge(t, database, b, next.Load())
	t.Logf("in %v: %d operations, %d kills of hosts, 1 of the database", long, next.Load(), kills)
}

func migrate(t *testing.T, database string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Migrate(t.Context(), pool, &postgres.Options{Backend: "chaos"}); err != nil {
		t.Fatal(err)
	}
	// Without a key: what is booked twice is there twice.
	if _, err := pool.Exec(t.Context(), `CREATE TABLE bookings (operation_id text NOT NULL)`); err != nil {
		t.Fatal(err)
	}
}

// order sends the same call to one host after the other until it has an outcome, and
// asks for the status in between.
func (f *fleet) order(h *history, client int, tool, operation string, first int) {
	args := fmt.Sprintf(`{"operation_id":%q,"note":"of %s"}`, operation, operation)
	for try := range 3000 {
		host := f.host(first + try)
		called := time.Since(h.start)
		if try%3 == 2 {
			h.add(client, operation, called, status(host.send("get_operation_status", fmt.Sprintf(`{"operation_id":%q}`, operation))))
			continue
		}
		s := reply(host.send(tool, args))
		h.add(client, operation, called, s)
		if s.state.Final() {
			called := time.Since(h.start)
			h.add(client, operation, called, status(f.host(rand.IntN(len(f.env))).send("get_operation_status", fmt.Sprintf(`{"operation_id":%q}`, operation))))
			return
		}
		time.Sleep(time.Duration(50+rand.IntN(100)) * time.Millisecond)
	}
	f.t.Errorf("%s has no outcome", operation)
}

// judge holds the rows and the bank against each other, by a connection of its own.
func judge(t *testing.T, database string, b *bank, operations int64) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT o.operation_id, o.state, (SELECT count(*) FROM bookings b WHERE b.operation_id = o.operation_id) FROM mcpreplay.operations o`)
	if err != nil {
		t.Fatal(err)
	}
	var all int64
	count := map[string]int{}
	for rows.Next() {
		var id, state string
		var booked int
		if err := rows.Scan(&id, &state, &booked); err != nil {
			t.Fatal(err)
		}
		tool, _, _ := strings.Cut(id, "-")
		effects := booked + b.count(id)
		want := map[string]int{"applied": 1, "not_applied": 0}
		if n, final := want[state]; !final || effects != n {
			t.Errorf("%s is %s, and was done %d times", id, state, effects)
		}
		all++
		count[tool+" "+state]++
	}
	if err := rows.Err(); err != nil || all != operations {
		t.Errorf("%d operations in the ledger (%v), want %d", all, err, operations)
	}
	t.Logf("in the ledger: %v", count)
	store, err := postgres.Connect(t.Context(), database, &postgres.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	report, err := mcpreplay.Verify(t.Context(), store)
	if err != nil || !report.Consistent() {
		t.Errorf("verify: %v, %v", report.Findings, err)
	}
}
