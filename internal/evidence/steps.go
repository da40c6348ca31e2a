package evidence

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The plan of the tool's effect in parts, as its documentation has it. What a record
// may say of it is decided here once more, and not by the guard's own reading of its
// events.
var plan = []struct {
	step       string
	undone     bool // something compensates for it
	remarkable bool // the result tells what became of it
}{{"issue", true, false}, {"watcher", false, true}}

// history is what the events of one operation have told so far.
type history struct {
	o       *Operation
	outside bool     // its effect is one, and not in the ledger's file as far as that knows
	owners  []string // whoever has ever held the record
	owner   string   // who claimed it last
	asker   string   // who finds out what became of it

	done      []string // steps of this claim
	failed    string   // the step that did, which is the last
	undone    []string // steps whose compensation has been tried, and how that ended
	open      string   // a step that is attempted, and nothing more
	doubted   bool
	ended     bool     // it has an outcome
	everDone  []string // of all claims
	givenBack int      // claims that their own owners gave back
}

// histories are those of the operations of a file.
func (d *Database) histories(outside func(id string) bool, fail func(rule, format string, args ...any)) (all []*history) {
	for i := range d.Operations {
		h := &history{o: &d.Operations[i]}
		h.outside = outside(h.o.ID)
		for _, e := range d.Events {
			if e.Operation != h.o.ID {
				continue
			}
			if !h.mayWrite(e) {
				fail("record", "%s: event %d of %s is by another", d.Name, e.Position, e.Operation)
			}
			if why := h.step(e); why != "" {
				fail("steps", "%s: event %d of %s: %s", d.Name, e.Position, e.Operation, why)
			}
		}
		all = append(all, h)
	}
	return all
}

// mayWrite reports whether an event can be by whom it names. An atomic effect is its
// principal's, a step its owner's, and each claim and each question has an owner of
// its own. What an owner knows of the end he may tell whoever asks by then.
func (h *history) mayWrite(e LedgerEvent) bool {
	by := func(names ...string) bool { return e.Actor != "" && slices.Contains(names, e.Actor) }
	fresh := e.Actor != "" && !slices.Contains(h.owners, e.Actor)
	switch e.Kind {
	case "apply", "fence", "decline", "acknowledge":
		return by(h.o.Principal)
	case "claim", "takeover":
		h.owners, h.owner, h.asker = append(h.owners, e.Actor), e.Actor, ""
		return fresh
	case "reconcile":
		if e.Outcome != "attempted" {
			return by(h.asker)
		}
		h.owners, h.asker = append(h.owners, e.Actor), e.Actor
		return fresh
	case "step", "compensation", "doubt":
		return by(h.owner) && h.asker == ""
	case "finish":
		return by(h.owner)
	case "release":
		return by(h.owner, h.asker)
	case "settle":
		return by(h.asker)
	case "confirmation", "contradiction":
		return by(h.owners...)
	}
	return false
}

// step says why an event cannot follow from those before, or "".
func (h *history) step(e LedgerEvent) string {
	switch {
	case e.Kind == "contradiction":
		return "a late outcome disagrees"
	case (e.Kind == "confirmation" || e.Kind == "acknowledge") != h.ended:
		return "it does not go with whether there is an outcome"
	}
	switch e.Kind {
	case "apply", "fence", "decline":
		h.ended = true
	case "claim":
		h.done, h.failed, h.undone, h.open, h.doubted = nil, "", nil, "", false
	case "takeover":
		return "nobody declared that its effect may run again"
	case "doubt":
		h.doubted = true
	case "step":
		return h.forward(e)
	case "compensation":
		return h.back(e)
	case "finish":
		h.ended = true
		return h.finished(e)
	case "settle":
		h.ended = true
		return h.proved(e)
	case "release":
		if e.Actor == h.owner {
			h.givenBack++
		}
		if len(h.done) > 0 || h.open != "" && e.Actor != h.owner {
			return "it is given back, and something was done"
		}
	}
	return ""
}

// forward holds a step: in the order of the plan, each once, and none after one that
// failed or that nobody knows of.
func (h *history) forward(e LedgerEvent) string {
	if h.outside {
		return "its effect has no steps"
	}
	if h.doubted || h.failed != "" {
		return "a step is made after everything had stopped"
	}
	if slices.Contains(h.everDone, e.Step) {
		return "a step is made again that was done"
	}
	if n := len(h.done); n == len(plan) || e.Step != plan[n].step {
		return fmt.Sprintf("%q is not the next step", e.Step)
	}
	switch e.Outcome {
	case "attempted":
		if h.open != "" {
			return "a step is attempted twice"
		}
		h.open = e.Step
		return ""
	case "failed":
		h.failed = e.Step
	case "succeeded":
		h.done, h.everDone = append(h.done, e.Step), append(h.everDone, e.Step)
	default:
		return "nobody knows how it ended"
	}
	h.open = ""
	return ""
}

// back holds a compensation: only after a step that failed, and newest first.
func (h *history) back(e LedgerEvent) string {
	if h.failed == "" || h.doubted {
		return "it undoes something, and no step has failed"
	}
	next := ""
	for i, p := range plan {
		if i < len(h.done) && p.undone && !h.tried(p.step) {
			next = p.step
		}
	}
	if e.Step != next {
		return fmt.Sprintf("%q is not the next to be undone", e.Step)
	}
	if e.Outcome != "attempted" {
		h.undone = append(h.undone, e.Step+" "+e.Outcome)
	}
	return ""
}

func (h *history) tried(step string) bool {
	return slices.ContainsFunc(h.undone, func(s string) bool { return strings.HasPrefix(s, step+" ") })
}

// finished holds how an owner says that it ended.
func (h *history) finished(e LedgerEvent) string {
	for i, p := range plan {
		if h.failed != "" && i < len(h.done) && p.undone && !h.tried(p.step) {
			return p.step + " is not undone, and nobody tried"
		}
	}
	if e.State == "partial" && h.failed == "" {
		return "it is partial, and no step has failed"
	}
	return h.outcome(e)
}

// proved holds that an outcome that was found afterwards is what is proved.
func (h *history) proved(e LedgerEvent) string {
	if h.open != "" {
		return "it is settled, and nobody knows whether " + h.open + " happened"
	}
	return h.outcome(e)
}

func (h *history) outcome(e LedgerEvent) string {
	if h.outside { // it never says that nothing happened; that there is an issue is looked for
		if e.State != "applied" {
			return "it ends as " + e.State + ", and nobody can have known that nothing happened"
		}
		return ""
	}
	want := "partial"
	switch len(h.done) {
	case 0:
		want = "released"
	case len(plan):
		want = "applied"
	}
	if e.State != want {
		return fmt.Sprintf("it ends as %s, and %d of %d steps were done", e.State, len(h.done), len(plan))
	}
	return ""
}

// result is what the stored result of an effect in parts must say.
func (h *history) result() string {
	if h.outside {
		return "created " + h.o.Effect
	}
	text := h.o.State + " " + h.o.Effect
	for i, p := range plan {
		switch {
		case !p.remarkable:
		case i < len(h.done):
			text += "; " + p.step + " succeeded"
		case p.step == h.failed:
			text += "; " + p.step + " failed"
		}
	}
	for _, u := range h.undone {
		_, outcome, _ := strings.Cut(u, " ")
		text += "; rollback " + outcome
	}
	return text
}

// checkSteps: who wrote an event could write it; what is done in parts is done in
// order and once; and what stands in the application's own tables is what the events
// tell of, and so is the result.
func (c *cell) checkSteps() (facts Facts) {
	fail := func(rule, format string, args ...any) { facts = append(facts, broken(rule, format, args...)) }
	for _, d := range c.databases {
		for _, h := range d.histories(c.outside, fail) {
			if h.owner == "" {
				continue // one transaction, or none
			}
			if h.o.Owner != "" && h.o.Owner != h.owner && h.o.Owner != h.asker {
				fail("record", "%s: %s is of another owner than its events", d.Name, h.o.ID)
			}
			d.checkParts(h, fail)
			c.checkFailures(h, fail)
		}
	}
	return facts
}

// outside reports whether the effect of an operation is external, by what was asked.
func (c *cell) outside(id string) bool {
	return slices.ContainsFunc(c.calls, func(call *Call) bool {
		var args struct{ Mode string }
		return call.Operation() == id && json.Unmarshal(call.Params.Arguments, &args) == nil && args.Mode == "external"
	})
}

// checkParts holds the events of an operation against the rows of the application.
func (d *Database) checkParts(h *history, fail func(rule, format string, args ...any)) {
	want := 0
	if slices.Contains(h.everDone, "issue") && !slices.Contains(h.undone, "issue succeeded") {
		want = 1
	}
	var issues []Issue
	for _, i := range d.Issues {
		if i.Operation == h.o.ID {
			issues = append(issues, i)
		}
	}
	if h.outside && !h.ended {
		want = min(len(issues), 1) // it may be there
	} else if h.outside {
		want = 1
	}
	if len(issues) != want {
		fail("steps", "%s: %s has %s, and by its events %d", d.Name, h.o.ID, count(len(issues), "issue"), want)
	}
	for _, i := range issues {
		watched := slices.ContainsFunc(d.Watchers, func(w string) bool { return strings.HasPrefix(w, strconv.FormatInt(i.ID, 10)+" ") })
		if watched != slices.Contains(h.everDone, "watcher") {
			fail("steps", "%s: whether issue %d has a watcher is told otherwise by the events of %s", d.Name, i.ID, h.o.ID)
		}
	}
	if h.o.Result == nil || h.o.ResultIsError {
		return
	}
	var r struct {
		StructuredContent struct {
			OperationID   string
			EffectID      int64
			Result, State string
		}
	}
	s := &r.StructuredContent
	if json.Unmarshal(h.o.Result, &r) != nil || s.OperationID != h.o.ID || s.State != h.o.State ||
		strconv.FormatInt(s.EffectID, 10) != h.o.Effect || s.Result != h.result() {
		fail("steps", "%s: the result of %s says %q, and its events %q", d.Name, h.o.ID, s.Result, h.result())
	}
}
