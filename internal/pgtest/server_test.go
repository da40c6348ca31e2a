//go:build linux

package pgtest_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcpreplay/internal/pgtest"
)

const role = "MCPREPLAY_TEST_ROLE"

// TestMain can be a process that starts a server and then ends as no process should.
func TestMain(m *testing.M) {
	if os.Getenv(role) == "" {
		pgtest.Main(m)
	}
	s, err := pgtest.New()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.Dir)
	if os.Getenv(role) == "panic" {
		panic("on purpose")
	}
	select {}
}

func TestServerEndsWithItsProcess(t *testing.T) {
	pgtest.Shared(t) // or there is nothing to test
	for _, how := range []string{"kill", "panic"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), role+"="+how)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if how == "kill" {
			cmd.Process.Kill()
		}
		cmd.Wait()
		dir := strings.TrimSpace(line)
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, "postmaster.pid")); os.IsNotExist(err) {
				break // which it removes as the last thing
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the server of %s runs on", how, dir)
			}
		}
		// Whoever makes the next directory removes what is left of this one.
		next, err := pgtest.NewDir("next")
		if err != nil {
			t.Fatal(err)
		}
		os.RemoveAll(next)
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s: %s is still there: %v", how, dir, err)
		}
	}
}
