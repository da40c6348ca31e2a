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

	"mcpreplay/internal/evidence"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Process is a server as a child process, with every byte of its standard input and
// output in a transcript. It is an mcp.Transport.
type Process struct {
	cmd        *exec.Cmd
	rec        *evidence.Recorder
	stdin      io.WriteCloser
	stdout     io.Reader
	toServer   *lines
	fromServer *lines
	ended      chan struct{} // the server's output has been read to its end

	spoil func(io.ReadCloser) io.ReadCloser // what its output goes through, or nil
}

// NewProcess prepares a server: the binary at exe, run in dir. Its stderr goes to the
// writer given.
func NewProcess(rec *evidence.Recorder, stderr io.Writer, dir, exe string, args ...string) *Process {
	cmd := exec.Command(exe, args...)
	cmd.Dir, cmd.Stderr = dir, stderr
	p := &Process{cmd: cmd, rec: rec, ended: make(chan struct{})}
	p.toServer, p.fromServer = &lines{rec: rec, dir: evidence.Sent}, &lines{rec: rec, dir: evidence.Received}
	return p
}

// start runs the process, which is spoken to over transport.
func (p *Process) start(transport string) error {
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.spoil != nil {
		stdout = p.spoil(stdout)
	}
	p.rec.Event(evidence.Event{Kind: evidence.EventStart, Transport: transport, Args: p.cmd.Args[1:]})
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	p.stdin = &sent{to: stdin, keep: p.toServer}
	p.stdout = &kept{from: stdout, keep: p.fromServer, ended: sync.OnceFunc(func() { close(p.ended) })}
	return nil
}

// Connect starts the process. It implements mcp.Transport.
func (p *Process) Connect(ctx context.Context) (mcp.Connection, error) {
	if err := p.start("stdio"); err != nil {
		return nil, err
	}
	t := &mcp.IOTransport{Reader: p.stdout.(io.ReadCloser), Writer: p.stdin}
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
	return p.wait(limit)
}

// wait waits until the process has ended by itself.
func (p *Process) wait(limit time.Duration) (int, error) {
	overdue := time.AfterFunc(limit, func() { p.cmd.Process.Kill() })
	select { // Wait closes the pipe that is still being read
	case <-p.ended:
	case <-time.After(limit + time.Second): // nobody reads it
	}
	err := p.cmd.Wait()
	stopped := overdue.Stop()
	p.toServer.finish()
	p.fromServer.finish()
	var exit *exec.ExitError
	switch {
	case !stopped:
		return 0, fmt.Errorf("the server did not end within %v", limit)
	case err != nil && !errors.As(err, &exit):
		return 0, err
	}
	code := p.cmd.ProcessState.ExitCode()
	p.rec.Event(evidence.Event{Kind: evidence.EventExit, Code: &code})
	return code, nil
}

// kill ends the process as nothing can refuse.
func (p *Process) kill() error {
	p.rec.Event(evidence.Event{Kind: evidence.EventKill})
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) { // it was killed at a reply
		err = nil
	}
	<-p.ended
	p.cmd.Wait() // says that it was killed
	p.toServer.finish()
	p.fromServer.finish()
	return err
}

// lines writes whole lines of one direction to the transcript.
type lines struct {
	rec  *evidence.Recorder
	dir  string
	seen func(line []byte) // or nil

	mu   sync.Mutex
	rest []byte
}

func (l *lines) add(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		if end < 0 {
			return
		}
		l.rec.Line(l.dir, l.rest[:end], false)
		if l.seen != nil {
			l.seen(l.rest[:end])
		}
		l.rest = l.rest[end+1:]
	}
}

// finish writes what was cut off.
func (l *lines) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.rest) > 0 {
		l.rec.Line(l.dir, l.rest, true)
		l.rest = nil
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
