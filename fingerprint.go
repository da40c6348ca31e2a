package mcpreplay

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Binding is everything that makes two attempts the same request.
type Binding struct {
	Principal, Tool, Version string

	// Arguments is one JSON object, without operation_id and after schema defaults, so that neither
	// where the id travels nor a default written out changes the request.
	Arguments json.RawMessage

	// Sent is the arguments before schema defaults were filled in; nil if that is the same. It is
	// not part of the fingerprint: by it a call is known again after the defaults have changed.
	Sent json.RawMessage

	// State is the verified plaintext of the continuation; "" if there was none.
	State string

	// Answers is the normal form of the answers, one JSON object; nil if there were none.
	Answers json.RawMessage
}

// Digests are the keyed digests a record keeps instead of a request: they say whether another
// attempt is the same, and which part differs, and nothing about any value.
type Digests struct {
	KeyID string

	// Fingerprint is HMAC-SHA-256 over the canonical form of the object {contract, principal, tool,
	// toolVersion, arguments, state, answers}, contract being "v2". The others are HMAC-SHA-256 over
	// the member's name, a zero byte, and the canonical form of its value, and depend on nothing
	// else. State and answers that there were not are null. The key is the secret's subkey with the
	// label "mcpreplay/fingerprint/v2". Each digest has 32 bytes.
	Fingerprint, Arguments, Answers, State []byte

	// Sent is like Arguments, for what was sent before defaults were filled in.
	Sent []byte
}

// Equal reports whether both were made from the same request under the same key, in constant time.
// Digests that are not there are equal to nothing.
func (d Digests) Equal(o Digests) bool {
	return len(d.Fingerprint) == sha256.Size && d.KeyID == o.KeyID && hmac.Equal(d.Fingerprint, o.Fingerprint)
}

// Digest returns the digests of b under the sealing key. The error is a *[JSONError]. The size of a
// binding is not bounded here: whoever takes it from outside has limits of its own ([CheckJSON]).
func (k *Keyring) Digest(b Binding) (Digests, error) {
	return k.keys[0].digest(b)
}

// DigestUnder is [Keyring.Digest] under the key of a record that may be older. It returns an error
// that matches [ErrKeyRetired] if the ring lacks the key.
func (k *Keyring) DigestUnder(keyID string, b Binding) (Digests, error) {
	key, ok := k.find(keyID)
	if !ok {
		return Digests{}, fmt.Errorf("key %.16q: %w", keyID, ErrKeyRetired)
	}
	return key.digest(b)
}

func (r *ringKey) digest(b Binding) (Digests, error) {
	c, err := b.canonical()
	if err != nil {
		return Digests{}, err
	}
	sum := func(parts ...[]byte) []byte {
		h := hmac.New(sha256.New, r.fingerprint)
		for _, p := range parts {
			h.Write(p)
		}
		return h.Sum(nil)
	}
	return Digests{
		KeyID:       r.id,
		Fingerprint: sum(c.whole),
		Arguments:   sum([]byte("arguments\x00"), c.arguments),
		Answers:     sum([]byte("answers\x00"), c.answers),
		State:       sum([]byte("state\x00"), c.state),
		Sent:        sum([]byte("sent\x00"), c.sent),
	}, nil
}

// canonicalBinding is the canonical form of a binding and of the parts that have digests of their own.
type canonicalBinding struct {
	whole, arguments, answers, state, sent []byte
}

func (b Binding) canonical() (c canonicalBinding, err error) {
	null := []byte("null")
	unbounded := &Limits{Bytes: math.MaxInt, Depth: MaxJSONDepth}
	if c.arguments, err = canonicalObjectUnder("$.arguments", b.Arguments, unbounded); err != nil {
		return c, err
	}
	c.sent = c.arguments
	if len(b.Sent) > 0 {
		if c.sent, err = canonicalObjectUnder("$.sent", b.Sent, unbounded); err != nil {
			return c, err
		}
	}
	c.answers, c.state = null, null
	if len(b.Answers) > 0 {
		if c.answers, err = canonicalObjectUnder("$.answers", b.Answers, unbounded); err != nil {
			return c, err
		}
	}
	if b.State != "" {
		if c.state, err = canonicalString("$.state", b.State); err != nil {
			return c, err
		}
	}
	principal, err := canonicalString("$.principal", b.Principal)
	if err != nil {
		return c, err
	}
	tool, err := canonicalString("$.tool", b.Tool)
	if err != nil {
		return c, err
	}
	version, err := canonicalString("$.toolVersion", b.Version)
	if err != nil {
		return c, err
	}
	c.whole = slices.Concat(
		[]byte(`{"answers":`), c.answers,
		[]byte(`,"arguments":`), c.arguments,
		[]byte(`,"contract":"v2","principal":`), principal,
		[]byte(`,"state":`), c.state,
		[]byte(`,"tool":`), tool,
		[]byte(`,"toolVersion":`), version,
		[]byte(`}`))
	return c, nil
}

// ParseRequestV2 reads a binding from one JSON object with the members principal, tool and
// toolVersion (strings), arguments (an object) and, both optional, state (a string or null) and
// answers (an object or null). Any other member is refused: a misspelt one would silently not be
// bound. The error is a *[JSONError].
func ParseRequestV2(line []byte) (Binding, error) {
	if !isJSONObject(line) {
		return Binding{}, &JSONError{Path: "$", Reason: reasonObject}
	}
	w := jsonWalker{text: line, root: "$", limits: (*Limits)(nil).resolve()}
	if err := w.document(); err != nil {
		return Binding{}, err
	}
	r := requestReader{line: line, members: w.top}
	b := Binding{
		Principal: r.text("principal"),
		Tool:      r.text("tool"),
		Version:   r.text("toolVersion"),
		Arguments: r.arguments(),
	}
	if state := r.textOrNull("state", "$.state", false); state != nil {
		b.State = *state
	}
	if answers := r.value("answers", false); !isJSONNull(answers) {
		if !isJSONObject(answers) {
			r.fail("$.answers", "must be an object or null")
		}
		b.Answers = bytes.Clone(answers)
	}
	r.refuseOthers()
	if r.err != nil {
		return Binding{}, r.err
	}
	return b, nil
}
