package sqlite_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"mcpreplay"
	"mcpreplay/sqlite"
)

func TestAcknowledgedSurvivesPowerCut(t *testing.T) {
	t.Parallel()
	if lost, checked := powerCuts(t, "FULL", 32); lost > 0 || checked == 0 {
		t.Errorf("%d of %d acknowledged operations were lost", lost, checked)
	}
}

// TestPowerCutDiscriminates shows that the harness above would see a loss: with
// fewer syncs it does.
func TestPowerCutDiscriminates(t *testing.T) {
	t.Parallel()
	if lost, checked := powerCuts(t, "NORMAL", 8); lost == 0 {
		t.Errorf("none of %d acknowledged operations was lost without syncing each commit", checked)
	}
}

// powerCuts cuts the power of a busy ledger again and again, and counts how many
// operations that were acknowledged before a cut are not there after it.
func powerCuts(t *testing.T, synchronous string, cuts int) (lost, checked int) {
	d := newDisk(t, true)
	path := newPath(t)
	s, err := sqlite.OpenWeak(path, &sqlite.Options{Backend: "issues"}, sqlite.Weak{
		VFS: d.name, Synchronous: synchronous, Pragmas: []string{"wal_autocheckpoint=20"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	setup(t, s)

	var (
		wg     sync.WaitGroup
		pause  sync.RWMutex // held by clients as they call, and to check in peace
		mu     sync.Mutex
		acked  []string
		failed error
		more   = sync.NewCond(&mu)
		stop   = make(chan struct{})
	)
	for client := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("op-%d-%d", client, i)
				pause.RLock()
				_, _, err := s.Apply(context.Background(), operation(id), effect(id))
				pause.RUnlock()
				mu.Lock()
				if err == nil {
					acked = append(acked, id)
				} else {
					failed = err
				}
				more.Broadcast()
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range cuts {
		mu.Lock()
		for want := len(acked) + 1 + rng.IntN(10); failed == nil && len(acked) < want; {
			more.Wait()
		}
		known := append([]string{}, acked...)
		mu.Unlock()
		dir := t.TempDir()
		err := d.cut(dir, rng, []float64{0, .5, .9, 1}[i%4]) // as the others write
		if err != nil {
			t.Fatal(err)
		}
		pause.Lock()
		lost += missing(t, filepath.Join(dir, "ledger.db"), known)
		checked += len(known)
		pause.Unlock()
	}
	close(stop)
	wg.Wait()
	if failed != nil {
		t.Errorf("Apply(): %v", failed)
	}
	return lost, checked
}

// missing counts the ids without a record in what a power cut left, which must
// be consistent whatever is missing.
func missing(t *testing.T, path string, ids []string) (n int) {
	t.Helper()
	s := reopen(t, path)
	defer s.Close()
	verify(t, s)
	if n := halves(t, path); n != 0 {
		t.Errorf("%d records and effects stand alone after a power cut", n)
	}
	applied := map[string]bool{}
	for _, rec := range all(t, s) {
		applied[rec.ID] = rec.State == mcpreplay.StateApplied
	}
	for _, id := range ids {
		if !applied[id] {
			n++
		}
	}
	return n
}

func reopen(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	if got := query[string](t, path, "PRAGMA integrity_check"); got != "ok" {
		t.Errorf("integrity_check = %s", got)
	}
	s, err := sqlite.Open(path, &sqlite.Options{Backend: "issues"})
	if err != nil {
		t.Fatalf("Open() afterwards: %v", err)
	}
	return s
}

// halves counts records without exactly one effect, and effects without a record.
func halves(t *testing.T, path string) int {
	t.Helper()
	return query[int](t, path, `SELECT count(*) FROM
(SELECT operation_id AS id, (SELECT count(*) FROM item WHERE label = operation_id) AS n FROM mcpreplay_operations
 UNION ALL SELECT label, (SELECT count(*) FROM mcpreplay_operations WHERE operation_id = label) FROM item)
WHERE n <> 1`)
}

func all(t *testing.T, s mcpreplay.Store) (recs []mcpreplay.Record) {
	t.Helper()
	f := mcpreplay.Filter{Limit: 1000}
	for {
		page, err := s.List(context.Background(), f)
		if err != nil {
			t.Fatalf("List(): %v", err)
		}
		if len(page) == 0 {
			return recs
		}
		recs = append(recs, page...)
		f.Before = page[len(page)-1].Seq
	}
}
