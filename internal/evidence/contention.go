package evidence

import (
	"fmt"
	"slices"
)

// contention tells of two attempts that were in the store at once: one had inserted
// its record and waited, the other had found none and was let in, both before the
// first was let on, and neither was answered before that.
func (c *cell) contention() (facts Facts) {
	holding, letIn := c.stays("after-ledger-insert"), c.stays("before-write")
	for _, a := range c.processes {
		held := holding[a]
		if held == nil {
			continue
		}
		for _, b := range c.processes {
			writing := letIn[b]
			if a == b || writing == nil || held.operation != writing.operation {
				continue
			}
			if held.from < writing.from && writing.to < held.to && c.answered(a, held) && c.answered(b, held) {
				facts = append(facts, fmt.Sprintf("at once in the store: %s and %s, with %s", a.Name, b.Name, held.operation))
			}
		}
	}
	return facts
}

// stay is the time that a process was held at a point.
type stay struct {
	operation string
	from, to  int64
}

func (c *cell) stays(point string) map[*Process]*stay {
	stays := map[*Process]*stay{}
	for _, p := range c.processes {
		stays[p] = p.stay(point)
	}
	return stays
}

func (p *Process) stay(point string) *stay {
	var s *stay
	for _, r := range p.Records {
		switch {
		case r.Event == nil:
		case r.Event.Kind == EventReached && r.Event.Point == point:
			s = &stay{operation: r.Event.Operation, from: r.At}
		case r.Event.Kind == EventRelease && s != nil:
			s.to = r.At
		}
	}
	return s
}

// answered reports whether p was asked for the operation before s ended and
// answered after it.
func (c *cell) answered(p *Process, s *stay) bool {
	return slices.ContainsFunc(c.calls, func(call *Call) bool {
		return call.Process == p && call.Operation() == s.operation && call.At < s.to && call.Reply != nil && call.Reply.At > s.to
	})
}
