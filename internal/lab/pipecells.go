package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// pipeCells are the mishaps of standard input and output.
func pipeCells() []cell {
	all := []cell{
		{id: "transport-cut-line", title: "the server's output ends in the middle of the reply", expected: "reconciled_applied_one_effect", script: cutLine},
		{id: "transport-cut-line-consumer", title: "the server's output ends in the middle of the reply, and a consumer asks", expected: "unknown_then_authoritative_applied_no_redispatch", script: cutLineConsumer},
		{id: "transport-input-closed", title: "the client closes its end right after the call", expected: "answered_and_recorded_before_the_end", script: inputClosed},
		{id: "transport-garbage", title: "a line that is no message, between the rounds", expected: "refused_and_nothing_else_changed", script: garbage},
		{id: "transport-oversized", title: "a line beyond the limit, between the rounds", expected: "refused_and_nothing_else_changed", script: oversized},
		{id: "transport-overdue", title: "the reply comes after the client has stopped waiting", expected: "reconciled_applied_one_effect", script: overdue},
		{id: "transport-overdue-consumer", title: "the reply comes after the consumer has stopped waiting", expected: "unknown_then_authoritative_applied_no_redispatch", script: overdueConsumer},
	}
	all = append(all, cell{
		id: "transport-restored-control", title: "an older copy of the ledger is put back and the operation fenced there: its consumer is not taken in",
		expected: "ledger", control: true, script: restored,
	})
	for i := range all {
		all[i].transport = overStdio
	}
	return all
}

// cutter passes lines on, up to the middle of the first that contains what it
// looks for. Then the other end is closed.
type cutter struct {
	from io.ReadCloser
	in   *bufio.Reader
	at   string
	rest []byte
	end  bool
}

func cutAt(text string) func(io.ReadCloser) io.ReadCloser {
	return func(from io.ReadCloser) io.ReadCloser {
		return &cutter{from: from, in: bufio.NewReader(from), at: text}
	}
}

func (c *cutter) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		if c.end {
			return 0, io.EOF
		}
		line, err := c.in.ReadBytes('\n')
		if bytes.Contains(line, []byte(c.at)) {
			line, c.end = line[:len(line)/2], true
			c.from.Close()
		}
		if c.rest = line; len(line) == 0 {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *cutter) Close() error { return c.from.Close() }

// done is in the reply to a continuation alone.
const done = `"created 1"`

func cutLine(p *play) {
	p.spoil = cutAt(done)
	s := p.start("server")
	p.spoil = nil
	state := commit(s)
	s.stop()
	s = p.start("restart")
	s.send(status(12))
	s.send(call{id: 13, state: state, body: alpha})
	s.stop()
}

// inputClosed ends the session while its call may not even have been read.
func inputClosed(p *play) {
	s := p.start("server")
	state := s.send(call{id: 10}).state
	wait := s.begin(call{id: 11, state: state, body: alpha})
	s.proc.stdin.Close()
	wait()
	s.wait()
	s = p.start("restart")
	s.send(status(12))
	s.stop()
}

func garbage(p *play) {
	s := p.start("server")
	state := s.send(call{id: 10}).state
	s.complaint(func() { s.write([]byte(`this is no message`)) })
	s.complaint(func() { s.write([]byte(`{"jsonrpc":"2.0","id":11,"method":"tools/call","params":{"name":"create_gu`)) })
	s.send(call{id: 12, state: state, body: alpha})
	s.send(status(13))
	s.stop()
}

func oversized(p *play) {
	s := p.start("server")
	state := s.send(call{id: 10}).state
	s.send(call{id: 11, state: state, body: strings.Repeat("a", 4<<20)})
	s.send(call{id: 12, state: state, body: alpha})
	s.send(status(13))
	s.stop()
}

// complaint waits for an error that belongs to no request.
func (s *server) complaint(about func()) {
	came := make(chan json.RawMessage, 1)
	s.mu.Lock()
	s.waiting["null"] = came
	s.mu.Unlock()
	about()
	select {
	case <-came:
	case <-s.gone:
	}
}

// overdue holds the reply behind the commit. The client asks in the meantime.
func overdue(p *play) {
	s := p.start("server", "--fault", "hold-after-commit")
	state := s.send(call{id: 10}).state
	wait := s.begin(call{id: 11, state: state, body: alpha})
	s.reached()
	s.send(status(12))
	s.release()
	wait()
	s.send(call{id: 13, state: state, body: alpha})
	s.stop()
}

// spawn runs a server for the SDK's client, which speaks to it over its pipes.
func (p *play) spawn(name string, flags ...string) *server {
	s := &server{p: p, name: name, rec: p.recorder(name), said: &tail{seen: make(chan struct{})}}
	s.proc = NewProcess(s.rec, s.said, p.dir, p.exe, append([]string{"lab", "serve"}, p.flags(flags)...)...)
	s.proc.spoil = p.spoil
	return s
}

// leave ends a session as its user does, and waits for the server. A server that
// was never connected to was never started.
func (p *play) leave(s *server, want int) {
	code, err := s.proc.Stop(endLimit)
	if err == nil && code != want {
		err = errors.New("it did not end as it should")
	}
	if err != nil {
		p.fail("%s: %w: %s", s.name, err, s.said)
	}
}

func cutLineConsumer(p *play) {
	p.spoil = cutAt(done)
	s := p.spawn("server")
	p.spoil = nil
	u := p.user()
	session := u.session(s.proc)
	u.call(p.ctx, s.name, session)
	p.leave(s, 0)
	session.Close()
	again := p.spawn("restart")
	session = u.session(again.proc)
	u.reconcile(again.name, session)
	p.leave(again, 0)
	session.Close()
}

func overdueConsumer(p *play) {
	held, err := listenProbe()
	p.must(err)
	p.atEnd(func() error { held.close(); return nil })
	s := p.spawn("server", "--fault", "hold-after-commit", "--probe", held.address())
	s.probe = held
	cancelled := make(chan struct{})
	s.proc.toServer.seen = func(line []byte) {
		if bytes.Contains(line, []byte("notifications/cancelled")) {
			close(cancelled)
		}
	}
	u := p.user()
	session := u.session(s.proc)
	ctx, giveUp := context.WithCancel(p.ctx)
	defer giveUp()
	go func() {
		s.reached()
		giveUp()
	}()
	u.call(ctx, s.name, session, func() {
		select { // the SDK says so when it finds the time
		case <-cancelled:
		case <-p.ctx.Done():
		}
	})
	u.reconcile(s.name, session)
	s.release()
	p.leave(s, 0)
	session.Close()
}

// restored puts a copy of the ledger back that is older than what the client has
// seen. There its operation is absent and can be fenced, which would settle it as
// not applied: wrongly, for it was applied in the ledger that is gone.
func restored(p *play) {
	const copied, lost = "copied.sqlite3", "lost.sqlite3"
	p.start("maker").stop()
	p.act("copies the file", func() error {
		text, err := os.ReadFile(p.store())
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(p.dir, copied), text, 0o600)
	})
	s := p.start("server")
	for n := range 2 {
		c := call{id: 10 + 2*n, operation: fmt.Sprintf("%s-before-%d", p.op, n+1)}
		s.send(continued(c.id+1, c, s.send(c).state))
	}
	s.stop()
	crash := p.spawn("crash", "--fault", "drop-after-commit")
	u := p.user()
	session := u.session(crash.proc)
	u.call(p.ctx, crash.name, session)
	p.leave(crash, 70)
	session.Close()
	p.start("keeper").stop() // which takes the log into the file
	p.rename("puts the copy back", storeName, lost, copied, storeName)
	s = p.start("fencer")
	s.send(call{id: 30, tool: "fence_operation"})
	s.stop()
	again := p.spawn("restored")
	session = u.session(again.proc)
	u.reconcile(again.name, session)
	p.leave(again, 0)
	session.Close()
}
