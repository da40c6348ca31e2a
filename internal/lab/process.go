package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Process is a server as a child process, spoken to over its standard input and
// output, with every byte of both kept in a transcript. It is an mcp.Transport.
type Process struct {
	cmd        *exec.Cmd
	transcript *os.File
	stdin      io.WriteCloser

	mu sync.Mutex // of the transcript
}

// Start runs a server. The transcript is a new file: one line for each line on
// the wire, "> " before what the client sent and "< " before what it received.
// The server's stderr goes to the writer given.
func Start(transcript string, stderr io.Writer, name string, args ...string) (*Process, error) {
	file, err := os.OpenFile(transcript, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Stderr = stderr
	return &Process{cmd: cmd, transcript: file}, nil
}

// Connect starts the process. It implements mcp.Transport.
func (p *Process) Connect(ctx context.Context) (mcp.Connection, error) {
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	p.stdin = stdin
	t := &mcp.IOTransport{
		Reader: &kept{from: stdout, keep: &lines{p: p, prefix: "< "}},
		Writer: &sent{to: stdin, keep: &lines{p: p, prefix: "> "}},
	}
	return t.Connect(ctx)
}

// Stop closes the input of the process, waits for it to end, and returns its exit
// code. One that does not end within the limit is killed, which is an error.
func (p *Process) Stop(limit time.Duration) (int, error) {
	if p.cmd.Process == nil {
		return 0, errors.New("the server was not started")
	}
	p.stdin.Close()
	overdue := time.AfterFunc(limit, func() { p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	stopped := overdue.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := errors.Join(p.transcript.Sync(), p.transcript.Close()); e != nil {
		return 0, e
	}
	var exit *exec.ExitError
	switch {
	case !stopped:
		return 0, fmt.Errorf("the server did not end within %v", limit)
	case err != nil && !errors.As(err, &exit):
		return 0, err
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

// lines writes whole lines of one direction to the transcript.
type lines struct {
	p      *Process
	prefix string
	rest   []byte
}

func (l *lines) add(b []byte) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	for _, c := range b {
		l.rest = append(l.rest, c)
		if c == '\n' {
			l.p.transcript.WriteString(l.prefix + string(l.rest))
			l.rest = l.rest[:0]
		}
	}
}

// kept is the server's output, copied as it is read.
type kept struct {
	from io.ReadCloser
	keep *lines
}

func (k *kept) Read(b []byte) (int, error) {
	n, err := k.from.Read(b)
	k.keep.add(b[:n])
	return n, err
}

func (k *kept) Close() error { return k.from.Close() }

// sent is the server's input, copied before it is written: what was on its way
// when the server died belongs to the evidence.
type sent struct {
	to   io.WriteCloser
	keep *lines
}

func (s *sent) Write(b []byte) (int, error) {
	s.keep.add(b)
	return s.to.Write(b)
}

func (s *sent) Close() error { return s.to.Close() }
