package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
)

var oldResult = `{"content":[{"type":"text","text":"` + strings.Repeat("x", 400) + `"}]}`

// old fills a ledger with n operations of ten days ago, whose time to be replayed
// has passed.
func old(t testing.TB, path string, n int) {
	t.Helper()
	at := time.Now().AddDate(0, 0, -10)
	s, err := sqlite.Open(path, &sqlite.Options{Backend: "crash", Clock: func() time.Time { return at }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	digest := make([]byte, 32)
	var wg sync.WaitGroup
	for part := range 32 {
		wg.Go(func() {
			for i := part; i < n; i += 32 {
				_, _, err := s.Apply(context.Background(), mcpreplay.Operation{
					Key: mcpreplay.Key{Principal: "alice", ID: fmt.Sprintf("op-old-%d", i)}, Tool: "create_guarded_issue", Version: "1",
					Digests:   mcpreplay.Digests{KeyID: "k", Fingerprint: digest, Arguments: digest, Answers: digest, State: digest, Sent: digest},
					Authority: at.Add(time.Hour), Retention: at.Add(24 * time.Hour),
				}, func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
					return mcpreplay.Outcome{Result: mcpreplay.Result{Body: []byte(oldResult)}}, nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A server under load beside two sweeps: neither loses anything, and every old
// result goes once. How much of the server's pace the sweeps cost is told, for it
// depends on the machine.
func TestSweepsBesideAServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.sqlite3")
	const results = 6000
	old(t, path, results)
	s := startServer(t, path)
	var done atomic.Int64
	var failed sync.Once
	ctx, stop := context.WithCancel(t.Context())
	var clients, sweeps sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := (&operation{id: fmt.Sprintf("op-%d-%d", c, n)}).attempt(s); err != nil {
					failed.Do(func() { t.Errorf("a call beside the sweeps: %v", err) })
					return
				}
				done.Add(1)
			}
		})
	}
	pace := func(until func() bool) float64 {
		before, began := done.Load(), time.Now()
		for !until() {
			time.Sleep(10 * time.Millisecond)
		}
		return float64(done.Load()-before) / time.Since(began).Seconds()
	}
	after := func(d time.Duration) func() bool {
		end := time.Now().Add(d)
		return func() bool { return time.Now().After(end) }
	}
	alone := pace(after(time.Second))
	var dropped, freed, ended atomic.Int64
	for range 2 {
		sweeps.Go(func() {
			defer ended.Add(1)
			out, err := exec.Command(binary, "sweep", "--grace", "0s", "--json", "--ledger", "sqlite:"+path).Output()
			var v struct {
				Complete       bool
				Dropped, Bytes int64
			}
			if err = errors.Join(err, json.Unmarshal(out, &v)); err != nil || !v.Complete {
				t.Errorf("sweep: %v %s", err, out)
			}
			dropped.Add(v.Dropped)
			freed.Add(v.Bytes)
		})
	}
	beside := pace(func() bool { return ended.Load() == 2 })
	sweeps.Wait()
	stop()
	clients.Wait()
	if code := s.stop(); code != 0 {
		t.Errorf("the server ended with %d", code)
	}
	t.Logf("operations a second: %.0f alone, %.0f beside two sweeps of %d results, ratio %.2f", alone, beside, results, beside/alone)
	db := openRaw(t, path)
	if n, bytes := dropped.Load(), freed.Load(); n != results || bytes != int64(results*len(oldResult)) {
		t.Errorf("the sweeps dropped %d of %d bytes, want each of %d once", n, bytes, results)
	}
	if n := queryInt(t, db, `SELECT count(*) FROM issues`); int64(n) != done.Load() {
		t.Errorf("%d issues of %d acknowledged calls", n, done.Load())
	}
	if n := queryInt(t, db, `SELECT count(*) FROM mcpreplay_results`); int64(n) != done.Load() {
		t.Errorf("%d results are left, want those of %d new operations", n, done.Load())
	}
	verifyFile(t, path)
}

// Interrupted, a sweep ends after a chunk and says so; the next one does the rest.
func TestAnInterruptedSweep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.sqlite3")
	const results = 6000
	old(t, path, results)
	db := openRaw(t, path)
	left := func() int { return queryInt(t, db, `SELECT count(*) FROM mcpreplay_results`) }
	cmd := exec.Command(binary, "sweep", "--grace", "0s", "--ledger", "sqlite:"+path)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); left() == results && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	rest := left()
	switch code := cmd.ProcessState.ExitCode(); {
	case code == 1 && rest > 0 && strings.Contains(stderr.String(), "mcpreplay sweep: error: stopped before the end\n") &&
		strings.HasSuffix(stdout.String(), fmt.Sprintf("dropped %d (%d bytes)\n", results-rest, (results-rest)*len(oldResult))):
		t.Logf("interrupted with %d of %d left", rest, results)
	case code == 0 && rest == 0: // it was faster
	default:
		t.Errorf("exit %d with %d left: %s%s", code, rest, stdout.String(), stderr.String())
	}
	if out, err := exec.Command(binary, "sweep", "--grace", "0s", "--ledger", "sqlite:"+path).CombinedOutput(); err != nil || left() != 0 {
		t.Errorf("the rest: %v, %d left: %s", err, left(), out)
	}
	verifyFile(t, path)
}

// A server sweeps by itself as it runs, and ends when its input does.
func TestAServerSweeps(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store.sqlite3")
	old(t, path, 50)
	cmd := exec.Command(binary, "serve", "--ledger", "sqlite:"+path, "--backend", "crash", "--key-file", filepath.Join(dir, "keys"),
		"--sweep-interval", "10ms", "--sweep-grace", "0s")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	db := openRaw(t, path)
	left := func() int { return queryInt(t, db, `SELECT count(*) FROM mcpreplay_results`) }
	for deadline := time.Now().Add(time.Minute); left() > 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil || left() != 0 {
		t.Errorf("the server ended with %v, and %d results are left", err, left())
	}
	verifyFile(t, path)
}
