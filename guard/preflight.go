package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// defaultMessageBytes bounds one inbound message. It is the SDK's own bound of an
// HTTP body, so that both transports take the same calls.
const defaultMessageBytes = 4 << 20

// maxRequestState bounds the token a client echoes. Ours are far shorter; whoever
// sends more does not send one of ours.
const maxRequestState = 64 << 10

// checkMessage reads one inbound JSON-RPC message before the SDK does and lets
// pass only what every reader understands alike. The SDK (v1.8.0) rounds ids and
// answers under the rounded one, takes id null for a notification, lets the last
// of two equal members win, ignores what follows the first value of a body, takes
// "requestState":"" for none, matches the members of an input response in any
// case, and repeats whole params, request state included, in an error.
//
// What is refused, the first row that fits:
//
//	fault                                            code    reason
//	larger than limits.Bytes                         -32600  limit_exceeded
//	too deep, or a huge exponent: inside params      -32602  limit_exceeded
//	                              elsewhere          -32600  limit_exceeded
//	not JSON, or text after the value                -32700  invalid_message
//	duplicate member, bad UTF-8, lone surrogate:
//	                              inside params      -32602  invalid_arguments
//	                              elsewhere          -32600  invalid_message
//	not one object (a batch is none)                 -32600  invalid_message
//	a member name that is right but for its case     -32602  invalid_arguments
//	jsonrpc, id, method, or a mix of call and reply  -32600  invalid_message
//	params of the wrong type; of a tools/call: name,
//	arguments, _meta or inputResponses too           -32602  invalid_arguments
//	requestState of a tools/call                     -32602  invalid_request_state
//
// Nothing of the message is repeated in an answer but its id, and that only if it
// is a string of at most 1 KiB or an integer within ±(2^53-1) written as one.
func checkMessage(text []byte, limits *mcpreplay.Limits) (inbound, *badMessage) {
	fault := mcpreplay.CheckJSON(text, limits)
	m, twice, err := readMembers(text)
	id := usableID(m["id"])
	if twice["id"] {
		id = nil
	}
	if fault != nil {
		bad := faultyText(text, fault)
		if bad.code != jsonrpc.CodeParseError { // nothing in a text that is not JSON can be trusted
			bad.under(id)
		}
		if err == nil { // nothing may answer a notification or an answer, however broken
			_, asks := m["id"]
			bad.answer = m["method"] == nil && (m["result"] != nil || m["error"] != nil)
			bad.silent = bad.answer || isMethod(m["method"]) && !asks
		}
		return inbound{}, bad
	}
	if err != nil {
		return inbound{}, invalid("not one JSON object")
	}
	in, bad := checkEnvelope(m)
	return in, bad.under(id)
}

// inbound is what is known of a message that passed.
type inbound struct {
	method string // "" for a reply to a question of ours
	call   bool   // it asks for a reply
	talks  bool   // its _meta asks for progress or log messages before the reply
}

func checkEnvelope(m map[string]json.RawMessage) (inbound, *badMessage) {
	if misspelt(m, "jsonrpc", "id", "method", "params", "result", "error") {
		return inbound{}, invalidParams("a member name of the message differs from the expected one in its case only")
	}
	if v, ok := jsonString(m["jsonrpc"]); !ok || v != "2.0" {
		return inbound{}, invalid(`jsonrpc is not "2.0"`)
	}
	_, isCall := m["method"]
	_, hasID := m["id"]
	_, hasResult := m["result"]
	_, hasError := m["error"]
	if !isCall {
		if !hasResult && !hasError {
			return inbound{}, invalid("no method")
		}
		return checkReply(m)
	}
	method, ok := jsonString(m["method"])
	if !ok || method == "" {
		return inbound{}, invalid("method is not a name")
	}
	if hasResult || hasError {
		return inbound{}, invalid("both a request and a response")
	}
	if hasID && usableID(m["id"]) == nil {
		return inbound{}, invalid("id is neither a string nor an integer within ±(2^53-1)")
	}
	in := inbound{method: method, call: hasID}
	bad := checkParams(&in, m["params"])
	if bad == nil && !hasID && !strings.HasPrefix(method, "notifications/") {
		bad = invalid("a request without an id")
	}
	if bad != nil && !hasID {
		bad.silent = true
	}
	return in, bad
}

// checkReply checks the answer to a question of ours. A broken one is not
// answered: its id is one of ours, and may be one of the client's own as well.
func checkReply(m map[string]json.RawMessage) (inbound, *badMessage) {
	var bad *badMessage
	fault, hasError := m["error"]
	_, hasResult := m["result"]
	switch {
	case hasError == hasResult:
		bad = invalid("a response with both a result and an error")
	case usableID(m["id"]) == nil:
		bad = invalid("a response without a usable id")
	case hasError:
		e, _, err := readMembers(fault)
		_, codeErr := strconv.ParseInt(string(e["code"]), 10, 64)
		if _, isText := jsonString(e["message"]); err != nil || codeErr != nil || !isText {
			bad = invalid("an error without a code and a message")
		}
	}
	if bad != nil {
		bad.silent, bad.answer = true, true
	}
	return inbound{}, bad
}

func checkParams(in *inbound, params json.RawMessage) *badMessage {
	if isNull(params) && in.method != methodCall {
		return nil
	}
	p, _, err := readMembers(params)
	if err != nil {
		return invalidParams("params is not an object")
	}
	if meta, _, err := readMembers(p["_meta"]); err == nil {
		//lint:ignore SA1019 clients of the deprecation window still ask for logs
		in.talks = !isNull(meta["progressToken"]) || !isNull(meta[mcp.MetaKeyLogLevel])
	}
	switch in.method {
	case methodCall:
		return checkCall(p)
	case "notifications/cancelled":
		if usableID(p["requestId"]) == nil { // 1.5 would cancel request 1
			return invalidParams("requestId is not a request id")
		}
	}
	return nil
}

// checkCall checks the params of a tools/call. Whether arguments fit is the tool's
// to say; here they are an object, or left out.
func checkCall(p map[string]json.RawMessage) *badMessage {
	if misspelt(p, "name", "arguments", "inputResponses", "requestState", "_meta") {
		return invalidParams("a member name of params differs from the expected one in its case only")
	}
	if name, ok := jsonString(p["name"]); !ok || name == "" {
		return invalidParams("name is not the name of a tool")
	}
	if args := p["arguments"]; !isNull(args) && args[0] != '{' {
		return invalidParams("arguments is not an object")
	}
	if meta := p["_meta"]; !isNull(meta) {
		// Decoded as the SDK does it: a number beyond float64 would make it
		// take the call for one of an older protocol.
		var decoded map[string]any
		if json.Unmarshal(meta, &decoded) != nil {
			return invalidParams("_meta is not an object that can be decoded")
		}
		m, _, _ := readMembers(meta)
		if token := m["progressToken"]; !isNull(token) && usableID(token) == nil {
			return invalidParams("progressToken is neither a string nor an integer within ±(2^53-1)")
		}
	}
	if state := p["requestState"]; !isNull(state) {
		if s, ok := jsonString(state); !ok || s == "" || len(s) > maxRequestState || strings.ContainsFunc(s, breaksLine) {
			return invalidState()
		}
	}
	return checkResponses(p["inputResponses"])
}

// breaksLine reports the characters that no token has and that would let one be
// written in two ways: Go's strict base64 decoder skips line breaks.
func breaksLine(r rune) bool { return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp) }

// checkResponses checks the answers of a continuation. The SDK decodes them with
// encoding/json: without regard to case, and into float64.
func checkResponses(raw json.RawMessage) *badMessage {
	if isNull(raw) {
		return nil
	}
	responses, _, err := readMembers(raw)
	if err != nil {
		return invalidParams("inputResponses is not an object")
	}
	for _, response := range responses {
		r, _, err := readMembers(response)
		if err != nil {
			return invalidParams("an input response is not an object")
		}
		if misspelt(r, "action", "content", "_meta", "role", "roots", "model", "stopReason") {
			return invalidParams("a member name of an input response differs from the expected one in its case only")
		}
		kinds := 0
		for _, kind := range []string{"action", "role", "roots"} {
			if _, ok := r[kind]; ok {
				kinds++
			}
		}
		if kinds != 1 {
			return invalidParams("an input response has not exactly one of action, role and roots")
		}
	}
	var decoded mcp.InputResponseMap
	if json.Unmarshal(raw, &decoded) != nil {
		return invalidParams("an input response cannot be decoded")
	}
	if !exactNumbers(raw) {
		return invalidParams("an input response has a number that float64 cannot hold")
	}
	return nil
}

// exactNumbers reports whether every number of a JSON text is what its float64
// reads as: what was bound and what was answered must not differ.
func exactNumbers(text []byte) bool {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return err == io.EOF
		}
		n, ok := token.(json.Number)
		if !ok {
			continue
		}
		f, err := n.Float64()
		if err != nil {
			return false
		}
		sent, err1 := mcpreplay.Canonical([]byte(n), nil)
		held, err2 := mcpreplay.Canonical(strconv.AppendFloat(nil, f, 'g', -1, 64), nil)
		if err1 != nil || err2 != nil || !bytes.Equal(sent, held) {
			return false
		}
	}
}

// readMembers reads one JSON object, members by their exact names, and which names
// are there more than once.
func readMembers(text []byte) (m map[string]json.RawMessage, twice map[string]bool, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil {
		return nil, nil, err
	} else if t != json.Delim('{') {
		return nil, nil, errors.New("not an object")
	}
	m = make(map[string]json.RawMessage)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return m, twice, err
		}
		name, _ := t.(string)
		if _, ok := m[name]; ok {
			if twice == nil {
				twice = make(map[string]bool)
			}
			twice[name] = true
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return m, twice, err
		}
		m[name] = v
	}
	_, err = d.Token()
	return m, twice, err
}

// misspelt reports whether a name of m equals one of names in all but case.
func misspelt(m map[string]json.RawMessage, names ...string) bool {
	for have := range m {
		for _, want := range names {
			if have != want && strings.EqualFold(have, want) {
				return true
			}
		}
	}
	return false
}

// usableID returns raw if it is an id that survives being decoded and encoded, or
// nil. Numbers must be written as plain integers: a reader may compare the text.
func usableID(raw json.RawMessage) json.RawMessage {
	const bound, longest = 1<<53 - 1, 1 << 10
	if len(raw) > 0 && raw[0] == '"' && mcpreplay.CheckJSON(raw, &mcpreplay.Limits{Bytes: longest}) == nil {
		return raw
	}
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil && -bound <= n && n <= bound && strconv.FormatInt(n, 10) == string(raw) {
		return raw
	}
	return nil
}

func isMethod(raw json.RawMessage) bool {
	s, ok := jsonString(raw)
	return ok && s != ""
}

func jsonString(raw json.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// isNull reports whether a member is absent or null.
func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
