package evidence

import "slices"

// checkOrder: nothing is used before it came, and nothing passes to a process that
// is not there. A token that was answered before it was issued would be a story
// told backwards.
func (c *cell) checkOrder() (facts Facts) {
	issued := map[string]int64{}
	for _, t := range c.tokens {
		issued[t.text] = t.call.Reply.At
	}
	for _, call := range c.calls {
		if s := call.Params.RequestState; s != nil && call.At < issued[*s] {
			facts = append(facts, broken("order", "%s: %s has %s before it was issued", call.Process.Name, call.ID, c.labels[*s]))
		}
	}
	for _, p := range c.processes {
		if why := p.outOfOrder(); why != "" {
			facts = append(facts, broken("order", "%s: %s", p.Name, why))
		}
	}
	return facts
}

// outOfOrder says what is in a transcript before its process was started or after
// it ended, or "".
func (p *Process) outOfOrder() string {
	started, ended := false, false
	for _, r := range p.Records {
		switch {
		case r.Event == nil && !started && p.behind == nil:
			return "there are messages, and it was not started"
		case r.Event == nil && ended && r.Dir == Sent:
			return "something was sent to it after its end"
		case r.Event == nil:
		case r.Event.Kind == EventStart:
			started, ended = true, false
		case r.Event.Kind == EventExit || r.Event.Kind == EventKill:
			ended = true
		}
	}
	return ""
}

// opening are the messages with which a client begins, and which every story
// leaves out. Anything else that passes is told.
var opening = []string{"tools/list", "initialize", "notifications/initialized"}

// idle are requests that do nothing, and may be made at any time.
var idle = []string{"tools/list", "server/discover"}

// further is what is told of a message that no other line of the story is about.
func (p *Process) further(m Message) string {
	first := slices.IndexFunc(p.Messages, func(o Message) bool { return o.Sent && o.Method == m.Method }) // its first of this method
	switch {
	case m.Method == "", slices.Contains(idle, m.Method) && m.Sent, m.Method == "tools/call" && m.Sent && m.ID != "":
		return ""
	case m.Method == "notifications/cancelled" && m.http != nil: // the SDK sends it when it comes to it, or not at all
		return ""
	case !m.Sent:
		return "is sent " + m.Method
	case slices.Contains(opening, m.Method) && p.Messages[first].At == m.At && p.Messages[first].ID == m.ID:
		return ""
	}
	return "sends " + m.Method
}
