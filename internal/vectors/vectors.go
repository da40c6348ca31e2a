// Package vectors holds an implementation against the portable vectors: what is to be
// done with a request once another was accepted under the same operation id.
package vectors

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"mcpreplay"
)

//go:embed portable-v1.json
var portablePack []byte

// PortablePack is the pack of vectors that the program carries. Its format is in
// README.md.
func PortablePack() (*Pack, error) { return ParsePack(portablePack) }

// Classification says what is to be done with a request once an earlier one under
// the same operation id was accepted.
type Classification string

// The classifications. They are stable strings in packs and on the wire.
const (
	ClassReplay      Classification = "replay"       // the same request: answer with the stored result
	ClassConflict    Classification = "conflict"     // another request: refuse it
	ClassReject      Classification = "reject"       // no continuation at all: refuse it
	ClassStatusOnly  Classification = "status_only"  // the status settles it: send nothing again
	ClassStopUnknown Classification = "stop_unknown" // nothing settles it: stop, and do not guess
)

// ClassInvalid stands in a result for what is no classification.
const ClassInvalid Classification = "invalid"

var classifications = []Classification{ClassReplay, ClassConflict, ClassReject, ClassStatusOnly, ClassStopUnknown}

// vectorKinds say whose policy a vector is about.
var vectorKinds = []string{
	"reference_policy", "server_single_use", "reference_identity_policy", "reference_state_policy", "reference_recovery_policy",
}

// What became of the reply to the base request, in a pack. A question says lost in
// both cases: it is for the implementation to read what the status tells.
const (
	transportLost    = "lost_reply"
	transportMissing = "lost_reply_missing_record"
)

// packVersion is the only version of a pack, and of a question, that there is.
const packVersion = 1

// ErrVectorVersion: the pack is of a version that this program does not know.
var ErrVectorVersion = errors.New("unsupported vector version")

// Pack is a base request and what is to be done with variations of it.
type Pack struct {
	KeyHex  string
	Base    json.RawMessage // the members of contract v1, all six
	Vectors []Vector

	scope mcpreplay.Scope
}

// Vector is one variation of the base request.
type Vector struct {
	Name      string
	Kind      string
	Transport string                     // what became of the first reply; "" if it arrived
	Changes   map[string]json.RawMessage // members that replace those of the base
	Expected  Classification

	candidate json.RawMessage
}

var requestMembers = []string{"principal", "tool_id", "tool_version", "arguments", "continuation_state", "input_responses"}

// ParsePack reads a pack. It refuses all it does not know: a misspelt member would
// leave a candidate as the base is, and a vector that proves nothing.
func ParsePack(text []byte) (*Pack, error) {
	if err := mcpreplay.CheckJSON(text, nil); err != nil {
		return nil, err
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil || raw == nil {
		return nil, errors.New("a pack is a JSON object")
	}
	if version := raw["version"]; string(version) != fmt.Sprint(packVersion) {
		return nil, fmt.Errorf("%w: %.20q, known is %d", ErrVectorVersion, version, packVersion)
	}
	m, err := membersOf(text, []string{"version", "keyHex", "base", "vectors"})
	if err != nil {
		return nil, err
	}
	p := &Pack{Base: m["base"]}
	if err := p.readKey(m["keyHex"]); err != nil {
		return nil, fmt.Errorf("keyHex: %w", err)
	}
	base, err := p.readBase()
	if err != nil {
		return nil, fmt.Errorf("base: %w", err)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(m["vectors"], &list); err != nil || len(list) == 0 {
		return nil, errors.New("vectors must be a list that is not empty")
	}
	for i, text := range list {
		v, err := readVector(text, base)
		if err != nil {
			return nil, fmt.Errorf("vector %d: %w", i+1, err)
		}
		if slices.ContainsFunc(p.Vectors, func(other Vector) bool { return other.Name == v.Name }) {
			return nil, fmt.Errorf("vector %d: there are two of the name %q", i+1, v.Name)
		}
		p.Vectors = append(p.Vectors, v)
	}
	return p, nil
}

func (p *Pack) readKey(text json.RawMessage) error {
	if err := json.Unmarshal(text, &p.KeyHex); err != nil {
		return errors.New("must be a string")
	}
	key, err := hex.DecodeString(p.KeyHex)
	if err != nil {
		return errors.New("must be hexadecimal digits, two for each byte")
	}
	if len(key) < mcpreplay.MinSecretLength {
		return fmt.Errorf("has %d bytes, at least %d are needed", len(key), mcpreplay.MinSecretLength)
	}
	return nil
}

// readBase returns the members of the base. It needs what the vectors take from
// it: a principal to be somebody else than, and a state to lose.
func (p *Pack) readBase() (map[string]json.RawMessage, error) {
	members, err := membersOf(p.Base, requestMembers)
	if err != nil {
		return nil, err
	}
	r, err := mcpreplay.ParseRequestV1(p.Base)
	switch {
	case err != nil:
		return nil, err
	case r.Principal == nil || *r.Principal == "":
		return nil, errors.New("principal must not be null or empty")
	case r.ContinuationState == nil:
		return nil, errors.New("continuation_state must not be null")
	}
	p.scope = mcpreplay.Scope{OperationID: "portable-1", Principal: *r.Principal, Backend: "portable"}
	return members, nil
}

func readVector(text json.RawMessage, base map[string]json.RawMessage) (v Vector, err error) {
	m, err := membersOf(text, []string{"name", "kind", "changes", "expected"}, "transport")
	if err != nil {
		return v, err
	}
	for name, to := range map[string]any{"name": &v.Name, "kind": &v.Kind, "transport": &v.Transport, "expected": &v.Expected} {
		if m[name] != nil && json.Unmarshal(m[name], to) != nil {
			return v, fmt.Errorf("%s must be a string", name)
		}
	}
	switch {
	case v.Name == "":
		return v, errors.New("name is empty")
	case !slices.Contains(vectorKinds, v.Kind):
		return v, fmt.Errorf("unknown kind %q", v.Kind)
	case !slices.Contains([]string{"", transportLost, transportMissing}, v.Transport):
		return v, fmt.Errorf("unknown transport %q", v.Transport)
	case !slices.Contains(classifications, v.Expected):
		return v, fmt.Errorf("unknown classification %q", v.Expected)
	}
	if v.Changes, err = membersOf(m["changes"], nil, requestMembers...); err != nil {
		return v, fmt.Errorf("changes: %w", err)
	}
	candidate := maps.Clone(base)
	maps.Copy(candidate, v.Changes)
	if v.candidate, err = oneLine(candidate); err != nil {
		return v, err
	}
	if _, err := mcpreplay.ParseRequestV1(v.candidate); err != nil {
		return v, fmt.Errorf("changes: %w", err)
	}
	return v, nil
}

// membersOf returns the members of an object, which has the required ones and no
// others than these and the optional ones.
func membersOf(text json.RawMessage, required []string, optional ...string) (map[string]json.RawMessage, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(text, &m); err != nil || m == nil {
		return nil, errors.New("must be an object")
	}
	for _, name := range required {
		if m[name] == nil {
			return nil, fmt.Errorf("%s is missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(required, name) && !slices.Contains(optional, name) {
			return nil, fmt.Errorf("unknown member %q", name)
		}
	}
	return m, nil
}

// oneLine is v as JSON with its characters as they are, without a line end.
func oneLine(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Question is what an implementation is asked about one vector. Nothing in it
// names the vector or the classification that is expected.
type Question struct {
	Version   int             `json:"version"`
	Vector    int32           `json:"vector"` // to be repeated in the answer; drawn, so that it means nothing
	KeyHex    string          `json:"keyHex"`
	Base      json.RawMessage `json:"base"`      // was accepted
	Candidate json.RawMessage `json:"candidate"` // came after it, under the same operation id

	// Only if the reply to the base was lost: the identity of that attempt, and
	// what the status of it tells now.
	Transport   string                 `json:"transport,omitempty"`
	Scope       *mcpreplay.Scope       `json:"scope,omitempty"`
	Observation *mcpreplay.Observation `json:"observation,omitempty"`
}

func (p *Pack) question(v Vector, number int32) Question {
	q := Question{Version: packVersion, Vector: number, KeyHex: p.KeyHex, Base: p.Base, Candidate: v.candidate}
	if v.Transport != "" {
		q.Transport, q.Scope = transportLost, &p.scope
		q.Observation = p.observe(v.Transport == transportLost)
	}
	return q
}

// Classifier answers a question. An error says why there is no answer.
type Classifier func(context.Context, Question) (Classification, error)

// Result is how one vector was classified. Its members are a contract:
// docs/cli.md.
type Result struct {
	Name     string         `json:"name"`
	Expected Classification `json:"expected"`
	Actual   Classification `json:"actual"`
	Kind     string         `json:"kind"`
}

// OK reports whether the vector was classified as expected.
func (r Result) OK() bool { return r.Actual == r.Expected }

// Check asks about every vector, in order. What is no answer is ClassInvalid, with
// its reason told as soon as it is known. Check fails only when ctx has ended.
func (p *Pack) Check(ctx context.Context, classify Classifier, invalid func(name string, reason error)) ([]Result, error) {
	results := make([]Result, 0, len(p.Vectors))
	for _, v := range p.Vectors {
		r := Result{Name: v.Name, Expected: v.Expected, Kind: v.Kind}
		var err error
		r.Actual, err = classify(ctx, p.question(v, 1+rand.Int32N(1<<30)))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil && !slices.Contains(classifications, r.Actual) {
			err = fmt.Errorf("there is no classification %.40q", r.Actual)
		}
		if err != nil {
			r.Actual = ClassInvalid
			invalid(v.Name, err)
		}
		results = append(results, r)
	}
	return results, nil
}
