package lab_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

var crashRounds = flag.Int("crash-rounds", 200, "rounds of TestKilledServersLoseNothing")

// Two servers on one file are killed at random moments while eight clients call
// them, again and again. What was acknowledged is in the file, nothing is there
// twice, and what was left unknown is settled by an exact repeat.
func TestKilledServersLoseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.sqlite3")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const clients = 8
	open := make([][]*operation, clients) // of each client: not acknowledged yet
	var all []*operation
	kills, acked, repeated := 0, 0, 0
	rounds := *crashRounds
	if testing.Short() { // the servers are built as always: more rounds show no more races
		rounds = min(rounds, 20)
	}
	for round := range rounds {
		servers := []*server{startServer(t, path), startServer(t, path)}
		var wg sync.WaitGroup
		var mu sync.Mutex
		for c := range clients {
			wg.Go(func() {
				s := servers[c%len(servers)]
				for n := 0; ; n++ {
					mu.Lock()
					var o *operation
					if len(open[c]) > 0 {
						o = open[c][0]
						repeated++
					} else {
						o = &operation{id: fmt.Sprintf("op-%d-%d-%d", round, c, n)}
						open[c], all = append(open[c], o), append(all, o)
					}
					mu.Unlock()
					err := o.attempt(s)
					if errors.Is(err, errGone) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					open[c], acked = open[c][1:], acked+1
					mu.Unlock()
				}
			})
		}
		// The moment of death is the variable of this test, so it is drawn.
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		for _, i := range random.Perm(len(servers)) {
			servers[i].kill()
			kills++
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	db := openRaw(t, path)
	for _, o := range all {
		issues := queryInt(t, db, `SELECT count(*) FROM issues WHERE operation_id = ?`, o.id)
		records := queryInt(t, db, `SELECT count(*) FROM mcpreplay_operations WHERE operation_id = ? AND state = 'applied'`, o.id)
		if issues != records || issues > 1 || (o.acked && issues != 1) {
			t.Errorf("%s: acknowledged %v, %d effects, %d records", o.id, o.acked, issues, records)
		}
	}
	if n := queryInt(t, db, `SELECT count(*) FROM mcpreplay_operations WHERE state <> 'applied'`); n != 0 {
		t.Errorf("%d records are not applied", n)
	}
	var integrity string
	if err := db.QueryRow(`PRAGMA integrity_check`).Scan(&integrity); err != nil || integrity != "ok" {
		t.Errorf("integrity_check: %s, %v", integrity, err)
	}
	settle(t, path, open)
	verifyFile(t, path)
	t.Logf("%d kills, %d operations, %d acknowledged, %d attempts at one left open", kills, len(all), acked, repeated)
	if acked < rounds {
		t.Errorf("only %d operations were acknowledged in %d rounds: this proved nothing", acked, rounds)
	}
}

// settle repeats exactly what was left unknown, on a server that lives.
func settle(t *testing.T, path string, open [][]*operation) {
	s := startServer(t, path)
	for _, left := range open {
		for _, o := range left {
			if err := o.attempt(s); err != nil {
				t.Error(err)
			}
		}
	}
	if code := s.stop(); code != 0 {
		t.Errorf("the last server ended with exit code %d", code)
	}
	db := openRaw(t, path)
	if n := queryInt(t, db, `SELECT count(*) FROM (SELECT operation_id FROM issues GROUP BY operation_id HAVING count(*) > 1)`); n != 0 {
		t.Errorf("%d operations have more than one effect", n)
	}
}

// 32 identical calls at once, through four processes on one file: one effect, and
// everybody is told of it.
func TestProcessesJoinIdenticalCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.sqlite3")
	var servers []*server
	for range 4 {
		servers = append(servers, startServer(t, path))
	}
	first := &operation{id: "all-at-once"}
	r, err := servers[0].call("create_guarded_issue", first.arguments())
	if err != nil || r.Result == nil {
		t.Fatalf("first round: %+v, %v", r, err)
	}
	const callers = 32
	answers := make([]reply, callers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			<-start
			answer, err := servers[i%len(servers)].call("create_guarded_issue", first.arguments()+fmt.Sprintf(
				`,"requestState":%q,"inputResponses":{"body":{"action":"accept","content":{"body":"b"}}}`, r.Result.RequestState))
			if err != nil {
				t.Error(err)
			}
			answers[i] = answer
		})
	}
	close(start)
	wg.Wait()
	fresh := 0
	for i, a := range answers {
		if a.Result == nil || string(a.Result.Structured) != string(answers[0].Result.Structured) {
			t.Fatalf("caller %d got %+v %+v", i, a.Result, a.Error)
		}
		if !a.Result.Meta.Mark.Replayed {
			fresh++
		}
	}
	for _, s := range servers {
		if code := s.stop(); code != 0 {
			t.Errorf("a server ended with exit code %d", code)
		}
	}
	db := openRaw(t, path)
	effects, records := queryInt(t, db, `SELECT count(*) FROM issues`), queryInt(t, db, `SELECT count(*) FROM mcpreplay_operations`)
	if fresh != 1 || effects != 1 || records != 1 {
		t.Errorf("%d fresh answers, %d effects, %d records; want one of each", fresh, effects, records)
	}
	verifyFile(t, path)
}
