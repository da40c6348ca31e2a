package evidence

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"mcpreplay"
)

// told is a line of the story and when it happened.
type told struct {
	at     int64
	line   string
	atOnce bool // see twins
}

func (t told) compare(o told) int {
	if order := cmp.Compare(t.at, o.at); order != 0 || !t.atOnce || !o.atOnce {
		return order
	}
	return cmp.Compare(t.line, o.line)
}

func (c *cell) story() Facts {
	var all []told
	for _, call := range c.calls { // before what happened to them
		if call.Method != "tools/call" {
			continue
		}
		if at, twin := c.twins(call); twin {
			all = append(all, told{at, call.Process.Name + " at once: " + c.tell(call), true})
		} else {
			all = append(all, told{call.At, call.Process.Name + " " + c.tell(call), false})
		}
	}
	for _, p := range c.processes {
		add := func(at int64, format string, args ...any) {
			all = append(all, told{at: at, line: p.Name + " " + fmt.Sprintf(format, args...)})
		}
		for _, r := range p.Records {
			if r.Event != nil && r.Event.told() && !c.ofTwins(p, r.Conn) {
				add(r.At, "%s", r.Event.text())
			}
		}
		for _, r := range p.Garbled {
			add(r.At, "%s %d bytes that are no message", r.Dir, len(r.raw()))
		}
		for _, x := range p.Torn {
			add(x.at, "%s, its body cut off -> nothing", strings.TrimSpace(x.header.Get("Mcp-Method")+" "+x.header.Get("Mcp-Name")))
		}
		for _, r := range p.Cut {
			add(r.At, "%s a line without its end", r.Dir)
		}
		for _, m := range p.Messages {
			if line := cmp.Or(c.aside(m), p.further(m)); line != "" {
				add(m.At, "%s", line)
			}
		}
	}
	slices.SortStableFunc(all, told.compare)
	facts := make(Facts, len(all))
	for i, t := range all {
		facts[i] = t.line
	}
	return facts
}

// aside is what is told of a message that is neither a call nor its reply.
func (c *cell) aside(m Message) string {
	switch {
	case m.Method == "notifications/cancelled" && m.http != nil:
		// A client sends it beside its call, when it finds the time or not at all,
		// and over stateless HTTP it is about nothing.
		return ""
	case m.Method == "notifications/cancelled":
		return "cancels " + string(m.Params.RequestID)
	case m.Method == "elicitation/create" && !m.Sent:
		return "asks"
	case m.Method == "" && m.Sent:
		return "answers " + answerText(m.Result)
	case m.Method == "" && (m.ID == "" || m.ID == "null"):
		return "says " + errorText(m.Error)
	}
	return ""
}

// tell is the line of one call.
func (c *cell) tell(call *Call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", call.ID, call.Params.Name, compact(call.Params.Arguments))
	if call.http != nil {
		if _, shown := principalOf(call.http.header); shown != Principal {
			fmt.Fprintf(&b, " by %s", shown)
		}
		if call.http.header["Idempotency-Key"] != nil {
			b.WriteString(" with an Idempotency-Key")
		}
	}
	if s := call.Params.RequestState; s != nil {
		label := c.labels[*s]
		if label == "" {
			label = "a changed state"
		}
		fmt.Fprintf(&b, " %s", label)
	}
	for _, name := range sortedNames(call.Params.InputResponses) {
		fmt.Fprintf(&b, " %s=%s", name, answerText(call.Params.InputResponses[name]))
	}
	b.WriteString(" -> ")
	if c.eitherOf(call) {
		b.WriteString("one of the two replies")
	} else {
		b.WriteString(c.outcome(call))
	}
	return b.String()
}

// outcome is what came back for a call.
func (c *cell) outcome(call *Call) string {
	if call.Reply == nil {
		x := call.http
		switch {
		case x == nil || x.status == 0:
			return "nothing"
		case !x.complete:
			return fmt.Sprintf("HTTP %d, cut off", x.status)
		case x.contentType == "":
			return fmt.Sprintf("HTTP %d", x.status)
		}
		return fmt.Sprintf("HTTP %d, %s", x.status, x.contentType)
	}
	if call.Reply.Error != nil {
		return errorText(call.Reply.Error)
	}
	switch call.Params.Name {
	case statusTool, fenceTool, acknowledgeTool:
		if text, ok := c.status(call); ok {
			return text
		}
	case listTool:
		if text, ok := listText(call.Reply.Result); ok {
			return text
		}
	}
	return c.resultText(call.Reply.Result)
}

const (
	statusTool      = "get_operation_status"
	fenceTool       = "fence_operation"
	acknowledgeTool = "acknowledge_operation"
)

func (c *cell) resultText(result json.RawMessage) string {
	v := mcpreplay.ClassifyResult(result)
	if v.Kind == mcpreplay.VerdictInputRequired {
		var r struct {
			RequestState  string
			InputRequests map[string]json.RawMessage
		}
		if err := json.Unmarshal(result, &r); err != nil {
			return "a question that cannot be read"
		}
		return strings.TrimSpace(fmt.Sprintf("asks %s, %s", strings.Join(sortedNames(r.InputRequests), " "), c.labels[r.RequestState]))
	}
	var r struct {
		IsError           bool
		StructuredContent json.RawMessage
		Content           []struct{ Text string }
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return "a result that cannot be read"
	}
	text := compact(r.StructuredContent)
	if text == "" && len(r.Content) > 0 {
		text = fmt.Sprintf("%q", r.Content[0].Text)
	}
	kind := "result"
	if r.IsError {
		kind = "error result"
	}
	if v.Kind == mcpreplay.VerdictUnknown {
		kind = "UNKNOWN"
		text = string(v.Reason)
	}
	mark, marked, _ := mcpreplay.ReadMark(result)
	switch {
	case !marked:
		return kind + " " + text
	case mark.Replayed:
		return fmt.Sprintf("%s %s, %s, replayed", kind, text, mark.State)
	}
	return fmt.Sprintf("%s %s, %s", kind, text, mark.State)
}

// status is what a client makes of a status reply: only what the consumer's own
// check accepts counts.
func (c *cell) status(call *Call) (string, bool) {
	var probe struct{ StructuredContent json.RawMessage }
	if json.Unmarshal(call.Reply.Result, &probe) != nil || probe.StructuredContent == nil {
		return "", false
	}
	obs, err := mcpreplay.ParseStatus(call.Reply.Result, c.scope(call))
	if err != nil {
		return fmt.Sprintf("status not believed: %v", err), true
	}
	text := "status " + string(obs.State)
	if len(obs.MatchingIDs) > 0 {
		text += " effect " + strings.Join(obs.MatchingIDs, " ")
	}
	if obs.StoredResult != nil {
		text += ", " + c.resultText(obs.StoredResult)
	}
	if obs.ResultDropped != nil {
		text += ", result dropped"
	}
	if obs.NewOperationSafe {
		text += ", a new operation is safe"
	}
	return text + ", action " + string(obs.NextAction), true
}
