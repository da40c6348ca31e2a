package lab

import (
	"fmt"
	"strings"
)

// fullCells write until no more fits. The limit is one on the size of files, which
// every system has and which needs no right of its own.
func fullCells() []cell {
	return []cell{
		faultCell("disk-full-atomic", "files cannot grow any more, mode atomic", acknowledgedStays, func(p *play) { diskFull(p, atomic) }),
		faultCell("disk-full-partial", "files cannot grow any more, mode partial", acknowledgedStays, func(p *play) { diskFull(p, partial) }),
	}
}

func diskFull(p *play, mode string) {
	body := strings.Repeat("x", 60_000)
	// A renewal takes room too: none comes while a call is tried.
	s := p.start("server", "--max-file-size", "262144", "--wait", "500ms", "--lease", "9s")
	var again []call
	for n := range 4 {
		c := asked(10*(n+1), mode)
		c.operation = fmt.Sprintf("%s-%d", p.op, n+1)
		c.state = s.send(c).state
		c.id, c.body = c.id+1, body
		s.send(c)
		s.send(call{id: c.id + 1, tool: "get_operation_status", operation: c.operation})
		again = append(again, c)
	}
	s.stop()
	s = p.start("restart")
	for _, c := range again {
		s.send(call{id: c.id + 2, tool: "get_operation_status", operation: c.operation})
		c.id += 3
		s.send(c)
	}
	s.stop()
}
