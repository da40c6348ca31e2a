package lab

import "fmt"

// openCells have two processes open a file at once.
func openCells() []cell {
	return []cell{
		faultCell("open-twice", "two processes make the file at once", "one_ledger_one_effect_each", func(p *play) {
			a, b := p.launch("worker-a"), p.launch("worker-b")
			a.ready()
			b.ready()
			for n, s := range []*server{a, b} {
				c := call{id: 10, operation: fmt.Sprintf("%s-%d", p.op, n+1)}
				c.state = s.send(c).state
				c.id, c.body = 11, alpha
				s.send(c)
			}
			b.send(call{id: 12, tool: "get_operation_status", operation: p.op + "-1"})
			a.send(call{id: 12, tool: "get_operation_status", operation: p.op + "-2"})
			a.stop()
			b.stop()
		}),
		faultCell("open-other-backend", "a process of another backend opens the file in the middle of its first write", "second_backend_refused", func(p *play) {
			s := p.start("server", "--fault", "hold-after-ledger-insert")
			state := s.send(asked(10, atomic)).state
			wait := s.begin(answered(11, atomic, state))
			s.reached()
			p.launch("refused", "--backend", "another").wait()
			s.release()
			wait()
			s.send(status(12))
			s.stop()
		}),
	}
}
