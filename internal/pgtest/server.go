//go:build unix

// Package pgtest runs private PostgreSQL servers for tests. They belong to the
// process that started them, listen on loopback alone, and are as durable as a
// server is by default.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience bounds the wait for a server to start or stop.
const patience = 60 * time.Second

// Server is a running PostgreSQL, or one that was stopped.
type Server struct {
	Dir  string // of its data, inside a directory of its own
	Port int

	bin  string
	proc *exec.Cmd
	done chan struct{}
}

// Require skips the test if a program is missing, or fails it if
// MCPREPLAY_TEST_REQUIRE says that nothing may be.
func Require(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, exec.ErrNotFound) && os.Getenv("MCPREPLAY_TEST_REQUIRE") == "":
		t.Skipf("%v: .ci/postgres installs it", err)
	default:
		t.Fatal(err)
	}
}

// bin finds the directory of the server's programs.
func bin() (string, error) {
	var dirs []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(debian, func(a, b string) int { return version(b) - version(a) })
	dirs = append(dirs, debian...)
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("initdb of PostgreSQL: %w", exec.ErrNotFound)
}

func version(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return n
}

// other is whom a server runs as when this process is root, which it refuses.
func other() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("there is no user to run PostgreSQL as: it refuses root")
}

// command is a program that runs as other, and ends with this process.
func command(dir, name string, args ...string) (*exec.Cmd, error) {
	c, err := other()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PGPASSFILE=/dev/null")
	cmd.SysProcAttr = attributes(c)
	return cmd, nil
}

// NewDir makes a directory that the server's user may write in. Those of processes
// that are no more are removed.
func NewDir(what string) (string, error) {
	const prefix = "mcpreplay-pgtest-"
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range old {
		pid, err := strconv.Atoi(strings.SplitN(strings.TrimPrefix(filepath.Base(dir), prefix), "-", 2)[0])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-%s-", prefix, os.Getpid(), what))
	if err != nil {
		return "", err
	}
	c, err := other()
	if err == nil && c != nil {
		err = os.Chown(dir, int(c.Uid), int(c.Gid))
	}
	return dir, err
}

// New makes a server and starts it with settings beyond the default.
func New(settings ...string) (*Server, error) {
	b, err := bin()
	if err != nil {
		return nil, err
	}
	dir, err := NewDir("server")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: filepath.Join(dir, "data"), bin: b}
	err = s.run("initdb", "-D", s.Dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if err == nil {
		err = s.Start(settings...)
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// Standby makes a server that follows s, under a name that s can wait for.
func (s *Server) Standby(name string) (*Server, error) {
	dir, err := NewDir("standby")
	if err != nil {
		return nil, err
	}
	b := &Server{Dir: filepath.Join(dir, "data"), bin: s.bin}
	err = s.run("pg_basebackup", "-D", b.Dir, "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-d", s.URL("postgres")+"&application_name="+name)
	if err == nil {
		err = b.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return b, nil
}

// run runs one of the server's programs to its end.
func (s *Server) run(name string, args ...string) error {
	cmd, err := command(filepath.Dir(s.Dir), filepath.Join(s.bin, name), args...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// FreePort is a port of loopback that nobody listens on.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Start starts a server that is stopped, and returns when it answers.
func (s *Server) Start(settings ...string) error {
	if s.Port == 0 {
		port, err := FreePort()
		if err != nil {
			return err
		}
		s.Port = port
	}
	args := []string{"-D", s.Dir, "-p", strconv.Itoa(s.Port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	cmd, err := command(filepath.Dir(s.Dir), filepath.Join(s.bin, "postgres"), args...)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := start(cmd); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		cmd.Wait()
		close(done)
	}()
	s.proc, s.done = cmd, done
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if err = s.ping(); err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("PostgreSQL ended while it was started\n%s", said.String())
		default:
		}
		if time.Now().After(deadline) {
			s.Kill()
			return fmt.Errorf("PostgreSQL does not answer: %w", err)
		}
	}
}

func (s *Server) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	return c.Close(ctx)
}

// URL is where a database of the server is, for its superuser.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.Port, url.PathEscape(database))
}

// Kill ends the server and all its processes at once, as a crash does.
func (s *Server) Kill() {
	s.signalAll(syscall.SIGKILL)
	<-s.done
}

// Stop ends the server. What is connected is cut off.
func (s *Server) Stop() {
	s.proc.Process.Signal(syscall.SIGINT)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.Kill()
	}
}

// Pause and Resume stop the server's processes without ending them.
func (s *Server) Pause()  { s.signalAll(syscall.SIGSTOP) }
func (s *Server) Resume() { s.signalAll(syscall.SIGCONT) }

// signalAll signals the server and its processes, each of which has a group of its
// own: the server first, so that it starts no others.
func (s *Server) signalAll(sig syscall.Signal) {
	pid := s.proc.Process.Pid
	syscall.Kill(pid, syscall.SIGSTOP)
	all := append([]int{pid}, children(pid)...)
	for _, p := range all {
		syscall.Kill(p, sig)
	}
}

func children(of int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// pid (command) state parent: the command may have anything in it.
		after := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if len(after) > 1 && after[1] == strconv.Itoa(of) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Promote makes a standby the primary.
func (s *Server) Promote() error { return s.run("pg_ctl", "promote", "-D", s.Dir, "-w") }

// Close ends the server and removes what it stored.
func (s *Server) Close() {
	select {
	case <-s.done:
	default:
		s.Kill()
	}
	os.RemoveAll(filepath.Dir(s.Dir))
}
