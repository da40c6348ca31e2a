package lab

import (
	"slices"

	"mcpreplay/faults"
	"mcpreplay/internal/evidence"
)

func transportCells() []cell {
	all := slices.Concat(mishapCells(), lateCells(), identityCells(), keyCells(), pipeCells())
	for i := range all {
		c := &all[i]
		c.suite, c.protocol, c.op = SuiteTransport, evidence.ProtocolModern, "sent-once"
		if c.transport == "" {
			c.transport = overHTTP
		}
	}
	return all
}

// unguardedTwin is the same script against the server that does its work as often
// as it is asked.
func unguardedTwin(id, title, mechanism string, script func(*play)) cell {
	return cell{id: id + "-control", title: title + ", without a guard", expected: mechanism, control: true, unguarded: true, script: script}
}

// lost are the mishaps after which a client does not know what became of its
// call, with what is true: whether the server ever saw it.
var lost = []struct {
	mishap   faults.Mishap
	title    string
	executed bool
	alone    bool // it needs a connection that was used before
}{
	{faults.DropReply, "the connection closes in place of the reply", true, false},
	{faults.DelayReply, "the reply is held until the client has gone", true, false},
	{faults.CutReply, "half of the reply comes", true, false},
	{faults.Answer401, "401 in place of the reply", true, false},
	{faults.Answer404, "404 in place of the reply", true, false},
	{faults.Answer502, "502 in place of the reply", true, false},
	{faults.Answer503, "503 in place of the reply", true, false},
	{faults.Answer504, "504 in place of the reply", true, false},
	{faults.AnswerHTML, "a web page in place of the reply", true, false},
	{faults.ResetAfterForward, "the connection is reset in place of the reply", true, false},
	{faults.CloseKeptAliveForwarded, "a kept connection closes in place of the reply", true, true},
	{faults.ResetBeforeBody, "the connection is reset before the body of the request", false, false},
	{faults.ResetAfterBody, "the connection is reset after the request, which goes no further", false, false},
	{faults.CloseKeptAlive, "a kept connection closes after the request, which goes no further", false, true},
}

func mishapCells() (all []cell) {
	for _, m := range lost {
		id := "transport-" + string(m.mishap)
		raw, real := "reconciled_applied_one_effect", "unknown_then_authoritative_applied_no_redispatch"
		if !m.executed {
			raw, real = "unknown_then_exact_repeat_applied_one_effect", "unknown_stays_unknown_no_redispatch"
		}
		script := func(p *play) { loseRaw(p, m.mishap, m.alone) }
		all = append(all,
			cell{id: id, title: m.title, expected: raw, script: script},
			cell{id: id + "-consumer", title: m.title + ", and a consumer asks", expected: real, script: func(p *play) { loseConsumer(p, m.mishap) }})
		if m.mishap == faults.DropReply {
			all = append(all, unguardedTwin(id, m.title, "duplicate_effect", script))
		}
	}
	all = append(all, cell{
		id: "transport-guess-control", title: "a client that takes the error of a lost reply for a failure", expected: "guessed_outcome", control: true, script: guess,
	})
	return append(all, alteringCells()...)
}

// selecting is what a mishap strikes: the continuation.
func selecting(m faults.Mishap) faults.IntermediaryOptions {
	if m == faults.ResetBeforeBody {
		return faults.IntermediaryOptions{Selects: second()}
	}
	return faults.IntermediaryOptions{}
}

// loseRaw loses the reply to the continuation, asks what became of it, and repeats
// it exactly.
func loseRaw(p *play, m faults.Mishap, kept bool) {
	s := p.start("server")
	i := s.between(m, selecting(m))
	s.keep = kept
	state := s.send(call{id: 10}).state
	again := call{id: 11, state: state, body: alpha}
	wait := s.begin(again)
	if m == faults.DelayReply {
		i.await(faults.Held, 1)
		s.giveUp()
		i.await(faults.Dropped, 1)
	}
	wait()
	i.struck(1)
	s.send(status(12))
	again.id = 13
	s.send(again)
	s.stop()
}

// alteringCells are those whose server sees other requests than the client sent.
func alteringCells() (all []cell) {
	for _, m := range []struct {
		mishap                      faults.Mishap
		title, raw, real, mechanism string
		script                      func(*play)
	}{
		{faults.StripState, "request state is taken out on the way", "unsupported_rejected_no_effect", "refused_no_effect", "stripped_state_dispatched", strip},
		{faults.DuplicateRequest, "the request arrives twice", "stored_result_one_effect", "stored_result_one_effect", "duplicate_effect", duplicate},
		{faults.DuplicateConcurrent, "the request arrives twice at once", "joined_one_apply_one_replay_one_effect", "joined_one_apply_one_replay_one_effect", "", duplicateAtOnce},
		{faults.Reorder, "a repeat overtakes its original", "stored_result_one_effect", "", "duplicate_effect", reorder},
	} {
		id := "transport-" + string(m.mishap)
		all = append(all, cell{id: id, title: m.title, expected: m.raw, script: m.script})
		if m.mechanism != "" { // a server without a ledger cannot be held where it would ask it
			all = append(all, unguardedTwin(id, m.title, m.mechanism, m.script))
		}
		if m.real != "" {
			all = append(all, cell{id: id + "-consumer", title: m.title + ", from a consumer", expected: m.real, script: func(p *play) { loseConsumer(p, m.mishap) }})
		}
	}
	return all
}

// strip loses the request state of the continuation. It is good for an exact
// repeat afterwards.
func strip(p *play) {
	s := p.start("server")
	i := s.between(faults.StripState, faults.IntermediaryOptions{})
	state := s.send(call{id: 10}).state
	s.send(call{id: 11, state: state, body: alpha})
	i.struck(1)
	s.send(status(12))
	if !p.unguarded { // it has done its work already
		s.send(call{id: 13, state: state, body: alpha})
	}
	s.stop()
}

func duplicate(p *play) {
	s := p.start("server")
	i := s.between(faults.DuplicateRequest, faults.IntermediaryOptions{})
	commit(s)
	i.struck(1)
	if !p.unguarded {
		s.send(status(12))
	}
	s.stop()
}

func duplicateAtOnce(p *play) {
	s := p.start("server", atOnce...)
	i := s.between(faults.DuplicateConcurrent, faults.IntermediaryOptions{})
	go i.overlap(s)
	commit(s)
	i.struck(1)
	s.send(status(12))
	s.stop()
}

// atOnce are the flags of a server that has one request wait for another.
var atOnce = []string{"--fault", "hold-before-write"}

// overlap holds whichever of the two requests is first, before it asks the ledger,
// until the other has been sent too.
func (i *intermediary) overlap(s *server) {
	s.reached()
	i.sent(3) // the first round, and both
	s.release()
}

// reorder holds the continuation until an exact repeat of it has been answered.
func reorder(p *play) {
	s := p.start("server")
	i := s.between(faults.Reorder, faults.IntermediaryOptions{})
	state := s.send(call{id: 10}).state
	first := s.begin(call{id: 11, state: state, body: alpha})
	i.await(faults.Held, 1)
	s.send(call{id: 12, state: state, body: alpha})
	first()
	i.struck(2)
	if !p.unguarded {
		s.send(status(13))
	}
	s.stop()
}
