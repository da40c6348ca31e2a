package lab

import (
	"fmt"
	"net"
	"syscall"
	"time"
)

// stopCells stop what is running, or try to: its client no longer wants it, or the
// process is told to end.
func stopCells() (all []cell) {
	for _, c := range []struct{ mode, point, expected string }{
		{atomic, "before-write", "cancelled_before_any_effect"},
		{atomic, "after-ledger-insert", completed},
		{atomic, "after-issue-insert", completed},
		{atomic, "after-commit", completed},
		{partial, "before-write", "cancelled_before_any_effect"},
		{partial, "after-ledger-insert", completed},
		{partial, "after-issue-insert", completed},
		{partial, "after-partial-first-commit", completed},
		{partial, "after-commit", completed},
	} {
		all = append(all, faultCell("cancel-"+c.point+"-"+c.mode, "the client cancels at "+c.point+", mode "+c.mode, c.expected, func(p *play) {
			cancelled(p, c.mode, c.point)
		}))
	}
	for _, c := range []struct{ mode, point string }{
		{atomic, "before-write"}, {atomic, "after-issue-insert"}, {atomic, "after-commit"},
		{partial, "after-issue-insert"}, {partial, "after-partial-first-commit"},
	} {
		all = append(all, faultCell("terminate-"+c.point+"-"+c.mode, "the process is told to end at "+c.point+", mode "+c.mode, completed, func(p *play) {
			terminated(p, c.mode, c.point)
		}))
	}
	overNet := faultCell("terminate-http", "the process is told to end at after-issue-insert, over HTTP", completed, func(p *play) {
		terminated(p, atomic, "after-issue-insert")
	})
	overNet.transport = overHTTP
	return append(all, overNet,
		faultCell("kill-at-reply", "the process is killed at the moment its reply comes", "acknowledged_stays", killedAtReply),
		faultCell("fence-running", "an operation is fenced while it runs, and when it has ended", "fence_changes_nothing", fencedRunning))
}

// cancelled cancels a call at a point. The reply to what was sent after the
// cancellation shows that it was read, and the write goes on when it was carried out.
func cancelled(p *play, mode, point string) {
	s := p.start("server", "--fault", "hold-"+point)
	state := s.send(asked(10, mode)).state
	s.begin(answered(11, mode, state))
	s.reached()
	s.notify("notifications/cancelled", map[string]any{"requestId": 11, "_meta": s.meta()})
	s.request("80", "tools/list", map[string]any{"_meta": s.meta()}, "")
	if mode == partial && point != "before-write" && point != "after-ledger-insert" {
		s.release() // once it is claimed its context is no longer the request's
	} else {
		s.releaseCancelled()
	}
	s.stop() // which waits for what is running
	recovered(p, mode, state)
}

// killedAtReply kills servers in the very moment in which their replies come: what
// they have acknowledged must be there by then.
func killedAtReply(p *play) {
	const rounds = 5
	operation := func(n int) string { return fmt.Sprintf("%s-%d", p.op, n) }
	for n := range rounds {
		s := p.start(fmt.Sprintf("killed-%d", n+1))
		c := call{id: 10, operation: operation(n + 1)}
		c.state = s.send(c).state
		c.id, c.body = 11, alpha
		s.mu.Lock()
		s.dieAt = "11"
		s.mu.Unlock()
		s.send(c)
		s.kill()
	}
	s := p.start("restart")
	for n := range rounds {
		s.send(call{id: 20 + n, tool: "get_operation_status", operation: operation(n + 1)})
	}
	s.stop()
}

// fencedRunning fences what is too far to be fenced off. A fence that took hold
// would have the client do the work again.
func fencedRunning(p *play) {
	fence := func(id int) call { return call{id: id, tool: "fence_operation"} }
	a, b := p.start("worker-a", "--fault", "hold-after-partial-first-commit"), p.start("worker-b")
	state := a.send(asked(10, partial)).state
	wait := a.begin(answered(11, partial, state))
	a.reached()
	b.send(fence(20))
	a.release()
	wait()
	b.send(fence(21))
	b.send(answered(22, partial, state))
	a.stop()
	b.stop()
}

func terminated(p *play, mode, point string) {
	s := p.start("server", "--fault", "hold-"+point)
	state := s.send(asked(10, mode)).state
	wait := s.begin(answered(11, mode, state))
	s.reached()
	p.act("tells the server to end", func() error { return s.proc.cmd.Process.Signal(syscall.SIGTERM) })
	if p.transport == overHTTP {
		s.deaf()
	}
	s.release()
	wait()
	s.wait()
	recovered(p, mode, state)
}

// deaf waits until the server takes no more connections: it has been told.
func (s *server) deaf() {
	for s.p.ctx.Err() == nil {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			return
		}
		c.Close()
		time.Sleep(time.Millisecond)
	}
}
