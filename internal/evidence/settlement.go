package evidence

import (
	"slices"
	"time"

	"mcpreplay"
)

// usualLease is the lease of a server that was not told another.
const usualLease = "30s"

// outcomeTold is an outcome that a reply gives, and the ledger it was read from.
type outcomeTold struct {
	state  mcpreplay.State
	ledger mcpreplay.LedgerRef
}

// tells reads what a reply says of its operation. What refuses says nothing, and
// names no ledger.
func (c *cell) tells(call *Call) (t outcomeTold) {
	if call.Reply == nil || call.Reply.Result == nil || !call.Process.guarded() {
		return t
	}
	if call.Params.Name == statusTool || call.Params.Name == "fence_operation" {
		obs, err := mcpreplay.ParseStatus(call.Reply.Result, c.scope(call))
		if err != nil {
			return t
		}
		return outcomeTold{obs.State, obs.Ledger}
	}
	mark, marked, err := mcpreplay.ReadMark(call.Reply.Result)
	if err != nil || !marked {
		return t
	}
	return outcomeTold{mark.State, mark.Ledger}
}

// checkSettlements: nobody is told an outcome before the ledger has it, and whoever
// asks after that is; and what an owner left is settled only once he had been silent
// for his whole lease, or had said himself that he does not know.
func (c *cell) checkSettlements() (facts Facts) {
	for _, d := range c.databases {
		for i := range d.Operations {
			o := &d.Operations[i]
			at := d.firstEvent(o, func(e LedgerEvent) bool { return mcpreplay.State(e.State).Final() })
			for _, call := range c.calls {
				told := c.tells(call)
				if call.Operation() != o.ID || told.ledger.Instance != d.Ledger.Instance || c.principal(call) != o.Principal {
					continue
				}
				switch had := at != 0 && told.ledger.Position >= at; {
				case told.state.Final() && !had:
					facts = append(facts, broken("settlement", "%s: %s was told an outcome that %s did not have yet", call.Process.Name, call.ID, o.ID))
				case !told.state.Final() && call.Params.Name == statusTool && had && d.has(*o):
					facts = append(facts, broken("settlement", "%s: %s was not told the outcome that %s had", call.Process.Name, call.ID, o.ID))
				}
			}
			if why := c.tooEarly(d, o); why != "" {
				facts = append(facts, broken("settlement", "%s: %s: %s", d.Name, o.ID, why))
			}
		}
	}
	return facts
}

// firstEvent is the position of the first event of an operation that is so, or 0.
func (d *Database) firstEvent(o *Operation, is func(LedgerEvent) bool) int64 {
	i := slices.IndexFunc(d.Events, func(e LedgerEvent) bool { return e.Operation == o.ID && is(e) })
	if i < 0 {
		return 0
	}
	return d.Events[i].Position
}

// tooEarly says why somebody asked about an operation whose owner could still be
// alive, or "". The lease was set no earlier than its call was sent, and what came of
// the question is first seen in a reply: between them lies a whole lease.
func (c *cell) tooEarly(d *Database, o *Operation) string {
	asked := d.firstEvent(o, func(e LedgerEvent) bool { return e.Kind == "reconcile" && e.Outcome == "attempted" })
	doubt := d.firstEvent(o, func(e LedgerEvent) bool { return e.Kind == "doubt" })
	claim := d.firstEvent(o, func(e LedgerEvent) bool { return e.Kind == "claim" })
	switch {
	case asked == 0:
		return ""
	case claim == 0 || claim > asked:
		return "somebody asked what became of it before it was claimed"
	case doubt != 0 && doubt < asked:
		return "" // the lease ended with it
	}
	var owner *Call // the first that could claim it
	for _, call := range c.calls {
		if call.Operation() == o.ID && call.Method == "tools/call" && call.Params.Name == o.Tool && call.Process.guarded() &&
			(call.Process.older() || len(call.Params.InputResponses) > 0) {
			owner = call
			break
		}
	}
	if owner == nil {
		return "nobody called it"
	}
	lease, err := time.ParseDuration(owner.Process.setting("--lease", usualLease))
	if err != nil {
		return "its lease is none"
	}
	for _, call := range c.calls {
		if told := c.tells(call); told.ledger.Instance == d.Ledger.Instance && told.ledger.Position >= asked && call.Reply.At < owner.At+lease.Microseconds() {
			return "it was settled while its owner could be alive"
		}
	}
	return ""
}

// checkFailures: who was told that nothing happened was told so of a claim that its
// owner gave back. A failure that is not one would have the work done again.
func (c *cell) checkFailures(h *history, fail func(rule, format string, args ...any)) {
	told := 0
	for _, call := range c.calls {
		if call.Operation() != h.o.ID || call.Params.Name != h.o.Tool || call.Reply == nil || call.Reply.Result == nil {
			continue
		}
		v := mcpreplay.ClassifyResult(call.Reply.Result)
		if v.Kind != mcpreplay.VerdictResult || v.State.Final() {
			continue
		}
		if told++; told > h.givenBack {
			fail("settlement", "%s: %s was told that nothing happened, and nobody gave %s back", call.Process.Name, call.ID, h.o.ID)
		}
	}
}
