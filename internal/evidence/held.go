package evidence

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"mcpreplay"
)

// checkRecords: a record is of a request that was sent: by its digests, whether
// or not that was answered, and by its tool and its deadlines.
func (c *cell) checkRecords() (facts Facts) {
	asked, held := map[*Operation]bool{}, map[*Operation]bool{}
	for _, call := range c.calls {
		if call.Params.RequestState == nil || call.Params.InputResponses == nil || !call.Process.guarded() {
			continue
		}
		s, err := openState(ring(StateSecret), *call.Params.RequestState)
		o := c.operation(s.Operation)
		if err != nil || o == nil {
			continue
		}
		asked[o] = true
		if same, err := c.sameRequest(call, s, o); err != nil || !same {
			continue
		}
		held[o] = true
		if o.Tool != s.Tool {
			facts = append(facts, broken("record", "%s: %s is of tool %q, and %s calls %s", call.Process.Name, o.ID, o.Tool, call.ID, s.Tool))
		}
		if o.Authority.Int64 != s.Authority || o.Retention.Int64 != s.Retention {
			facts = append(facts, broken("record", "%s: %s has other deadlines than the state of %s", call.Process.Name, o.ID, call.ID))
		}
	}
	for _, d := range c.databases {
		for i := range d.Operations {
			o := &d.Operations[i]
			if asked[o] && !held[o] && o.Tool != "" {
				facts = append(facts, broken("record", "%s: no request that was sent is that of %s", d.Name, o.ID))
			}
			if o.Tool == "" && !o.Fenced {
				facts = append(facts, broken("record", "%s: %s is of no tool", d.Name, o.ID))
			}
		}
	}
	return facts
}

// checkDeadlines: request state gives the time that its server was told to give.
func (c *cell) checkDeadlines() (facts Facts) {
	for _, t := range c.tokens {
		p := t.call.Process
		if !p.guarded() || t.call.Params.RequestState != nil {
			continue
		}
		s, err := openState(ring(StateSecret), t.text)
		clock, errClock := strconv.ParseFloat(p.setting("--clock", ""), 64)
		if err != nil || errClock != nil { // told elsewhere
			continue
		}
		for _, f := range []struct {
			flag  string
			usual int
			until int64
		}{{"--authority-ttl", Authority, s.Authority}, {"--replay-retention", Retention, s.Retention}, {"--state-ttl", StateTTL, s.Expires}} {
			ttl, err := time.ParseDuration(p.setting(f.flag, strconv.Itoa(f.usual)+"s"))
			if err != nil || f.until != s.Issued+ttl.Microseconds() || s.Issued < int64(clock*1e6) { // the time of a ledger never goes back

				facts = append(facts, broken("state", "%s: %s does not end when %s says", p.Name, c.labels[t.text], f.flag))
			}
		}
	}
	return facts
}

// checkMarks: the mark of a reply is about the operation that was asked about, as
// its record is, and a ledger never goes back.
func (c *cell) checkMarks() (facts Facts) {
	for _, call := range c.calls {
		if call.Method != "tools/call" || call.Params.Name == statusTool || call.Reply == nil || call.Reply.Result == nil || !call.Process.guarded() {
			continue
		}
		fail := func(format string, args ...any) {
			facts = append(facts, broken("mark", "%s: the reply to %s "+format, append([]any{call.Process.Name, call.ID}, args...)...))
		}
		asks := mcpreplay.ClassifyResult(call.Reply.Result).Kind == mcpreplay.VerdictInputRequired
		mark, marked, err := mcpreplay.ReadMark(call.Reply.Result)
		switch o := c.operation(mark.OperationID); {
		case err != nil:
			fail("has a mark that cannot be read")
		case !marked && asks:
			fail("has no mark")
		case !marked:
		case call.Operation() != "" && mark.OperationID != call.Operation():
			fail("is marked as of %s", mark.OperationID)
		case asks && (mark.Replayed || mark.RecordedAt != ""):
			fail("asks, and is marked as recorded")
		case asks || o == nil || !mark.State.Final():
		case mark.RecordedAt != c.recordedAt(o, mark.Ledger.Position):
			fail("is marked as recorded at %s", mark.RecordedAt)
		case mark.Replayed != noted(call.Reply.Result, mark):
			fail("says in its text alone, or in its mark alone, that it is a replay")
		}
	}
	return append(facts, c.backwards()...)
}

// recordedAt is the time of the last event of an operation that a ledger at a
// position has.
func (c *cell) recordedAt(o *Operation, position int64) string {
	var at int64
	for _, d := range c.databases {
		for _, e := range d.Events {
			if e.Operation == o.ID && e.Position <= position {
				at = e.At
			}
		}
	}
	return time.UnixMicro(at).UTC().Format(time.RFC3339Nano)
}

// noted reports whether a result has the note that a replay appends.
func noted(result json.RawMessage, m mcpreplay.Mark) bool {
	var r struct {
		IsError bool
		Content []struct {
			Type, Text string
			Meta       map[string]json.RawMessage `json:"_meta"`
		}
	}
	if json.Unmarshal(result, &r) != nil || len(r.Content) < 2 {
		return false
	}
	text := "This is the recorded result of operation " + m.OperationID + " from " + m.RecordedAt + ". Nothing ran again."
	if r.IsError {
		text += " The failure it tells of is that of the earlier call, not a new one."
	}
	last := r.Content[len(r.Content)-1]
	return last.Type == "text" && last.Text == text && string(last.Meta["mcpreplay/note"]) == "true"
}

// backwards finds replies that name a ledger at another incarnation than its file,
// or at a lower position than a reply that had come before they were asked for.
func (c *cell) backwards() (facts Facts) {
	type seen struct {
		at  int64
		ref mcpreplay.LedgerRef
	}
	var all []seen
	for _, call := range c.calls {
		if call.Reply == nil || call.Reply.Result == nil {
			continue
		}
		ref, found := ledgerOf(call.Reply.Result)
		if !found {
			continue
		}
		if slices.ContainsFunc(c.databases, func(d *Database) bool {
			return d.Ledger.Instance == ref.Instance && d.Ledger.Incarnation != ref.Incarnation
		}) {
			facts = append(facts, broken("ledger", "%s: the reply to %s is of incarnation %d", call.Process.Name, call.ID, ref.Incarnation))
		}
		if slices.ContainsFunc(all, func(s seen) bool { return s.at < call.At && s.ref.Instance == ref.Instance && !ref.Follows(s.ref) }) {
			facts = append(facts, broken("ledger", "%s: the reply to %s is of position %d, after a later one", call.Process.Name, call.ID, ref.Position))
		}
		all = append(all, seen{call.Reply.At, ref})
	}
	return facts
}

// checkProse: a model that reads the text of a result is told what its structured
// content says.
func (c *cell) checkProse() (facts Facts) {
	for _, call := range c.calls {
		if call.Reply == nil || call.Reply.Result == nil || !call.Process.guarded() {
			continue
		}
		var r struct {
			StructuredContent json.RawMessage
			IsError           bool // it may be a sentence
			Content           []struct{ Type, Text string }
		}
		if json.Unmarshal(call.Reply.Result, &r) != nil || r.StructuredContent == nil || r.IsError {
			continue
		}
		if len(r.Content) > 0 && r.Content[0].Type == "text" {
			text, errText := mcpreplay.CanonicalObject([]byte(r.Content[0].Text), nil)
			structured, errStructured := mcpreplay.CanonicalObject(r.StructuredContent, nil)
			if errText == nil && errStructured == nil && bytes.Equal(text, structured) {
				continue
			}
		}
		facts = append(facts, broken("text", "%s: what a model reads in the reply to %s is not its structured content", call.Process.Name, call.ID))
	}
	return facts
}
