package evidence

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"

	"mcpreplay"
)

// Conclusion is what a client says that it knows of an operation. It can be held
// against the bytes that the client was sent.
type Conclusion struct {
	Client string `json:"client"` // the transcript of its side
	From   string `json:"from"`
	Kind   string `json:"kind"`
	Effect string `json:"effect"`
	Action string `json:"action"`
}

// What a client concludes from.
const (
	FromCall   = "call"   // an attempt, whatever came back
	FromStatus = "status" // a question to the status tool
)

// The kinds of conclusions, as the consumer has them.
const (
	concludedVerdict  = "verdict"
	concludedObserved = "observed"
	concludedUnknown  = "unknown"
	concludedNotSent  = "not_sent"
)

func (k *Conclusion) text(operation string) string {
	return fmt.Sprintf("%s concludes from a %s of %s: %s", k.Client, k.From, operation, k.what())
}

func (k *Conclusion) what() string {
	return fmt.Sprintf("%s, effect %s, action %s", k.Kind, k.Effect, k.Action)
}

// knowledge is what a client can know of an operation from what it was sent.
type knowledge struct {
	since  int64 // when it concluded last
	doubt  bool  // an attempt is unknown, and nothing has settled it
	ledger *mcpreplay.LedgerRef
}

// checkConclusions: what a client concludes is what its bytes allow, no more and
// no less. A lost reply is unknown until evidence settles it.
func (c *cell) checkConclusions() (facts Facts) {
	var events []Record
	for _, p := range c.processes {
		for _, r := range p.Records {
			if r.Event != nil && r.Event.Conclusion != nil {
				events = append(events, r)
			}
		}
	}
	slices.SortStableFunc(events, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	known := map[string]*knowledge{} // of each operation: a client remembers over its sessions
	for _, r := range events {
		got, operation := r.Event.Conclusion, r.Event.Operation
		p := c.process(got.Client)
		if p == nil {
			facts = append(facts, broken("guessed_outcome", "%s has no transcript", got.Client))
			continue
		}
		k := known[operation]
		if k == nil {
			k = &knowledge{}
			known[operation] = k
		}
		want := c.conclude(p, k, r.At, *got, operation)
		if want != *got {
			facts = append(facts, broken("guessed_outcome", "%s: what it was sent allows %s", got.text(operation), want.what()))
		}
		k.since = r.At
	}
	return facts
}

// conclude is the conclusion that a client may come to at a time, in place of the
// one that it says.
func (c *cell) conclude(p *Process, k *knowledge, at int64, got Conclusion, operation string) Conclusion {
	want := Conclusion{
		Client: got.Client, From: got.From,
		Kind: concludedUnknown, Effect: string(mcpreplay.StateUnknown), Action: string(mcpreplay.ActionReconcile),
	}
	var asked []*Call
	for _, call := range c.calls {
		if call.Process == p && call.Method == "tools/call" && call.Operation() == operation && call.At > k.since && call.At <= at &&
			(call.Params.Name == statusTool) == (got.From == FromStatus) {
			asked = append(asked, call)
		}
	}
	torn := slices.ContainsFunc(p.Torn, func(x *exchange) bool { return x.at > k.since && x.at <= at })
	if len(asked) == 0 {
		if !torn && got.Kind == concludedNotSent {
			want.Kind, want.Action = concludedNotSent, string(mcpreplay.ActionStop)
		}
		k.doubt = k.doubt || torn
		return want
	}
	if torn {
		k.doubt = k.doubt || got.From == FromCall
		return want
	}
	last := asked[len(asked)-1]
	if got.From == FromStatus {
		c.observe(k, last, at, &want)
	} else {
		judge(k, asked, at, &want)
	}
	return want
}

// verdict is what the reply to a call says, if it came by then and came from the
// server: what an intermediary says about itself is not the server's word.
func (call *Call) verdict(at int64) (v mcpreplay.Verdict, heard bool) {
	if call.Reply == nil || call.Reply.At > at {
		return mcpreplay.Verdict{Kind: mcpreplay.VerdictUnknown}, false
	}
	if x := call.http; x != nil {
		said := x.status/100 == 2 || x.status/100 == 4 && x.status != http.StatusTooManyRequests && x.contentType == "application/json"
		if !said {
			return mcpreplay.Verdict{Kind: mcpreplay.VerdictUnknown}, false
		}
	}
	return mcpreplay.ClassifyResponse(call.Reply.Text, call.ID), true
}

// judge fills in what the rounds of one attempt allow.
func judge(k *knowledge, rounds []*Call, at int64, want *Conclusion) {
	for _, round := range rounds[:len(rounds)-1] {
		k.hear(round)
	}
	last := rounds[len(rounds)-1]
	v, heard := last.verdict(at)
	mark, marked := mcpreplay.Mark{}, false
	if heard && v.Kind == mcpreplay.VerdictResult {
		mark, marked, _ = mcpreplay.ReadMark(last.Reply.Result)
	}
	admitted := !marked || k.ledger == nil || mark.Ledger.Follows(*k.ledger)
	settles := v.Settles() && admitted && (marked || k.ledger == nil)
	if k.doubt && !settles || !v.Definite() {
		k.doubt = k.doubt || v.Kind == mcpreplay.VerdictUnknown || v.Kind == mcpreplay.VerdictReply
		return
	}
	k.doubt = k.doubt && !settles
	want.Kind, want.Action = concludedVerdict, string(mcpreplay.ActionStop)
	switch {
	case v.Kind == mcpreplay.VerdictResult:
		if marked {
			want.Effect = string(mark.State)
		}
		if mark.State != mcpreplay.StatePartial && mark.State != mcpreplay.StateNotApplied {
			want.Action = string(mcpreplay.ActionReturnResult)
		}
	case v.Reason == mcpreplay.ReasonFenced:
		want.Action = string(mcpreplay.ActionReconcile)
	}
	k.hear(last)
}

// observe fills in what a reply of the status tool allows.
func (c *cell) observe(k *knowledge, call *Call, at int64, want *Conclusion) {
	v, heard := call.verdict(at)
	if !heard || v.Kind != mcpreplay.VerdictResult {
		return
	}
	obs, err := mcpreplay.ParseStatus(call.Reply.Result, c.scope(call))
	if err != nil || k.ledger != nil && !obs.Ledger.Follows(*k.ledger) {
		return
	}
	want.Action, want.Effect = string(obs.NextAction), string(obs.State)
	if obs.State != mcpreplay.StateUnknown {
		want.Kind, k.doubt = concludedObserved, false
	}
	k.hear(call)
}

// hear keeps the ledger that a reply names, at its highest position.
func (k *knowledge) hear(call *Call) {
	if call.Reply == nil || call.Reply.Result == nil {
		return
	}
	if ref, found := ledgerOf(call.Reply.Result); found && (k.ledger == nil || ref.Follows(*k.ledger)) {
		k.ledger = &ref
	}
}
