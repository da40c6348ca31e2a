package lab

import (
	"encoding/json"

	"mcpreplay/internal/evidence"
)

// scripts are the twelve cases: what is done. What must be seen is in their
// stories. A legacy script is there where the case makes sense for a client that
// is asked in the middle of its call and never sees request state.
var scripts = []struct {
	number, title, expected string
	script, legacy          func(*play)
	control                 string // what the same steps show without a guard
}{
	{"01", "the same continuation twice", "stored_result_one_effect", case01, legacy01, "duplicate_effect"},
	{"02", "a first round alone", "unknown_no_retry", case02, legacy02, "nobody_can_tell"},
	{"03", "reply lost after the commit, status, then an exact repeat", "reconciled_applied_one_effect", case03, legacy03, "duplicate_effect_after_crash"},
	{"04", "the same state with other answers", "conflict_before_second_effect", case04, legacy04, "changed_input_dispatched"},
	{"05", "another state for the same operation, and a changed one", "conflict_before_second_effect", case05, nil, "changed_state_dispatched"},
	{"06", "another principal with the state, then with the id", "unauthorized_not_equivalent", case06, legacy06, "duplicate_effect"},
	{"07", "a repeat after authority has ended", "write_rejected_observe_without_fresh_write_authority", case07, legacy07, "duplicate_effect"},
	{"08", "two identical attempts inside the store at once", "joined_one_apply_one_replay_one_effect", case08, legacy08, "duplicate_effect"},
	{"09", "crash after the commit, then status alone", "unknown_then_authoritative_applied_no_redispatch", case09, legacy09, "nobody_can_tell"},
	{"10", "repeats after retention has ended", "valid_token_rejected_after_retention_tombstone_retained", case10, legacy10, "duplicate_effect"},
	{"11", "answers without their state", "unsupported_rejected_no_effect", case11, nil, "stripped_state_dispatched"},
	{"12", "a partial effect whose compensation fails, twice", "durable_partial_no_first_effect_replay", case12, legacy12, "duplicate_effect"},
}

func caseCells() (all []cell) {
	for _, s := range scripts {
		c := cell{suite: SuiteCases, title: s.title, expected: s.expected, op: "case-" + s.number, protocol: evidence.ProtocolModern, script: s.script}
		for _, transport := range []string{overStdio, overHTTP} {
			c.id, c.transport = s.number+"-"+transport, transport
			all = append(all, c)
		}
		if s.legacy != nil {
			l := c
			l.id, l.transport, l.protocol, l.script = s.number+"-legacy", overStdio, evidence.ProtocolLegacy, s.legacy
			all = append(all, l)
		}
		control := c
		control.id, control.transport, control.control, control.unguarded = s.number+"-control", overStdio, true, true
		control.title, control.expected = s.title+", without a guard", s.control
		all = append(all, control)
	}
	return append(all,
		cell{
			id: "newid-control", suite: SuiteCases, title: "a client that mints a new id for its retry", expected: "duplicate_effect_under_new_id",
			control: true, transport: overStdio, protocol: evidence.ProtocolModern, op: "case-new", script: newIdentity,
		},
		cell{
			id: "mute-legacy", suite: SuiteCases, title: "an older client over HTTP, where it cannot be asked", expected: "refused_before_any_effect",
			transport: overHTTP, protocol: evidence.ProtocolLegacy, op: "case-mute", script: muteLegacy,
		})
}

const alpha, beta = "alpha", "beta"

func status(id int) call { return call{id: id, tool: "get_operation_status"} }

// commit makes the two rounds of the usual operation, as requests 10 and 11.
func commit(s *server) (state string) {
	state = s.send(call{id: 10}).state
	s.send(call{id: 11, state: state, body: alpha})
	return state
}

func case01(p *play) {
	s := p.start("server")
	state := commit(s)
	s.send(call{id: 12, state: state, body: alpha})
	s.stop()
}

func case02(p *play) {
	s := p.start("server")
	s.send(call{id: 10})
	s.send(status(11))
	s.stop()
}

func case03(p *play) {
	state := crash(p)
	s := p.start("restart")
	s.send(status(12))
	s.send(call{id: 13, state: state, body: alpha})
	s.stop()
}

// crash loses the reply to the continuation: the server ends after its commit.
func crash(p *play) (state string) {
	s := p.start("crash", "--fault", "drop-after-commit")
	state = commit(s)
	s.wait()
	return state
}

func case04(p *play) {
	s := p.start("server")
	state := commit(s)
	s.send(call{id: 12, state: state, body: beta})
	s.stop()
}

func case05(p *play) {
	s := p.start("server")
	first, second := s.send(call{id: 10}).state, s.send(call{id: 11}).state
	s.send(call{id: 12, state: first, body: alpha})
	s.send(call{id: 13, state: second, body: alpha})
	s.send(call{id: 14, state: changed(second), body: alpha})
	s.stop()
}

// changed is request state with the character in its middle changed.
func changed(state string) string {
	b := []byte(state)
	if len(b) == 0 {
		return "changed"
	}
	if m := len(b) / 2; b[m] == 'A' {
		b[m] = 'B'
	} else {
		b[m] = 'A'
	}
	return string(b)
}

func case06(p *play) {
	s := p.start("server")
	state := commit(s)
	by := "bob"
	if p.transport == overStdio { // the principal is the process's
		s.stop()
		s, by = p.start("server-of-bob", "--principal", "bob"), ""
	}
	s.send(call{id: 12, state: state, body: alpha, by: by})
	bobs := s.send(call{id: 13, by: by}).state
	s.send(call{id: 14, state: bobs, body: alpha, by: by})
	s.send(call{id: 15, tool: "get_operation_status", by: by})
	s.stop()
}

func case07(p *play) {
	authority := []string{"--authority-ttl", "60s"}
	s := p.start("server", authority...)
	state := commit(s)
	s.stop()
	s = p.start("at-the-deadline", append(authority, at(60)...)...) // which is over when it is reached
	s.send(call{id: 20, state: state, body: alpha})
	s.stop()
	s = p.start("later", append(authority, at(120)...)...)
	s.send(call{id: 12, state: state, body: alpha})
	s.send(status(13))
	s.send(call{id: 14})
	s.stop()
}

// case08 brings both attempts into the write path at once, and not by luck: one
// waits with its record inserted and not committed, the other has found no record,
// and is let into the store before the first may go on.
func case08(p *play) {
	issuer := p.start("issuer")
	state := issuer.send(call{id: 10}).state
	issuer.stop()
	again := call{id: 21, state: state, body: alpha}
	if p.unguarded { // it has no store to meet in
		a, b := p.start("worker-a"), p.start("worker-b")
		a.send(again)
		again.id = 22
		b.send(again)
		a.stop()
		b.stop()
		return
	}
	a := p.start("worker-a", "--fault", "hold-after-ledger-insert")
	b := p.start("worker-b", "--fault", "hold-before-write")
	first := a.begin(again)
	a.reached()
	again.id = 22
	second := b.begin(again)
	b.reached()
	b.release()
	a.release()
	first()
	second()
	a.stop()
	b.stop()
}

func case09(p *play) {
	crash(p)
	s := p.start("restart")
	s.send(status(12))
	s.stop()
}

func case10(p *play) {
	deadlines := []string{"--authority-ttl", "360s", "--replay-retention", "60s"}
	s := p.start("server", deadlines...)
	state := commit(s)
	s.stop()
	s = p.start("at-the-deadline", append(deadlines, at(60)...)...)
	s.send(call{id: 20, state: state, body: alpha})
	s.stop()
	s = p.start("later", append(deadlines, at(120)...)...)
	s.send(call{id: 12, state: state, body: alpha})
	fresh := s.send(call{id: 13}).state
	s.send(call{id: 14, state: fresh, body: alpha})
	s.stop()
	s = p.start("much-later", append(deadlines, at(660)...)...)
	s.send(call{id: 15, state: state, body: alpha})
	s.stop()
}

func case11(p *play) {
	s := p.start("server")
	s.send(call{id: 10})
	s.send(call{id: 11, body: alpha})
	s.send(call{id: 12, operation: "case-11-new"})
	s.stop()
}

func case12(p *play) {
	s := p.start("server")
	state := s.send(call{id: 10, mode: "partial"}).state
	s.send(call{id: 11, mode: "partial", state: state, body: alpha})
	s.send(call{id: 12, mode: "partial", state: state, body: alpha})
	s.send(status(13))
	s.stop()
}

// newIdentity is the client that no server can protect: it loses a reply and does
// the same work under another name.
func newIdentity(p *play) {
	crash(p)
	s := p.start("restart")
	again := call{id: 12, operation: "case-new-again", title: "title of " + p.op}
	again.state = s.send(again).state
	again.id, again.body = 13, alpha
	s.send(again)
	s.stop()
}

// answering has the server's own questions answered.
func (s *server) answering(body string) *server {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAsk = func(id json.RawMessage) {
		text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "result": accept(body)})
		if err == nil {
			s.write(text)
		}
	}
	return s
}

func legacy01(p *play) {
	s := p.start("server").answering(alpha)
	s.send(call{id: 10})
	s.send(call{id: 11})
	s.stop()
}

// legacy02 leaves in the middle of its call, with the question unanswered.
func legacy02(p *play) {
	s := p.start("server")
	asked := make(chan struct{})
	s.mu.Lock()
	s.onAsk = func(json.RawMessage) { close(asked) }
	s.mu.Unlock()
	s.begin(call{id: 10})
	select {
	case <-asked:
	case <-s.gone:
	}
	s.send(status(11))
	s.kill()
}

func legacy03(p *play) {
	s := p.start("crash", "--fault", "drop-after-commit").answering(alpha)
	s.send(call{id: 10})
	s.wait()
	s = p.start("restart").answering(alpha)
	s.send(status(11))
	s.send(call{id: 12})
	s.stop()
}

func legacy04(p *play) {
	s := p.start("server").answering(alpha)
	s.send(call{id: 10})
	s.send(call{id: 11, title: "another title"})
	s.stop()
}

func legacy06(p *play) {
	s := p.start("server").answering(alpha)
	s.send(call{id: 10})
	s.stop()
	s = p.start("server-of-bob", "--principal", "bob").answering(alpha)
	s.send(call{id: 11})
	s.send(status(12))
	s.stop()
}

func legacy07(p *play) {
	authority := []string{"--authority-ttl", "60s"}
	s := p.start("server", authority...).answering(alpha)
	s.send(call{id: 10})
	s.stop()
	s = p.start("later", append(authority, at(120)...)...).answering(alpha)
	s.send(call{id: 11})
	s.send(status(12))
	s.stop()
}

func legacy08(p *play) {
	a := p.start("worker-a", "--fault", "hold-after-ledger-insert").answering(alpha)
	b := p.start("worker-b", "--fault", "hold-before-write").answering(alpha)
	first := a.begin(call{id: 21})
	a.reached()
	second := b.begin(call{id: 22})
	b.reached()
	b.release()
	a.release()
	first()
	second()
	a.stop()
	b.stop()
}

func legacy09(p *play) {
	s := p.start("crash", "--fault", "drop-after-commit").answering(alpha)
	s.send(call{id: 10})
	s.wait()
	s = p.start("restart")
	s.send(status(11))
	s.stop()
}

func legacy10(p *play) {
	deadlines := []string{"--authority-ttl", "360s", "--replay-retention", "60s"}
	s := p.start("server", deadlines...).answering(alpha)
	s.send(call{id: 10})
	s.stop()
	s = p.start("later", append(deadlines, at(120)...)...).answering(alpha)
	s.send(call{id: 11})
	s.send(status(12))
	s.stop()
}

func legacy12(p *play) {
	s := p.start("server").answering(alpha)
	s.send(call{id: 10, mode: "partial"})
	s.send(call{id: 11, mode: "partial"})
	s.send(status(12))
	s.stop()
}

func muteLegacy(p *play) {
	s := p.start("server")
	s.send(call{id: 10})
	s.send(status(11))
	s.stop()
}
