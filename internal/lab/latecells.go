package lab

import "mcpreplay/faults"

// lateCells are those of a request that arrives when its client has given it up,
// and has asked: "not yet" must not have been told as "never".
func lateCells() []cell {
	return []cell{
		{id: "transport-late", title: "the request arrives after its client has asked", expected: "unknown_then_authoritative_applied", script: late},
		{id: "transport-late-fenced", title: "the request arrives after its client has fenced it off", expected: "fenced_before_any_effect", script: lateFenced},
	}
}

// giveUpHeld has the continuation held on its way, and its client go.
func giveUpHeld(s *server) *intermediary {
	i := s.between(faults.Reorder, faults.IntermediaryOptions{})
	state := s.send(call{id: 10}).state
	wait := s.begin(call{id: 11, state: state, body: alpha})
	i.await(faults.Held, 1)
	s.giveUp()
	wait()
	i.await(faults.PeerClosed, 1)
	i.struck(1)
	return i
}

func late(p *play) {
	s := p.start("server")
	i := giveUpHeld(s)
	s.send(status(12))
	i.Release()
	i.await(faults.Dropped, 1)
	s.send(status(13))
	s.stop()
}

func lateFenced(p *play) {
	s := p.start("server")
	i := giveUpHeld(s)
	s.send(call{id: 12, tool: "fence_operation"})
	i.Release()
	i.await(faults.Dropped, 1)
	s.send(status(13))
	s.stop()
}
