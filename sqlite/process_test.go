package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"mcpreplay/sqlite"
)

// A child is this test binary again, told by the environment to be a process
// that uses a ledger.
const (
	childRole = "MCPREPLAY_TEST_ROLE"
	childPath = "MCPREPLAY_TEST_PATH"
	childName = "MCPREPLAY_TEST_NAME"
)

func TestMain(m *testing.M) {
	role := os.Getenv(childRole)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](os.Getenv(childPath), os.Getenv(childName)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

var roles = map[string]func(path, name string) error{
	"create": createRole,
	"share":  shareRole,
	"crash":  crashRole,
}

const shared = 60 // ids that all sharing processes apply

// waitForStart lets children begin at the same moment: when their input ends.
func waitForStart() { io.Copy(io.Discard, os.Stdin) }

func openAlone(path, backend string) (*sqlite.Store, error) {
	s, err := sqlite.Open(path, &sqlite.Options{Backend: backend})
	if err != nil {
		return nil, err
	}
	return s, s.Setup(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
		_, err := tx.ExecContext(ctx, tables)
		return err
	})
}

func createRole(path, name string) error {
	backend, _, _ := strings.Cut(name, "/")
	waitForStart()
	s, err := openAlone(path, backend)
	if err != nil {
		return err
	}
	info, err := s.Info(context.Background())
	if err != nil {
		return err
	}
	fmt.Println(info.Instance)
	return s.Close()
}

func shareRole(path, name string) error {
	s, err := openAlone(path, "issues")
	if err != nil {
		return err
	}
	waitForStart()
	ids := rand.Perm(shared)
	var wg sync.WaitGroup
	errs := make(chan error, shared)
	for part := range 2 {
		wg.Go(func() {
			for _, i := range ids[part*shared/2 : (part+1)*shared/2] {
				id := fmt.Sprintf("op-shared-%d", i)
				rec, started, err := s.Apply(context.Background(), operation(id), effect(id))
				if err == nil && rec.State != "applied" {
					err = fmt.Errorf("%s is %s", id, rec.State)
				}
				if err != nil {
					errs <- err
					return
				}
				if started {
					fmt.Println(id)
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	return s.Close()
}

// crashRole applies until it is killed, and says what was acknowledged.
func crashRole(path, name string) error {
	s, err := openAlone(path, "issues")
	if err != nil {
		return err
	}
	var mu sync.Mutex
	for client := range 3 {
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("op-%s-%d-%d", name, client, i)
				if _, _, err := s.Apply(context.Background(), operation(id), effect(id)); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println(id)
				mu.Unlock()
			}
		}()
	}
	select {}
}

type child struct {
	cmd    *exec.Cmd
	start  io.Closer
	out    *bufio.Scanner
	stderr strings.Builder
}

func spawn(t *testing.T, role, path, name string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	// The race detector sleeps for a second before it lets a process end.
	c.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", childRole+"="+role, childPath+"="+path, childName+"="+name)
	c.cmd.Stderr = &c.stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.start, c.out = in, bufio.NewScanner(out)
	return c
}

// lines reads what the child says until it ends.
func (c *child) lines() (lines []string, err error) {
	for c.out.Scan() {
		lines = append(lines, c.out.Text())
	}
	if err := c.cmd.Wait(); err != nil {
		return lines, fmt.Errorf("%w: %s", err, c.stderr.String())
	}
	return lines, nil
}

func together(t *testing.T, children ...*child) (lines [][]string, errs []error) {
	t.Helper()
	for _, c := range children {
		c.start.Close()
	}
	for _, c := range children {
		l, err := c.lines()
		lines, errs = append(lines, l), append(errs, err)
	}
	return lines, errs
}

func TestProcessesCreateOneLedger(t *testing.T) {
	t.Parallel()
	for range 20 {
		path := newPath(t)
		said, errs := together(t, spawn(t, "create", path, "issues/a"), spawn(t, "create", path, "issues/b"))
		if errs[0] != nil || errs[1] != nil {
			t.Fatalf("a process failed: %v, %v", errs[0], errs[1])
		}
		if len(said[0]) != 1 || len(said[1]) != 1 || said[0][0] != said[1][0] {
			t.Fatalf("the processes see the instances %v and %v", said[0], said[1])
		}
	}
}

func TestProcessesOfTwoBackendsCannotShare(t *testing.T) {
	t.Parallel()
	for range 3 {
		path := newPath(t)
		_, errs := together(t, spawn(t, "create", path, "issues"), spawn(t, "create", path, "orders"))
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("one of two backends has to be refused: %v, %v", errs[0], errs[1])
		}
		for _, err := range errs {
			if err != nil && !strings.Contains(err.Error(), "is the ledger of backend") {
				t.Errorf("the refusal says %v", err)
			}
		}
	}
}

func TestProcessesHaveOneEffectEach(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	var children []*child
	for i := range 4 {
		children = append(children, spawn(t, "share", path, fmt.Sprint(i)))
	}
	said, errs := together(t, children...)
	wins := map[string]int{}
	for i, err := range errs {
		if err != nil {
			t.Fatalf("a process failed: %v", err)
		}
		for _, id := range said[i] {
			wins[id]++
		}
	}
	for id, n := range wins {
		if n != 1 {
			t.Errorf("%d processes started %s, want 1", n, id)
		}
	}
	if len(wins) != shared {
		t.Errorf("%d ids were started, want %d", len(wins), shared)
	}
	if n := halves(t, path); n != 0 {
		t.Errorf("%d records have not exactly one effect", n)
	}
	verify(t, openStore(t, path, nil))
}

func TestAcknowledgedSurvivesKill(t *testing.T) {
	t.Parallel()
	const rounds = 40
	path := newPath(t)
	var acked []string
	for round := range rounds {
		c := spawn(t, "crash", path, fmt.Sprint(round))
		for want := 1 + rand.IntN(12); want > 0 && c.out.Scan(); want-- {
			acked = append(acked, c.out.Text())
		}
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		rest, _ := c.lines() // whole lines in the pipe were acknowledged too
		if c.stderr.Len() > 0 {
			t.Fatalf("a process failed before it was killed: %s", c.stderr.String())
		}
		acked = append(acked, rest...)
		if round%10 == 9 {
			if n := missing(t, path, acked); n != 0 {
				t.Fatalf("%d of %d acknowledged operations are lost after %d kills", n, len(acked), round+1)
			}
		}
	}
	if len(acked) < rounds {
		t.Errorf("only %d operations were acknowledged in %d rounds", len(acked), rounds)
	}
}
