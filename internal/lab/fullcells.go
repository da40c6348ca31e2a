package lab

import (
	"fmt"
	"strings"
)

// fullCells write until no more fits. The limit is one on the size of files, which
// every system has and which needs no right of its own.
func fullCells() []cell {
	return []cell{
		faultCell("disk-full", "files cannot grow any more", acknowledgedStays, diskFull),
	}
}

func diskFull(p *play) {
	body := strings.Repeat("x", 60_000)
	s := p.start("server", "--max-file-size", "262144")
	var again []call
	for n := range 4 {
		c := call{id: 10 * (n + 1), operation: fmt.Sprintf("%s-%d", p.op, n+1)}
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
