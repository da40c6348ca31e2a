package lab

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"mcpreplay/faults"
	"mcpreplay/internal/evidence"
)

// server is a real server process with the lab's own client, which writes what it
// is told to, byte for byte, and remembers nothing.
type server struct {
	p     *play
	name  string
	proc  *Process
	rec   *evidence.Recorder
	said  *tail
	probe *probe
	addr  string // over HTTP; an intermediary may stand there

	silent bool // what is on the wire is recorded elsewhere
	keep   bool // one connection serves for all requests, as long as it can

	mu      sync.Mutex
	conns   int
	conn    net.Conn // the last one
	waiting map[string]chan json.RawMessage
	gone    chan struct{} // closed when the server's output has ended
	ended   bool

	dieAt string                   // the reply at which the server is killed
	onAsk func(id json.RawMessage) // a request of the server; nil: it is left unanswered
}

// start runs a server of the cell, with flags beside the usual ones, and waits
// until it serves.
func (p *play) start(name string, flags ...string) *server {
	s := p.launch(name, flags...)
	s.ready()
	return s
}

// launch runs a server and does not wait until it serves: it may never.
func (p *play) launch(name string, flags ...string) *server {
	s := &server{
		p: p, name: name, rec: p.recorder(name), said: &tail{seen: make(chan struct{})},
		waiting: map[string]chan json.RawMessage{}, gone: make(chan struct{}),
	}
	for i := 0; i+1 < len(flags); i += 2 {
		if flags[i] == "--fault" && strings.Contains(flags[i+1], string(faults.Hold)+"-") {
			var err error
			s.probe, err = listenProbe()
			p.must(err)
			p.atEnd(func() error { s.probe.close(); return nil })
			flags = append(flags, "--probe", s.probe.address())
			break
		}
	}
	args := append([]string{"lab", "serve"}, p.flags(flags)...)
	s.proc = NewProcess(s.rec, s.said, p.dir, p.exe, args...)
	s.proc.spoil = p.spoil
	p.must(s.proc.start(p.transport))
	p.mu.Lock()
	p.servers = append(p.servers, s)
	p.mu.Unlock()
	go s.read()
	return s
}

// ready returns when the server answers its first request, which is tools/list.
func (s *server) ready() {
	if s.p.transport == overHTTP {
		select {
		case <-s.said.seen:
			s.addr = s.said.url
		case <-s.gone:
			s.p.fail("%s: the server ended before it served: %s", s.name, s.said)
		case <-time.After(replyLimit):
			s.p.fail("%s: the server did not serve in time: %s", s.name, s.said)
		}
	}
	if s.p.protocol == evidence.ProtocolLegacy {
		s.handshake()
		return
	}
	if s.request("1", "tools/list", map[string]any{"_meta": s.meta()}, "").raw == nil {
		s.p.fail("%s: the server does not list its tools: %s", s.name, s.said)
	}
}

func (s *server) handshake() {
	params := map[string]any{
		"protocolVersion": evidence.ProtocolLegacy,
		"capabilities":    map[string]any{"elicitation": map[string]any{}},
		"clientInfo":      map[string]any{"name": "lab", "version": "1"},
	}
	if s.request("1", "initialize", params, "").raw == nil {
		s.p.fail("%s: the server does not answer initialize: %s", s.name, s.said)
	}
	if s.p.transport == overStdio { // there is no session to tell it in over stateless HTTP
		s.notify("notifications/initialized", map[string]any{})
	}
}

// stop ends the server as its user does, and waits for it.
func (s *server) stop() {
	if s.p.transport == overHTTP {
		s.proc.cmd.Process.Signal(syscall.SIGTERM)
	} else {
		s.proc.stdin.Close()
	}
	s.wait()
}

// wait waits for the server to end by itself.
func (s *server) wait() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	if _, err := s.proc.wait(endLimit); err != nil {
		s.p.fail("%s: %w: %s", s.name, err, s.said)
	}
}

// kill ends the server as nothing can refuse.
func (s *server) kill() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.p.must(s.proc.kill())
}

// end leaves no process behind.
func (s *server) end() {
	s.mu.Lock()
	ended := s.ended
	s.ended = true
	s.mu.Unlock()
	if !ended {
		if err := s.proc.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return
		}
		s.proc.cmd.Wait()
	}
}

// reached waits until the server is at the point of its fault.
func (s *server) reached() {
	at, err := s.probe.wait(s.p.ctx)
	s.p.must(err)
	s.rec.Event(evidence.Event{Kind: evidence.EventReached, Point: at.Point, Operation: at.Operation})
}

// release lets it go on.
func (s *server) release() { s.goOn(goOn) }

// releaseCancelled lets it go on once the server has carried the cancellation out,
// where there is something to carry out.
func (s *server) releaseCancelled() { s.goOn(goOnCancelled) }

func (s *server) goOn(word string) {
	s.rec.Event(evidence.Event{Kind: evidence.EventRelease})
	s.p.must(s.probe.release(word))
}
