package lab

import (
	"bytes"
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
	stdin      io.WriteCloser
	toServer   *lines
	fromServer *lines
	ended      chan struct{} // the server's output has been read to its end

	mu         sync.Mutex
	transcript *os.File
	failed     error // of writing the transcript
}

// Start runs a server. The transcript is a new file: one line for each line on
// the wire, "> " before what the client sent and "< " before what it received. A
// last line without its end has "~" in its prefix. The server's stderr goes to the
// writer given.
func Start(transcript string, stderr io.Writer, name string, args ...string) (*Process, error) {
	file, err := os.OpenFile(transcript, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Stderr = stderr
	p := &Process{cmd: cmd, transcript: file, ended: make(chan struct{})}
	p.toServer, p.fromServer = &lines{p: p, mark: ">"}, &lines{p: p, mark: "<"}
	return p, nil
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
		Reader: &kept{from: stdout, keep: p.fromServer, ended: sync.OnceFunc(func() { close(p.ended) })},
		Writer: &sent{to: stdin, keep: p.toServer},
	}
	return t.Connect(ctx)
}

// Stop closes the input of the process, waits for it to end, and returns its exit
// code. One that does not end within the limit is killed, which is an error. The
// session must not be closed before, or the last words of the server are lost.
func (p *Process) Stop(limit time.Duration) (int, error) {
	if p.cmd.Process == nil {
		return 0, errors.New("the server was not started")
	}
	p.stdin.Close() // it may have closed it itself
	overdue := time.AfterFunc(limit, func() { p.cmd.Process.Kill() })
	select { // Wait closes the pipe that is still being read
	case <-p.ended:
	case <-time.After(limit + time.Second): // nobody reads it
	}
	err := p.cmd.Wait()
	stopped := overdue.Stop()
	p.toServer.finish()
	p.fromServer.finish()
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := errors.Join(p.failed, p.transcript.Sync(), p.transcript.Close()); e != nil {
		return 0, fmt.Errorf("keep the transcript: %w", e)
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
	p    *Process
	mark string
	rest []byte // guarded by the process's mutex
}

func (l *lines) add(b []byte) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		if end < 0 {
			return
		}
		l.write(l.mark+" ", l.rest[:end])
		l.rest = l.rest[end+1:]
	}
}

// finish writes what was cut off.
func (l *lines) finish() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if len(l.rest) > 0 {
		l.write(l.mark+"~ ", l.rest)
	}
}

func (l *lines) write(prefix string, line []byte) {
	if _, err := fmt.Fprintf(l.p.transcript, "%s%s\n", prefix, line); err != nil && l.p.failed == nil {
		l.p.failed = err
	}
}

// kept is the server's output, copied as it is read.
type kept struct {
	from  io.ReadCloser
	keep  *lines
	ended func()
}

func (k *kept) Read(b []byte) (int, error) {
	n, err := k.from.Read(b)
	k.keep.add(b[:n])
	if err != nil {
		k.ended()
	}
	return n, err
}

func (k *kept) Close() error {
	k.ended()
	return k.from.Close()
}

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
