package lab

func identityCells() []cell {
	return []cell{
		{id: "transport-identities", title: "each request has the identity of its own token", expected: "unauthorized_not_equivalent", script: identities},
		{id: "transport-tokens", title: "no token, a wrong one, several, another scheme", expected: "refused_before_dispatch", script: tokens},
		{id: "transport-state-elsewhere", title: "request state is brought with another call than its own", expected: "refused_before_any_effect", script: stateElsewhere},
	}
}

// identities has bob try everything at alice's operation. All that he may learn is
// that an id is taken, and only by trying to write. Alice finds what she has done.
func identities(p *play) {
	const bob = "bob"
	s := p.start("server")
	state := commit(s)
	s.send(status(12))
	s.send(call{id: 13, tool: statusTool, by: bob})
	s.send(call{id: 14, state: state, body: alpha, by: bob})
	bobs := s.send(call{id: 15, by: bob}).state
	s.send(call{id: 16, state: bobs, body: alpha, by: bob})
	s.send(call{id: 17, state: bobs, body: beta, by: bob})
	s.send(call{id: 18, tool: "fence_operation", by: bob})
	s.send(call{id: 19, tool: "list_my_operations", operation: "-", by: bob})
	s.send(call{id: 20, tool: statusTool, by: bob})
	s.send(status(21))
	s.send(call{id: 22, tool: "list_my_operations", operation: "-"})
	s.stop()
}

// stateElsewhere brings good state with other arguments and under another id, while
// there is no record that such a call could be held against, and then its own.
func stateElsewhere(p *play) {
	s := p.start("server")
	state := s.send(call{id: 10}).state
	s.send(call{id: 11, title: "another title", state: state, body: alpha})
	s.send(call{id: 12, mode: partial, state: state, body: alpha})
	s.send(call{id: 13, operation: p.op + "-other", title: "title of " + p.op, state: state, body: alpha})
	s.send(status(14))
	s.send(call{id: 15, tool: statusTool, operation: p.op + "-other"})
	s.send(call{id: 16, state: state, body: alpha})
	s.stop()
}

// tokens asks and writes as those whom nobody knows, before and after there is
// something to find.
func tokens(p *play) {
	s := p.start("server")
	state := s.send(call{id: 10}).state
	n := 10
	try := func() {
		for _, by := range []string{"-", "mallory", "alice+bob", "alice+alice", "Basic:alice", "bearer:mallory"} {
			s.send(call{id: n + 1, tool: statusTool, by: by})
			s.send(call{id: n + 2, state: state, body: alpha, by: by})
			n += 2
		}
	}
	try()
	s.send(status(90))
	s.send(call{id: 91, state: state, body: alpha, by: "bearer:alice"}) // the name of a scheme has no case
	try()
	s.send(call{id: 92, tool: statusTool, by: "BEARER:alice"})
	s.stop()
}
