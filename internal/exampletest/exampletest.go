// Package exampletest runs the programs of the examples as a user would: built, as
// processes of their own, over standard input and output.
package exampletest

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Program is a built example, and the directory it runs in.
type Program struct {
	t    *testing.T
	path string
	Dir  string
}

// Build builds the package in the working directory of the test.
func Build(t *testing.T) *Program {
	t.Helper()
	p := &Program{t: t, path: filepath.Join(t.TempDir(), "program"), Dir: t.TempDir()}
	if out, err := exec.Command("go", "build", "-o", p.path, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return p
}

// Server is a running program and a client of the SDK that is connected to it.
type Server struct {
	t    *testing.T
	cmd  *exec.Cmd
	cs   *mcp.ClientSession
	once sync.Once
}

// Start runs the program. Answers are what its user says to each question.
func (p *Program) Start(answers map[string]any, args ...string) *Server {
	p.t.Helper()
	s := &Server{t: p.t, cmd: exec.Command(p.path, args...)}
	s.cmd.Dir, s.cmd.Stderr = p.Dir, os.Stderr
	o := &mcp.ClientOptions{}
	if answers != nil {
		o.ElicitationHandler = func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			if answer, ok := answers[req.Params.Message].(map[string]any); ok {
				return &mcp.ElicitResult{Action: "accept", Content: answer}, nil
			}
			return &mcp.ElicitResult{Action: "decline"}, nil
		}
	}
	var err error
	s.cs, err = mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, o).Connect(context.Background(), &mcp.CommandTransport{Command: s.cmd}, nil)
	if err != nil {
		p.t.Fatalf("start %s: %v", filepath.Base(p.path), err)
	}
	p.t.Cleanup(s.Stop)
	return s
}

// Stop ends the program as a host does.
func (s *Server) Stop() { s.once.Do(func() { s.cs.Close() }) }

// Kill ends it at once, wherever it is.
func (s *Server) Kill() {
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Errorf("kill: %v", err)
	}
	s.Stop()
}

// Signal sends it a signal: os.Kill and, where there are such, those that stop a process
// and let it go on.
func (s *Server) Signal(sig os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("signal %v: %v", sig, err)
	}
}

// Result is what a call says, in the parts that the examples show.
type Result struct {
	IsError    bool
	Text       string
	Structured string // JSON
	Replayed   bool
}

// Call calls a tool. An error is that of the protocol, or of a server that is gone.
func (s *Server) Call(tool, args string) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := s.cs.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil {
		return Result{}, err
	}
	r := Result{IsError: res.IsError}
	if len(res.Content) > 0 {
		if text, ok := res.Content[0].(*mcp.TextContent); ok {
			r.Text = text.Text
		}
	}
	if res.StructuredContent != nil {
		text, err := json.Marshal(res.StructuredContent)
		if err != nil {
			return Result{}, err
		}
		r.Structured = string(text)
	}
	if mark, ok := res.Meta["mcpreplay/operation"].(map[string]any); ok {
		r.Replayed, _ = mark["replayed"].(bool)
	}
	return r, nil
}

// MustCall is Call where a reply is expected.
func (s *Server) MustCall(tool, args string) Result {
	s.t.Helper()
	r, err := s.Call(tool, args)
	if err != nil {
		s.t.Fatalf("%s %s: %v", tool, args, err)
	}
	return r
}

// Status is the state and the detail that get_operation_status tells.
func (s *Server) Status(operation string) (state, detail string) {
	s.t.Helper()
	r := s.MustCall("get_operation_status", `{"operation_id":"`+operation+`"}`)
	var o struct{ State, Detail string }
	if err := json.Unmarshal([]byte(r.Structured), &o); err != nil {
		s.t.Fatalf("status: %v", err)
	}
	return o.State, o.Detail
}
