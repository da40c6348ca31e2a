package mcpreplay

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// RequestV1 is what contract v1 binds. The guard uses v2 ([Binding]); v1 exists to agree with other
// implementations of it, byte for byte.
type RequestV1 struct {
	Principal           *string // nil is null
	ToolID, ToolVersion string
	Arguments           json.RawMessage // one JSON object
	ContinuationState   *string         // nil is null; bound as text, whatever it contains
	InputResponses      json.RawMessage // any JSON value; nil is null
}

// ParseRequestV1 reads a request from one JSON object with the members principal (a string or null),
// tool_id and tool_version (strings), arguments (an object) and, both optional, continuation_state
// (a string or null) and input_responses. Other members are ignored: v1 does not bind them. Of
// members with one name the last counts. The error is a *[JSONError].
func ParseRequestV1(line []byte) (RequestV1, error) {
	if !isJSONObject(line) {
		return RequestV1{}, &JSONError{Path: "$", Reason: reasonObject}
	}
	w := jsonWalker{text: line, root: "$", limits: (*Limits)(nil).resolve(), v1: true}
	if err := w.document(); err != nil {
		return RequestV1{}, err
	}
	// Faults that only v1's own rules know (w.later) may sit in a member that is ignored.
	r := requestReader{line: line, members: w.top}
	req := RequestV1{
		Principal:         r.textOrNull("principal", "$.principal", true),
		ToolID:            r.text("tool_id"),
		ToolVersion:       r.text("tool_version"),
		Arguments:         r.arguments(),
		ContinuationState: r.textOrNull("continuation_state", "$", false),
	}
	if raw := r.value("input_responses", false); !isJSONNull(raw) {
		req.InputResponses = bytes.Clone(raw)
	}
	if r.err != nil {
		return RequestV1{}, r.err
	}
	return req, nil
}

// FingerprintV1 returns the digest of r under contract v1 as 64 lower-case hexadecimal characters.
// The key has at least [MinSecretLength] bytes.
//
// State and responses are replaced by their keyed digests; the canonical form of the whole then has
// a plain SHA-256. The form is that of [Canonical] except that numbers must be integers within
// ±(2^53-1), that a number written with a point or an exponent goes through binary64 first, and that
// of members with one name the last counts. Faults are told as *[JSONError]; in state and responses
// the path starts anew at $.
func FingerprintV1(key []byte, r RequestV1) (string, error) {
	text, err := r.canonical(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

func (r RequestV1) canonical(key []byte) ([]byte, error) {
	if len(key) < MinSecretLength {
		return nil, fmt.Errorf("fingerprint key has %d bytes, at least %d are needed", len(key), MinSecretLength)
	}
	state, err := stringOrNull("$", r.ContinuationState)
	if err != nil {
		return nil, fmt.Errorf("continuation_state: %w", err)
	}
	responses := []byte("null")
	if r.InputResponses != nil {
		if responses, err = canonicalV1("$", r.InputResponses); err != nil {
			return nil, fmt.Errorf("input_responses: %w", err)
		}
	}
	if !isJSONObject(r.Arguments) {
		return nil, &JSONError{Path: "$.arguments", Reason: reasonObject}
	}
	arguments, err := canonicalV1("$.arguments", r.Arguments)
	if err != nil {
		return nil, err
	}
	principal, err := stringOrNull("$.principal", r.Principal)
	if err != nil {
		return nil, err
	}
	toolID, err := canonicalString("$.tool_id", r.ToolID)
	if err != nil {
		return nil, err
	}
	toolVersion, err := canonicalString("$.tool_version", r.ToolVersion)
	if err != nil {
		return nil, err
	}
	return slices.Concat(
		[]byte(`{"arguments":`), arguments,
		[]byte(`,"continuation_state":"`), opaqueV1(key, "continuation_state", state),
		[]byte(`","input_responses":"`), opaqueV1(key, "input_responses", responses),
		[]byte(`","principal":`), principal,
		[]byte(`,"tool_id":`), toolID,
		[]byte(`,"tool_version":`), toolVersion,
		[]byte(`}`)), nil
}

// opaqueV1 is what v1 puts in the place of a value that may be secret.
func opaqueV1(key []byte, name string, canonical []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(name + "\x00"))
	h.Write(canonical)
	return hex.AppendEncode(nil, h.Sum(nil))
}

func stringOrNull(path string, s *string) ([]byte, error) {
	if s == nil {
		return []byte("null"), nil
	}
	return canonicalString(path, *s)
}

// canonicalV1 returns the v1 form of a text. A fault in a value that a later member of the same name
// replaces is none, so faults are collected first; the walk is then done again up to the first that
// is left, because only the walk knows its path.
func canonicalV1(root string, text []byte) ([]byte, error) {
	w := jsonWalker{text: text, root: root, limits: (*Limits)(nil).resolve(), build: true, v1: true}
	if err := w.document(); err != nil {
		return nil, err
	}
	if len(w.later) == 0 {
		return w.out, nil
	}
	w = jsonWalker{text: text, root: root, limits: w.limits, v1: true, stop: 1 + w.later[0]}
	return nil, w.document()
}

// soft reports a fault that v1 forgives if its value is replaced; v2 forgives nothing.
func (w *jsonWalker) soft(at int, reason string) error {
	if !w.v1 || w.stop == at+1 {
		return w.fault(at, reason)
	}
	w.later = append(w.later, at)
	return nil
}

// keepLast drops all but the last of members with one name, and the faults since later that lie in
// what it drops. The list is sorted by name, then place.
func (w *jsonWalker) keepLast(list []jsonMember, later int) []jsonMember {
	kept := list[:0]
	var lost []jsonMember
	for i, m := range list {
		if i+1 < len(list) && bytes.Equal(m.name, list[i+1].name) {
			lost = append(lost, m)
		} else {
			kept = append(kept, m)
		}
	}
	if len(lost) == 0 || len(w.later) == later {
		return kept
	}
	slices.SortFunc(lost, func(a, b jsonMember) int { return cmp.Compare(a.at, b.at) })
	left := slices.DeleteFunc(w.later[later:], func(fault int) bool {
		i, exact := slices.BinarySearchFunc(lost, fault, func(m jsonMember, at int) int { return cmp.Compare(m.at, at) })
		return exact || i > 0 && fault < lost[i-1].to
	})
	w.later = w.later[:later+len(left)]
	return kept
}

// requestReader takes the members of one request, which is well formed, and keeps the first fault.
type requestReader struct {
	line    []byte
	members []jsonMember // sorted, no two of one name
	taken   [][]byte
	err     error
}

func (r *requestReader) fail(path, reason string) {
	if r.err == nil {
		r.err = &JSONError{Path: path, Reason: reason}
	}
}

// value returns the text of a member, nil if it is absent.
func (r *requestReader) value(name string, required bool) []byte {
	for _, m := range r.members {
		if string(m.name) == name {
			r.taken = append(r.taken, m.name)
			return r.line[m.from:m.to]
		}
	}
	if required {
		r.fail("$."+name, "missing")
	}
	return nil
}

func (r *requestReader) text(name string) string {
	raw := r.value(name, true)
	if len(raw) > 0 && raw[0] == '"' {
		return r.unquote("$."+name, raw)
	}
	r.fail("$."+name, "must be a string")
	return ""
}

func (r *requestReader) textOrNull(name, path string, required bool) *string {
	raw := r.value(name, required)
	if isJSONNull(raw) {
		return nil
	}
	if raw[0] != '"' {
		r.fail("$."+name, "must be a string or null")
		return nil
	}
	s := r.unquote(path, raw)
	return &s
}

func (r *requestReader) arguments() []byte {
	raw := r.value("arguments", true)
	if !isJSONObject(raw) {
		r.fail("$.arguments", "must be an object")
	}
	return bytes.Clone(raw) // callers reuse the buffer a line came in
}

// unquote returns the meaning of a string, in which only a surrogate can still be wrong.
func (r *requestReader) unquote(path string, raw []byte) string {
	w := jsonWalker{text: raw, root: path}
	inside, _, err := w.scanString()
	if err != nil && r.err == nil {
		r.err = err
	}
	return string(appendUnescaped(nil, inside))
}

// refuseOthers fails if the request has a member that was not asked for.
func (r *requestReader) refuseOthers() {
	for _, m := range r.members {
		known := false
		for _, name := range r.taken {
			known = known || bytes.Equal(name, m.name)
		}
		if !known {
			r.fail("$"+pathMember(m.name), "unknown member")
		}
	}
}

// isJSONNull reports whether the text of a member is null or there is none.
func isJSONNull(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }
