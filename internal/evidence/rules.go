package evidence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mcpreplay"
)

// broken are the rules that the evidence breaks, whatever its story: the promises
// of the project, and what must hold between the wire and the database. In a
// control they are what the lab must see.
func (c *cell) broken() Facts {
	facts := Facts(c.faults)
	for _, rule := range []func() Facts{
		c.checkVersions, c.checkOrder, c.checkStates, c.checkLedgers, c.checkFingerprints, c.checkEffects, c.checkDispatch, c.checkReplies, c.checkLeaks, c.checkConclusions, c.checkProofs,
		c.checkStarts, c.checkHeads, c.checkRequests, c.checkQuestions, c.checkOlder, c.checkRecords, c.checkDeadlines, c.checkMarks, c.checkProse, c.checkSteps, c.checkSettlements,
	} {
		facts = append(facts, rule()...)
	}
	return facts
}

func broken(rule, format string, args ...any) string {
	return "! " + rule + " " + fmt.Sprintf(format, args...)
}

// checkVersions: every request says which protocol it speaks, and a process hears
// one.
func (c *cell) checkVersions() (facts Facts) {
	for _, p := range c.processes {
		heard := ""
		for _, call := range c.calls {
			if call.Process != p {
				continue
			}
			v := call.version()
			switch {
			case call.Method == "initialize" && heard == "":
				heard = v
			case v == "" && heard == ProtocolLegacy:
			case v == "":
				facts = append(facts, broken("protocol", "%s: request %s names no version", p.Name, call.ID))
			case heard == "":
				heard = v
			case v != heard:
				facts = append(facts, broken("protocol", "%s: request %s speaks %s after %s", p.Name, call.ID, v, heard))
			}
		}
	}
	return facts
}

// guarded reports whether the process keeps a ledger.
func (p *Process) guarded() bool {
	for _, r := range p.server().Records {
		if r.Event != nil && r.Event.Kind == EventStart && r.Event.has("--unguarded") {
			return false
		}
	}
	return true
}

// checkStates: what a guarded server sealed opens, and is about the very call.
func (c *cell) checkStates() (facts Facts) {
	for _, t := range c.tokens {
		if !t.call.Process.guarded() {
			continue
		}
		name := t.call.Process.Name + ": " + c.labels[t.text]
		s, err := openState(ring(StateSecret), t.text)
		if err != nil {
			facts = append(facts, broken("state", "%s: %v", name, err))
			continue
		}
		id := t.call.Operation()
		switch {
		case id != "" && s.Operation != id:
			facts = append(facts, broken("state", "%s is of operation %s and was issued for %s", name, s.Operation, id))
		case s.Principal != c.principal(t.call):
			facts = append(facts, broken("state", "%s is of principal %s", name, s.Principal))
		case s.Tool != t.call.Params.Name:
			facts = append(facts, broken("state", "%s is of tool %s", name, s.Tool))
		case !c.known(s.Instance):
			facts = append(facts, broken("state", "%s is of another ledger", name))
		}
	}
	return facts
}

// known reports whether a ledger of that instance is among the databases. Where
// one cannot be read, nothing is known to be foreign.
func (c *cell) known(instance string) bool {
	return len(c.databases) == 0 || slices.ContainsFunc(c.databases, func(d *Database) bool {
		return d.Damage != "" || d.Ledger.Instance == instance
	})
}

// checkLedgers: whatever names a ledger on the wire names the one in the file, at a
// position that it has reached.
func (c *cell) checkLedgers() (facts Facts) {
	for _, call := range c.calls {
		if call.Reply == nil || call.Reply.Result == nil {
			continue
		}
		ref, found := ledgerOf(call.Reply.Result)
		if !found {
			continue
		}
		if !c.known(ref.Instance) {
			facts = append(facts, broken("ledger", "%s: the reply to %s is of another ledger", call.Process.Name, call.ID))
		}
		for _, d := range c.databases {
			if d.Damage == "" && d.Ledger.Instance == ref.Instance && ref.Position > d.Ledger.Position {
				facts = append(facts, broken("ledger", "%s: the reply to %s is of position %d, and the file has %d", call.Process.Name, call.ID, ref.Position, d.Ledger.Position))
			}
		}
	}
	return facts
}

func ledgerOf(result json.RawMessage) (mcpreplay.LedgerRef, bool) {
	if mark, marked, err := mcpreplay.ReadMark(result); err == nil && marked {
		return mark.Ledger, true
	}
	var r struct {
		StructuredContent struct{ Ledger *mcpreplay.LedgerRef }
	}
	if json.Unmarshal(result, &r) != nil || r.StructuredContent.Ledger == nil {
		return mcpreplay.LedgerRef{}, false
	}
	return *r.StructuredContent.Ledger, true
}

// operation is the record of an id, in whichever database has it.
func (c *cell) operation(id string) *Operation {
	for _, d := range c.databases {
		for i := range d.Operations {
			if d.Operations[i].ID == id {
				return &d.Operations[i]
			}
		}
	}
	return nil
}

// checkFingerprints: the digests of a record are those of the request that was
// answered with it, made again from the wire; and of none that was refused as
// another request.
func (c *cell) checkFingerprints() (facts Facts) {
	for _, call := range c.calls {
		if call.Params.RequestState == nil || call.Params.InputResponses == nil || !call.Process.guarded() {
			continue
		}
		s, err := openState(ring(StateSecret), *call.Params.RequestState)
		if err != nil {
			continue // told by its label in the story
		}
		o := c.operation(s.Operation)
		if o == nil || o.Digests.Fingerprint == nil || call.Reply == nil {
			continue
		}
		same, err := c.sameRequest(call, s, o)
		if err != nil {
			facts = append(facts, broken("fingerprint", "%s: %s: %v", call.Process.Name, call.ID, err))
			continue
		}
		v, reason := settledBy(call.Reply)
		switch {
		case v && !same:
			facts = append(facts, broken("fingerprint", "%s: the result given to %s is recorded for another request", call.Process.Name, call.ID))
		case reason == mcpreplay.ReasonConflict && same && o.Principal == c.principal(call):
			facts = append(facts, broken("fingerprint", "%s: %s was refused as a conflict with itself", call.Process.Name, call.ID))
		}
	}
	return facts
}

// settledBy reports whether a reply gives the outcome of a record, and the reason
// if it refuses.
func settledBy(reply *Message) (bool, mcpreplay.Reason) {
	if reply.Error != nil {
		var e struct {
			Code    int64
			Message string
			Data    json.RawMessage
		}
		if json.Unmarshal(reply.Error, &e) != nil {
			return false, ""
		}
		return false, mcpreplay.ClassifyError(e.Code, e.Message, e.Data).Reason
	}
	v := mcpreplay.ClassifyResult(reply.Result)
	return v.Kind == mcpreplay.VerdictResult && v.State.Final(), ""
}

func (c *cell) sameRequest(call *Call, s sealed, o *Operation) (bool, error) {
	filled, asSent, err := arguments(call.Params.Arguments)
	if err != nil {
		return false, err
	}
	answers := map[string]json.RawMessage{}
	for name, raw := range call.Params.InputResponses {
		var a struct {
			Action  string          `json:"action"`
			Content json.RawMessage `json:"content,omitempty"`
		}
		if err := json.Unmarshal(raw, &a); err != nil {
			return false, err
		}
		if answers[name], err = json.Marshal(a); err != nil {
			return false, err
		}
	}
	normal, err := json.Marshal(answers)
	if err != nil {
		return false, err
	}
	digests, err := ring(FingerprintSecret).DigestUnder(o.Digests.KeyID, mcpreplay.Binding{
		Principal: c.principal(call), Tool: call.Params.Name, Version: o.Version,
		Arguments: filled, Sent: asSent, State: s.plain, Answers: normal,
	})
	if err != nil {
		return false, err
	}
	return digests.Equal(o.Digests) && bytes.Equal(digests.Arguments, o.Digests.Arguments) && bytes.Equal(digests.Answers, o.Digests.Answers) &&
		bytes.Equal(digests.State, o.Digests.State) && bytes.Equal(digests.Sent, o.Digests.Sent), nil
}

// checkEffects: one intent, which is what the lab gives a title to, has one effect
// at most, and each effect has its record.
func (c *cell) checkEffects() (facts Facts) {
	for _, d := range c.databases {
		byTitle := map[string][]Issue{}
		var titles []string
		for _, i := range d.Issues {
			if byTitle[i.Title] == nil {
				titles = append(titles, i.Title)
			}
			byTitle[i.Title] = append(byTitle[i.Title], i)
			o := c.operation(i.Operation)
			if o == nil || o.State == "not_applied" || o.State == "released" {
				facts = append(facts, broken("unrecorded_effect", "%s: issue %d of %s", d.Name, i.ID, i.Operation))
			}
		}
		for _, title := range titles {
			if same := byTitle[title]; len(same) > 1 {
				facts = append(facts, broken(c.mechanism(same), "%s: %q has %d effects", d.Name, title, len(same)))
			}
		}
		for _, o := range d.Operations {
			if o.Tool != "" && (o.State == "applied" || o.State == "partial") && !d.has(o) {
				facts = append(facts, broken("missing_effect", "%s: %s is %s and there is no issue of it", d.Name, o.ID, o.State))
			}
		}
	}
	return facts
}

func (d *Database) has(o Operation) bool {
	return slices.ContainsFunc(d.Issues, func(i Issue) bool {
		return i.Operation == o.ID && strconv.FormatInt(i.ID, 10) == o.Effect
	})
}

// mechanism names how one intent came to several effects.
func (c *cell) mechanism(same []Issue) string {
	for _, i := range same[1:] {
		switch {
		case i.Body != same[0].Body:
			return "changed_input_dispatched"
		case i.Operation != same[0].Operation:
			return "duplicate_effect_under_new_id"
		}
	}
	if slices.ContainsFunc(c.processes, (*Process).crashed) {
		return "duplicate_effect_after_crash"
	}
	return "duplicate_effect"
}

func (p *Process) crashed() bool {
	return slices.ContainsFunc(p.Records, func(r Record) bool {
		return r.Event != nil && (r.Event.Kind == EventKill || r.Event.Kind == EventExit && r.Event.Code != nil && *r.Event.Code != 0)
	})
}

// checkDispatch: what did the work had the right to.
func (c *cell) checkDispatch() (facts Facts) {
	for _, call := range c.calls {
		if call.Method != "tools/call" || call.Reply == nil {
			continue
		}
		done := call.Reply.Result != nil && mcpreplay.ClassifyResult(call.Reply.Result).Kind == mcpreplay.VerdictResult
		if call.Params.Name == statusTool && !done && !later(call.Reply) {
			facts = append(facts, broken("no_status", "%s: nobody can tell %s what became of %s", call.Process.Name, call.ID, call.Operation()))
		}
		if !done || len(call.Params.InputResponses) == 0 {
			continue
		}
		if state := call.Params.RequestState; state == nil {
			facts = append(facts, broken("stripped_state_dispatched", "%s: %s did its work without request state", call.Process.Name, call.ID))
		} else if c.labels[*state] == "" {
			facts = append(facts, broken("changed_state_dispatched", "%s: %s did its work with request state that nobody issued", call.Process.Name, call.ID))
		} else if of := c.issuedTo(*state); of != c.principal(call) {
			facts = append(facts, broken("foreign_state_dispatched", "%s: %s did its work with request state of %s", call.Process.Name, call.ID, of))
		}
	}
	return facts
}

// later reports whether a reply says that the same may be asked again: a server that
// cannot read its ledger now will tell when it can.
func later(reply *Message) bool {
	var e struct {
		Code    int64
		Message string
		Data    json.RawMessage
	}
	return reply.Error != nil && json.Unmarshal(reply.Error, &e) == nil && mcpreplay.ClassifyError(e.Code, e.Message, e.Data).Retryable
}

func (c *cell) issuedTo(state string) string {
	for _, t := range c.tokens {
		if t.text == state {
			return c.principal(t.call)
		}
	}
	return ""
}

// checkReplies: who was told that it is done was told the truth, in the very bytes
// that are recorded.
func (c *cell) checkReplies() (facts Facts) {
	for _, call := range c.calls {
		if call.Reply == nil || call.Reply.Result == nil || !call.Process.guarded() {
			continue
		}
		result := call.Reply.Result
		mark, marked, err := mcpreplay.ReadMark(result)
		if call.Params.Name == statusTool {
			obs, err := mcpreplay.ParseStatus(result, c.scope(call))
			if err != nil || obs.State == mcpreplay.StateUnknown {
				continue
			}
			result, marked, mark.OperationID, mark.State = obs.StoredResult, true, obs.OperationID, obs.State
		}
		if err != nil || !marked || !mark.State.Final() || slices.ContainsFunc(c.databases, func(d *Database) bool { return d.Damage != "" }) {
			continue
		}
		switch o := c.operation(mark.OperationID); {
		case o == nil:
			facts = append(facts, broken("unbacked_reply", "%s: %s was told that %s is %s, and there is no record", call.Process.Name, call.ID, mark.OperationID, mark.State))
		case o.State != string(mark.State):
			facts = append(facts, broken("unbacked_reply", "%s: %s was told that %s is %s, and it is %s", call.Process.Name, call.ID, mark.OperationID, mark.State, o.State))
		case o.Principal != c.principal(call):
			facts = append(facts, broken("foreign_reply", "%s: %s was told the outcome of %s, which is %s's", call.Process.Name, call.ID, mark.OperationID, o.Principal))
		case result != nil && o.Result != nil && !sameBody(result, o.Result):
			facts = append(facts, broken("changed_result", "%s: the result given to %s is not the stored one", call.Process.Name, call.ID))
		}
	}
	return facts
}

// sameBody compares what a client acts on, byte for byte: the content without the
// note that a replay appends, the structured content, and whether it is an error.
func sameBody(a, b json.RawMessage) bool {
	type body struct {
		Content           []json.RawMessage
		StructuredContent json.RawMessage
		IsError           bool
	}
	read := func(raw json.RawMessage) (r body, ok bool) {
		ok = json.Unmarshal(raw, &r) == nil
		r.Content = slices.DeleteFunc(r.Content, func(block json.RawMessage) bool {
			return strings.Contains(string(block), `"mcpreplay/note"`)
		})
		return r, ok
	}
	x, okX := read(a)
	y, okY := read(b)
	return okX && okY && x.IsError == y.IsError && bytes.Equal(x.StructuredContent, y.StructuredContent) &&
		slices.EqualFunc(x.Content, y.Content, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

// checkProofs: the project's own proof of each ledger finds nothing.
func (c *cell) checkProofs() (facts Facts) {
	for _, d := range c.databases {
		for _, f := range d.Findings {
			facts = append(facts, broken("ledger", "%s: %s", d.Name, f))
		}
		if d.Damage == "" && d.Backend != Backend {
			facts = append(facts, broken("ledger", "%s: it is of backend %q", d.Name, d.Backend))
		}
	}
	return facts
}
