package lab

// clockCells start servers later, or with a clock that is wrong.
func clockCells() []cell {
	return []cell{
		faultCell("answered-too-late", "a question is answered when the time to write has passed", "write_rejected_no_effect", answeredTooLate),
		faultCell("asked-again", "a question is asked again because its answer is missing, which lengthens nothing", "write_rejected_no_effect", askedAgain),
		faultCell("clock-back", "the clock is set back between restarts", "expired_stays_expired", clockBack),
		faultCell("clock-ahead", "the clock is further ahead than can be believed", "refused_and_time_not_adopted", clockAhead),
	}
}

// askedAgain leaves the answer out shortly before the request state ends. What is
// asked again then ends when the first state does.
func askedAgain(p *play) {
	deadlines := []string{"--authority-ttl", "2000s", "--replay-retention", "3000s"}
	s := p.start("server", deadlines...)
	state := s.send(call{id: 10}).state
	s.stop()
	s = p.start("later", append(deadlines, at(500)...)...)
	again := s.send(call{id: 11, state: state, answers: "{}"}).state
	s.stop()
	s = p.start("too-late", append(deadlines, at(700)...)...)
	s.send(call{id: 12, state: again, body: alpha})
	s.send(status(13))
	s.stop()
}

// answeredTooLate brings the first continuation at its deadline, to a server that
// gives its own operations more time: there is no record to remember the deadline.
func answeredTooLate(p *play) {
	s := p.start("server", "--authority-ttl", "60s")
	state := s.send(call{id: 10}).state
	s.stop()
	s = p.start("at-the-deadline", at(60)...)
	s.send(call{id: 20, state: state, body: alpha})
	s.send(status(21))
	s.stop()
}

func clockBack(p *play) {
	short := []string{"--authority-ttl", "60s", "--replay-retention", "90s"}
	s := p.start("server", short...)
	first := rounds(s, atomic)
	s.stop()
	s = p.start("later", append(short, at(120)...)...)
	second := s.send(p.next(20)).state
	s.send(continued(21, p.next(0), second))
	s.send(answered(22, atomic, first))
	s.stop()
	s = p.start("set-back", short...)
	s.send(answered(30, atomic, first))
	s.send(status(31))
	third := s.send(call{id: 32, operation: p.op + "-third"}).state
	s.send(continued(33, call{operation: p.op + "-third"}, third))
	s.send(continued(34, p.next(0), second))
	s.stop()
}

func clockAhead(p *play) {
	s := p.start("server")
	first, second := both(p, s)
	s.stop()
	s = p.start("ahead", append(at(7200), "--max-clock-jump", "1h")...)
	s.send(status(30))
	s.send(answered(31, atomic, first))
	s.send(continued(32, p.next(0), second))
	s.send(call{id: 33, tool: "get_operation_status", operation: p.op + "-next"})
	s.stop()
	s = p.start("corrected", at(60)...)
	s.send(answered(40, atomic, first))
	s.send(continued(41, p.next(0), second))
	s.stop()
}
