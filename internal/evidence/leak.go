package evidence

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// checkLeaks: who is not the principal of an operation learns that its id is
// taken, and only by trying to write.
func (c *cell) checkLeaks() (facts Facts) {
	for _, call := range c.calls {
		o := c.operation(call.Operation())
		if call.Reply == nil || o == nil || !call.Process.guarded() || o.Principal == c.principal(call) {
			continue
		}
		if leaked := leaks(call.Reply, o); leaked != "" {
			facts = append(facts, broken("leak", "%s: the reply to %s shows %s of %s, which is %s's", call.Process.Name, call.ID, leaked, o.ID, o.Principal))
		}
	}
	for _, call := range c.calls {
		if call.Params.Name != listTool || call.Reply == nil {
			continue
		}
		for _, d := range c.databases {
			for _, o := range d.Operations {
				if o.Principal != c.principal(call) && bytes.Contains(call.Reply.Text, []byte(`"`+o.ID+`"`)) {
					facts = append(facts, broken("leak", "%s: %s lists %s, which is %s's", call.Process.Name, call.ID, o.ID, o.Principal))
				}
			}
		}
	}
	return facts
}

const listTool = "list_my_operations"

// listText is what a list of operations shows.
func listText(result json.RawMessage) (text string, ok bool) {
	var r struct {
		StructuredContent *struct {
			Operations []struct{ OperationID, State string }
		}
	}
	if json.Unmarshal(result, &r) != nil || r.StructuredContent == nil {
		return "", false
	}
	listed := []string{"lists " + count(len(r.StructuredContent.Operations), "operation")}
	for _, o := range r.StructuredContent.Operations {
		listed = append(listed, o.OperationID+" "+o.State)
	}
	return strings.Join(listed, ", "), true
}

// leaks is what a reply shows of a record that is somebody else's, or "".
func leaks(reply *Message, o *Operation) string {
	text := string(reply.Text)
	for _, l := range []struct{ what, text string }{
		{"the principal", `"` + o.Principal + `"`},
		{"what differs", `"differs"`},
		{"an effect", `"effectId"`},
		{"the effect", `"matchingIds":["`},
		{"a result", `"storedResult":{`},
		{"the result", "created " + cmp.Or(o.Effect, "?")},
		{"the state", `"` + o.State + `"`},
	} {
		if strings.Contains(text, l.text) {
			return l.what
		}
	}
	if reply.Error == nil {
		return ""
	}
	var e struct {
		Data map[string]json.RawMessage
	}
	if json.Unmarshal(reply.Error, &e) != nil {
		return "an error that cannot be read"
	}
	for name := range e.Data { // all that a refusal says by its reason alone
		if !slices.Contains([]string{"reason", "operationId", "retryable", "nextAction"}, name) {
			return name
		}
	}
	return ""
}
