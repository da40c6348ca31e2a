//go:build unix

package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"
)

// load applies operations with several clients until it is told to stop, and
// remembers what each was told.
type load struct {
	mu      sync.Mutex
	acked   []string
	unknown []string
	stop    context.CancelFunc
	done    sync.WaitGroup
}

func startLoad(t *testing.T, s *postgres.Store, name string) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel}
	for client := range 6 {
		l.done.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("op-%s-%d-%d", name, client, i)
				_, _, err := s.Apply(context.Background(), operation(id), effect(id))
				l.mu.Lock()
				switch {
				case err == nil:
					l.acked = append(l.acked, id)
				case errors.Is(err, mcpreplay.ErrUnknown):
					l.unknown = append(l.unknown, id)
				case errors.Is(err, mcpreplay.ErrUnavailable): // definite
				default:
					t.Errorf("%s: %v", id, err)
				}
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	l.stop()
	l.done.Wait()
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// grows waits until some more were acknowledged.
func (l *load) grows(t *testing.T, by int) {
	t.Helper()
	want := l.count() + by
	for deadline := time.Now().Add(40 * time.Second); l.count() < want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d operations were acknowledged, want %d", l.count(), want)
		}
	}
}

// judge holds that what was acknowledged is there, that nothing has two effects or
// half of one, and that repeating what is unknown settles it.
func (l *load) judge(t *testing.T, s *postgres.Store, url string) {
	t.Helper()
	l.end()
	for _, id := range l.acked {
		if rec, err := s.Get(t.Context(), key(id)); err != nil || rec.State != mcpreplay.StateApplied {
			t.Errorf("%s was acknowledged and is %q, %v", id, rec.State, err)
		}
	}
	for _, id := range l.unknown {
		if rec, _, err := s.Apply(t.Context(), operation(id), effect(id)); err != nil || rec.State != mcpreplay.StateApplied {
			t.Errorf("%s, repeated, is %q, %v", id, rec.State, err)
		}
	}
	const lone = `SELECT count(*) FROM (SELECT label, count(*) n FROM item GROUP BY label) i
  FULL JOIN mcpreplay.operations o ON o.operation_id = i.label WHERE i.n IS DISTINCT FROM 1 OR o.state IS DISTINCT FROM 'applied'`
	if n := query[int](t, url, lone); n != 0 {
		t.Errorf("%d operations do not have exactly one effect", n)
	}
	t.Logf("%d acknowledged, %d unknown", len(l.acked), len(l.unknown))
}

func TestServerIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	server := pgtest.Own(t)
	url := server.Database(t)
	s := verified(t, url, nil)
	l := startLoad(t, s, "crash")
	for range 3 {
		l.grows(t, 50)
		server.Kill()
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	}
	l.grows(t, 50)
	l.judge(t, s, url)
}

// TestFailoverToSynchronousStandby: what was acknowledged is on the standby, and the
// store finds it there.
func TestFailoverToSynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := pgtest.Own(t)
	standby, err := primary.Standby("second")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Close)
	primary.Exec(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'second'")
	primary.Exec(t, "postgres", "SELECT pg_reload_conf()")
	primaryURL := primary.Database(t)
	name := primaryURL[strings.LastIndex(primaryURL, "/")+1:]
	name = name[:strings.Index(name, "?")]
	both := fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/%s?sslmode=disable&target_session_attrs=read-write&connect_timeout=2", primary.Port, standby.Port, name)
	s := verified(t, both, nil)
	l := startLoad(t, s, "failover")
	l.grows(t, 100)
	primary.Kill()
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	l.grows(t, 50)
	l.judge(t, s, standby.URL(name))
}

// TestCommitThatDoesNotWaitForItsStandby: the server acknowledges it with a warning,
// and that is not an acknowledgement.
func TestCommitThatDoesNotWaitForItsStandby(t *testing.T) {
	t.Parallel()
	server := pgtest.Own(t)
	url := server.Database(t)
	s := verified(t, url, nil)
	apply(t, s, "op-first")
	server.Exec(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	server.Exec(t, "postgres", "SELECT pg_reload_conf()")
	for _, end := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		done := make(chan error)
		id := "op-" + end
		go func() {
			_, _, err := s.Apply(context.Background(), operation(id), effect(id))
			done <- err
		}()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			n := query[int](t, url, "SELECT count("+end+"(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			if n > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("no commit waits for the standby")
			}
		}
		if err := <-done; !errors.Is(err, mcpreplay.ErrUnknown) {
			t.Errorf("%s: Apply() = %v, want %v", end, err, mcpreplay.ErrUnknown)
		}
		if rec, err := s.Get(t.Context(), key(id)); err != nil || rec.State != mcpreplay.StateApplied {
			t.Errorf("%s: Get() = %q, %v; it is there", end, rec.State, err)
		}
	}
	server.Exec(t, "postgres", "ALTER SYSTEM RESET synchronous_standby_names")
	server.Exec(t, "postgres", "SELECT pg_reload_conf()")
}

// TestClaimsAreRefusedWhereAFailoverCouldLoseThem.
func TestClaimsAreRefusedWhereAFailoverCouldLoseThem(t *testing.T) {
	t.Parallel()
	server := pgtest.Own(t)
	url := server.Database(t)
	alone := verified(t, url, nil)
	claimed, _, err := alone.Begin(t.Context(), operation("op-alone"), claim())
	if err != nil {
		t.Fatalf("Begin() without standbys: %v", err)
	}
	standby, err := server.Standby("second")
	if err != nil {
		t.Fatal(err)
	}
	defer standby.Close()
	for deadline := time.Now().Add(20 * time.Second); query[int](t, url, "SELECT count(*) FROM pg_stat_replication WHERE state <> 'backup'") == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the standby does not follow")
		}
	}
	s := openPool(t, newPool(t, url), nil)
	_, started, err := s.Begin(t.Context(), operation("op-lossy"), claim())
	if started || !errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "AllowLossyFailover") {
		t.Errorf("Begin() = started %v, %v; want %v that says what to do", started, err, mcpreplay.ErrUnavailable)
	}
	takeover := mcpreplay.Change{Key: claimed.Key, Revision: claimed.Revision, Owner: "owner-2", Event: mcpreplay.Event{Kind: mcpreplay.EventTakeover}}
	if _, err := s.Advance(t.Context(), takeover); !errors.Is(err, mcpreplay.ErrUnavailable) {
		t.Errorf("Advance() to take over = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
	// What is known is told, what is no claim is done, and so is what is atomic.
	if rec, started, err := s.Begin(t.Context(), operation("op-alone"), claim()); err != nil || started || rec.Revision != claimed.Revision {
		t.Errorf("Begin() of a known operation = %v, %v", started, err)
	}
	apply(t, s, "op-atomic")
	fence := mcpreplay.Change{To: mcpreplay.StateNotApplied, Fence: true, Event: mcpreplay.Event{Kind: mcpreplay.EventFence, Actor: "alice"}}
	if _, started, err := s.Begin(t.Context(), operation("op-fence"), fence); err != nil || !started {
		t.Errorf("Begin() of a fence = %v, %v", started, err)
	}
	allowed := openPool(t, newPool(t, url), &postgres.Options{AllowLossyFailover: true})
	if _, started, err := allowed.Begin(t.Context(), operation("op-lossy"), claim()); err != nil || !started {
		t.Errorf("Begin() when it is allowed = %v, %v", started, err)
	}
	// A role that may not look at standbys sees that they are there.
	server.Exec(t, "postgres", "CREATE ROLE app LOGIN")
	setup := newPool(t, url)
	if _, err := setup.Exec(t.Context(), "GRANT ALL ON SCHEMA mcpreplay TO app; GRANT ALL ON ALL TABLES IN SCHEMA mcpreplay TO app"); err != nil {
		t.Fatal(err)
	}
	app := openPool(t, newPool(t, strings.Replace(url, "postgres@", "app@", 1)), nil)
	if _, _, err := app.Begin(t.Context(), operation("op-app"), claim()); !errors.Is(err, mcpreplay.ErrUnavailable) {
		t.Errorf("Begin() by a role without rights = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
	server.Exec(t, "postgres", "ALTER SYSTEM SET synchronous_standby_names = 'second'")
	server.Exec(t, "postgres", "SELECT pg_reload_conf()")
	sync := openPool(t, newPool(t, url), nil)
	if _, started, err := sync.Begin(t.Context(), operation("op-sync"), claim()); err != nil || !started {
		t.Errorf("Begin() with a synchronous standby = %v, %v", started, err)
	}
	server.Exec(t, "postgres", "ALTER SYSTEM RESET synchronous_standby_names")
	server.Exec(t, "postgres", "SELECT pg_reload_conf()")
}

// A child is this test binary again, told by the environment to be a process that
// uses a ledger.
const (
	childRole = "MCPREPLAY_TEST_ROLE"
	childURL  = "MCPREPLAY_TEST_URL"
)

func childMain() {
	ctx := context.Background()
	s, err := postgres.Connect(ctx, os.Getenv(childURL), &postgres.Options{Backend: "issues"})
	if err == nil {
		switch os.Getenv(childRole) {
		case "hold": // an effect that never ends
			_, _, err = s.Apply(ctx, operation("op-hold"), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
				if err := writeRow(ctx, tx, "op-hold"); err != nil {
					return mcpreplay.Outcome{}, err
				}
				fmt.Println("inside")
				select {}
			})
		case "crash": // until it is killed
			for client := range 3 {
				go func() {
					for i := 0; ; i++ {
						id := fmt.Sprintf("op-%d-%d-%d", os.Getpid(), client, i)
						if _, _, err := s.Apply(ctx, operation(id), effect(id)); err != nil {
							fmt.Fprintln(os.Stderr, err)
							os.Exit(1)
						}
						fmt.Println(id)
					}
				}()
			}
			select {}
		case "race":
			for i := range 40 {
				id := fmt.Sprintf("op-race-%d", i)
				_, started, e := s.Apply(ctx, operation(id), effect(id))
				if e != nil {
					err = e
					break
				}
				if started {
					fmt.Println(id)
				}
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func child(t *testing.T, role, url string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", childRole+"="+role, childURL+"="+url)
	cmd.Stderr = os.Stderr
	return cmd
}

func TestProcessIsKilledInsideAnEffect(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	cmd := child(t, "hold", url)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "inside\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	if _, err := s.Get(t.Context(), key("op-hold")); !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Errorf("Get() while it runs = %v, want %v", err, mcpreplay.ErrNotFound)
	}
	cmd.Process.Kill()
	cmd.Wait()
	apply(t, s, "op-hold")
	if n := query[int](t, url, "SELECT count(*) FROM item"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

func TestProcessesHaveOneEffectEach(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	verified(t, url, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	started := map[string]int{}
	for range 4 {
		wg.Go(func() {
			out, err := child(t, "race", url).Output()
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range strings.Fields(string(out)) {
				started[id]++
			}
		})
	}
	wg.Wait()
	for id, n := range started {
		if n != 1 {
			t.Errorf("%s was started %d times", id, n)
		}
	}
	if n := query[int](t, url, "SELECT count(*) FROM item"); n != 40 || len(started) != 40 {
		t.Errorf("%d effects, of %d operations; want 40", n, len(started))
	}
}

// TestPrimaryBecomesStandby: a store whose server can no longer be written says so,
// and goes on when it can.
func TestPrimaryBecomesStandby(t *testing.T) {
	t.Parallel()
	server := pgtest.Own(t)
	pool := newPool(t, server.Database(t))
	setup(t, pool, nil)
	s, err := postgres.Patient(t.Context(), pool, backend(nil), 200*time.Millisecond, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	apply(t, s, "op-first")
	server.Stop()
	if err := os.WriteFile(server.Dir+"/standby.signal", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	var got error
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if _, _, got = s.Apply(t.Context(), operation("op-standby"), effect("standby")); got == nil || strings.Contains(got.Error(), "standby") {
			break
		}
	}
	if !errors.Is(got, mcpreplay.ErrUnavailable) || !strings.Contains(got.Error(), "target_session_attrs") {
		t.Errorf("Apply() on a standby = %v, want %v that says what to do", got, mcpreplay.ErrUnavailable)
	}
	if _, err := s.Get(t.Context(), key("op-first")); !errors.Is(err, mcpreplay.ErrUnavailable) {
		t.Errorf("Get() from a standby = %v, want %v: it may be behind", err, mcpreplay.ErrUnavailable)
	}
	if err := server.Promote(); err != nil {
		t.Fatal(err)
	}
	apply(t, s, "op-standby")
	verify(t, s)
}

// TestConnectionsOfThePoolAreInUse: whoever gets none is told in the end.
func TestConnectionsOfThePoolAreInUse(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	pool := newPool(t, url+"&pool_max_conns=1")
	setup(t, pool, nil)
	s, err := postgres.Patient(t.Context(), pool, backend(nil), 100*time.Millisecond, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	held, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Get(context.Background(), key("op-first"))
	if !errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
	held.Release()
	apply(t, s, "op-first")
}

// TestProcessesAreKilledAnywhere: what a client of the ledger said before it was
// killed is there, and nothing is half there.
func TestProcessesAreKilledAnywhere(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	var acked []string
	for round := range 12 {
		cmd := child(t, "crash", url)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 10+round && lines.Scan(); n++ {
			acked = append(acked, lines.Text())
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond) // anywhere in the next one
		cmd.Process.Kill()
		for lines.Scan() {
			if id := lines.Text(); strings.HasPrefix(id, "op-") {
				acked = append(acked, id)
			}
		}
		cmd.Wait()
	}
	l := &load{acked: acked, stop: func() {}}
	l.judge(t, s, url)
	if len(acked) < 12*10 {
		t.Errorf("%d operations were acknowledged, too few to mean anything", len(acked))
	}
}
