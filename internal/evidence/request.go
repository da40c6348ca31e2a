package evidence

import (
	"bytes"
	"encoding/json"
	"slices"

	"mcpreplay"
)

// What a call may have. The story tells all of it, but for who the client is.
var (
	callMembers   = []string{"name", "arguments", "requestState", "inputResponses", "_meta"}
	metaMembers   = []string{"io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientInfo", "io.modelcontextprotocol/clientCapabilities", "mcpreplay/operation-id", "progressToken"}
	answerMembers = []string{"action", "content"}
)

// checkRequests: a call has nothing that its line leaves out, and its client can be
// asked, if it was.
func (c *cell) checkRequests() (facts Facts) {
	for _, call := range c.calls {
		if call.Method != "tools/call" || call.Reply == nil || call.Reply.Result == nil { // what was refused may be anything
			continue
		}
		var m struct {
			Params json.RawMessage `json:"params"`
		}
		ok := json.Unmarshal(call.Text, &m) == nil && only(m.Params, callMembers)
		for name := range call.Params.Meta {
			ok = ok && slices.Contains(metaMembers, name)
		}
		for _, answer := range call.Params.InputResponses {
			ok = ok && only(answer, answerMembers)
		}
		if !ok {
			facts = append(facts, broken("request", "%s: %s has more than is told of it", call.Process.Name, call.ID))
		}
		var can struct {
			Elicitation json.RawMessage `json:"elicitation"`
		}
		modern := call.version() == ProtocolModern
		asked := mcpreplay.ClassifyResult(call.Reply.Result).Kind == mcpreplay.VerdictInputRequired
		if modern && asked && (json.Unmarshal(call.Params.Meta["io.modelcontextprotocol/clientCapabilities"], &can) != nil || can.Elicitation == nil) {
			facts = append(facts, broken("request", "%s: the client of %s cannot be asked, and was", call.Process.Name, call.ID))
		}
	}
	return facts
}

func only(object json.RawMessage, members []string) bool {
	var all map[string]json.RawMessage
	if json.Unmarshal(object, &all) != nil {
		return false
	}
	for name := range all {
		if !slices.Contains(members, name) {
			return false
		}
	}
	return true
}

// checkQuestions: the questions that a client saw are those that were sealed, and
// that its answers are held against.
func (c *cell) checkQuestions() (facts Facts) {
	for _, t := range c.tokens {
		s, err := openState(ring(StateSecret), t.text)
		if err != nil || !t.call.Process.guarded() {
			continue
		}
		var r struct {
			InputRequests map[string]struct {
				Method string `json:"method"`
				Params struct {
					Mode, Message   string
					RequestedSchema json.RawMessage
				} `json:"params"`
			} `json:"inputRequests"`
		}
		same := json.Unmarshal(t.call.Reply.Result, &r) == nil && len(r.InputRequests) == len(s.Questions)
		for name, q := range r.InputRequests {
			asked, errAsked := mcpreplay.CanonicalObject(q.Params.RequestedSchema, nil)
			sealed, errSealed := mcpreplay.CanonicalObject(s.Questions[name], nil)
			same = same && errAsked == nil && errSealed == nil && bytes.Equal(asked, sealed) &&
				q.Method == "elicitation/create" && q.Params.Mode == "form" && q.Params.Message != ""
		}
		if !same {
			facts = append(facts, broken("state", "%s: %s is not of the questions that were asked with it", t.call.Process.Name, c.labels[t.text]))
		}
	}
	return facts
}
