package lab_test

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "github.com/ncruces/go-sqlite3/driver"
)

var binary string

// TestMain builds the program once: these tests run and kill real processes.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mcpreplay-lab-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "mcpreplay")
	build := exec.Command("go", "build", "-o", binary, "mcpreplay/cmd/mcpreplay")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var errGone = errors.New("the server is gone")

// server is a real server process with a client that many goroutines may use.
type server struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu      sync.Mutex
	nextID  int
	waiting map[int]chan json.RawMessage
	gone    bool
	drained chan struct{}
}

// startServer runs "lab serve" with its keys known, so that a later process opens
// what an earlier one sealed.
func startServer(t testing.TB, path string, extra ...string) *server {
	t.Helper()
	args := append([]string{"lab", "serve", "--ledger", "sqlite:" + path, "--backend", "crash", "--principal", "alice",
		"--state-key-hex", strings.Repeat("ab", 32)}, extra...)
	s := &server{cmd: exec.Command(binary, args...), waiting: map[int]chan json.RawMessage{}, drained: make(chan struct{})}
	s.cmd.Stderr = os.Stderr
	var err error
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.read(stdout)
	return s
}

func (s *server) read(stdout io.Reader) {
	defer close(s.drained)
	r := bufio.NewReader(stdout)
	for {
		line, err := r.ReadBytes('\n')
		var reply struct{ ID int }
		if err == nil && json.Unmarshal(line, &reply) == nil {
			s.mu.Lock()
			if c := s.waiting[reply.ID]; c != nil {
				delete(s.waiting, reply.ID)
				c <- line
			}
			s.mu.Unlock()
		}
		if err != nil {
			s.mu.Lock()
			s.gone = true
			for _, c := range s.waiting {
				close(c)
			}
			s.waiting = nil
			s.mu.Unlock()
			return
		}
	}
}

// kill ends the process as nothing can refuse, and waits until its last words are
// read.
func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.drained
	s.cmd.Wait()
}

// stop ends the process as a client does, and returns its exit code.
func (s *server) stop() int {
	s.stdin.Close()
	<-s.drained
	s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

const modern = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// reply is what the tests read of an answer.
type reply struct {
	Result *struct {
		ResultType   string
		RequestState string
		IsError      bool
		Structured   json.RawMessage `json:"structuredContent"`
		Meta         struct {
			Mark struct {
				OperationID string
				State       string
				Replayed    bool
			} `json:"mcpreplay/operation"`
		} `json:"_meta"`
	}
	Error *struct {
		Code    int
		Message string
	}
}

// call sends one tools/call. It returns errGone if no whole reply came.
func (s *server) call(tool, rest string) (reply, error) {
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return reply{}, errGone
	}
	s.nextID++
	id, c := s.nextID, make(chan json.RawMessage, 1)
	s.waiting[id] = c
	s.mu.Unlock()
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s,"name":%q,%s}}`+"\n", id, modern, tool, rest)
	if _, err := io.WriteString(s.stdin, line); err != nil {
		return reply{}, errGone
	}
	raw, ok := <-c
	if !ok {
		return reply{}, errGone
	}
	var r reply
	if err := json.Unmarshal(raw, &r); err != nil {
		return reply{}, err
	}
	return r, nil
}

// operation is one logical call: what its client knows of it.
type operation struct {
	id    string
	state string // request state, once asked
	acked bool
}

func (o *operation) arguments() string {
	return fmt.Sprintf(`"arguments":{"operation_id":%q,"title":%q}`, o.id, "title of "+o.id)
}

// attempt brings the operation as far as the server lives: to its question, and
// from there to its result.
func (o *operation) attempt(s *server) error {
	if o.state == "" {
		r, err := s.call("create_guarded_issue", o.arguments())
		if err != nil {
			return err
		}
		if r.Result == nil || r.Result.ResultType != "input_required" {
			return fmt.Errorf("%s: first round: %+v %+v", o.id, r.Result, r.Error)
		}
		o.state = r.Result.RequestState
	}
	r, err := s.call("create_guarded_issue", o.arguments()+fmt.Sprintf(
		`,"requestState":%q,"inputResponses":{"body":{"action":"accept","content":{"body":"b"}}}`, o.state))
	if err != nil {
		return err
	}
	if r.Result == nil || r.Result.IsError || r.Result.Meta.Mark.State != "applied" || r.Result.Meta.Mark.OperationID != o.id {
		return fmt.Errorf("%s: continuation: %+v %+v", o.id, r.Result, r.Error)
	}
	o.acked = true
	return nil
}

// openRaw opens the file by a connection of the test's own.
func openRaw(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", (&url.URL{Scheme: "file", OmitHost: true, Path: path}).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func queryInt(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// verifyFile runs the program's own verify over the file.
func verifyFile(t testing.TB, path string) {
	t.Helper()
	if out, err := exec.Command(binary, "verify", "--ledger", "sqlite:"+path).CombinedOutput(); err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}
}
