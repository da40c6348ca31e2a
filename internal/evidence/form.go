package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// names are the members that a reader of messages looks at. A name that differs
// from one of them in its case alone would be that member to some readers, this
// judge's decoder among them, and none to others.
var names = func() map[string]string {
	folded := map[string]string{}
	for _, name := range []string{
		"jsonrpc", "id", "method", "params", "result", "error", "code", "message", "data", "differs",
		"name", "arguments", "requestState", "inputResponses", "inputRequests", "_meta", "requestId", "protocolVersion",
		"action", "content", "structuredContent", "isError", "text", "resultType", "ledger", "instance", "incarnation", "position",
		"operation_id", "operationId", "replayed", "state", "storedResult", "recordedAt",
	} {
		folded[strings.ToLower(name)] = name
	}
	return folded
}()

// checkForm holds that every reader reads the same in a message: it is UTF-8 and
// JSON-RPC 2.0, no object has a member twice, and none is called almost like one
// that counts.
func checkForm(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	type object struct {
		members map[string]bool // nil: it is an array
		value   bool            // what comes next is a value
	}
	var open []object
	for {
		t, err := d.Token()
		if err != nil {
			break // the end, or what Unmarshal tells better
		}
		if k := len(open) - 1; k >= 0 && open[k].members != nil && t != json.Delim('}') {
			if open[k].value = !open[k].value; open[k].value {
				name, _ := t.(string)
				if open[k].members[name] {
					return fmt.Errorf("it has the member %q twice", name)
				}
				if known := names[strings.ToLower(name)]; known != "" && known != name {
					return fmt.Errorf("it has a member %q, which is almost %q", name, known)
				}
				open[k].members[name] = true
				continue
			}
		}
		switch t {
		case json.Delim('{'):
			open = append(open, object{members: map[string]bool{}})
		case json.Delim('['):
			open = append(open, object{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
	}
	var m struct {
		Version string `json:"jsonrpc"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	if m.Version != "2.0" {
		return fmt.Errorf("it is of JSON-RPC %q", m.Version)
	}
	return nil
}
