package evidence

import (
	"bytes"
	"encoding/json"

	"mcpreplay"
)

// checkOlder: the record of a call of an older client, which never sees request
// state, is of its arguments and of what it answered in the middle of the call. What
// was sealed between is not on the wire, so the digest of it is not held here.
func (c *cell) checkOlder() (facts Facts) {
	tries := 10_000 // more than any cell needs
	held, by := map[*Operation]bool{}, map[*Operation]*Call{}
	for _, call := range c.calls {
		o := c.operation(call.Operation())
		if o == nil || o.Tool == "" || call.Params.RequestState != nil || call.Method != "tools/call" ||
			call.Params.Name == statusTool || call.Params.Name == fenceTool || call.Params.Name == acknowledgeTool ||
			o.Principal != c.principal(call) || !call.Process.guarded() || !call.Process.older() {
			continue
		}
		by[o] = call
		held[o] = held[o] || call.Params.Name == o.Tool && c.sameOlder(call, o, &tries)
	}
	for _, d := range c.databases {
		for i := range d.Operations {
			if o := &d.Operations[i]; by[o] != nil && !held[o] {
				facts = append(facts, broken("fingerprint", "%s: no request that was sent is that of %s", by[o].Process.Name, o.ID))
			}
		}
	}
	return facts
}

// older reports whether a client began as those do that are asked in the middle of
// their calls.
func (p *Process) older() bool {
	return len(p.Messages) > 0 && p.Messages[0].Method == "initialize"
}

func (c *cell) sameOlder(call *Call, o *Operation, tries *int) bool {
	filled, asSent, err := arguments(call.Params.Arguments)
	if err != nil {
		return false
	}
	for _, m := range call.Process.Messages {
		var a struct {
			Action  string                     `json:"action"`
			Content map[string]json.RawMessage `json:"content,omitempty"`
		}
		if !m.Sent || m.Method != "" || m.At < call.At || call.Reply != nil && m.At > call.Reply.At || json.Unmarshal(m.Result, &a) != nil || len(a.Content) > 1 {
			continue
		}
		if *tries--; *tries < 0 {
			return false
		}
		name := "body"
		for field := range a.Content { // a question is named after its only field
			name = field
		}
		normal, err := json.Marshal(map[string]any{name: a})
		if err != nil {
			return false
		}
		digests, err := ring(FingerprintSecret).DigestUnder(o.Digests.KeyID, mcpreplay.Binding{
			Principal: c.principal(call), Tool: call.Params.Name, Version: o.Version, Arguments: filled, Sent: asSent, Answers: normal,
		})
		if err == nil && bytes.Equal(digests.Arguments, o.Digests.Arguments) && bytes.Equal(digests.Answers, o.Digests.Answers) &&
			bytes.Equal(digests.Sent, o.Digests.Sent) {
			return true
		}
	}
	return false
}

// arguments are those of a call without the id, with the defaults of the tool's
// schema and as they were sent.
func arguments(raw json.RawMessage) (filled, asSent json.RawMessage, err error) {
	sent := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &sent); err != nil {
		return nil, nil, err
	}
	delete(sent, "operation_id")
	if asSent, err = json.Marshal(sent); err != nil {
		return nil, nil, err
	}
	if sent["mode"] == nil {
		sent["mode"] = json.RawMessage(`"atomic"`)
	}
	filled, err = json.Marshal(sent)
	return filled, asSent, err
}
