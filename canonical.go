package mcpreplay

import "bytes"

// Bounds of a JSON text where a [Limits] says nothing else.
const (
	DefaultJSONBytes = 1 << 20
	DefaultJSONDepth = 128
	MaxJSONDepth     = 10_000
)

// Limits bounds a JSON text. A nil *Limits, or a field that is not positive, means the default.
type Limits struct {
	Bytes int // length of the text. Defaults to DefaultJSONBytes.
	Depth int // arrays and objects inside each other; never more than MaxJSONDepth. Defaults to DefaultJSONDepth.
}

func (l *Limits) resolve() Limits {
	r := Limits{Bytes: DefaultJSONBytes, Depth: DefaultJSONDepth}
	if l != nil && l.Bytes > 0 {
		r.Bytes = l.Bytes
	}
	if l != nil && l.Depth > 0 {
		r.Depth = min(l.Depth, MaxJSONDepth)
	}
	return r
}

// Canonical returns the canonical form of one JSON text, contract v2: two texts have the same form
// exactly if they have the same value. It is strict RFC 8259 in valid UTF-8. Unpaired surrogates,
// duplicate members (compared after unescaping) and anything after the value are errors, because
// parsers disagree about what they mean.
//
// The form has no white space; members are in the order of their names' UTF-8 bytes; strings are
// literal UTF-8, not normalised, with only `"`, `\` and U+0000 to U+001F escaped (\b \t \n \f \r,
// else \u00xx in lower-case hexadecimal). Numbers are exact decimals: the sign if negative, then
// the digits without leading and trailing zeros, then what remains of the exponent: nothing if it
// is 0, that many zeros up to 20, else e and the exponent. So 10.50 is 105e-1, 1e2 is 100, 1e21
// is 1e21, and -0 and 0e5 are 0. An exponent that remains beyond ±9999 is an error with Limit set:
// whoever computes with the number next must not be made to build a number of gigabytes.
//
// The error is a *[JSONError].
func Canonical(text []byte, limits *Limits) ([]byte, error) {
	return canonicalUnder("$", text, limits)
}

// CanonicalObject is [Canonical] for a text that must be one JSON object.
func CanonicalObject(text []byte, limits *Limits) ([]byte, error) {
	return canonicalObjectUnder("$", text, limits)
}

// CheckJSON returns the error [Canonical] would return, without building the form.
func CheckJSON(text []byte, limits *Limits) error {
	w := jsonWalker{text: text, root: "$", limits: limits.resolve()}
	return w.document()
}

func canonicalUnder(root string, text []byte, limits *Limits) ([]byte, error) {
	w := jsonWalker{text: text, root: root, limits: limits.resolve(), build: true}
	if err := w.document(); err != nil {
		return nil, err
	}
	return w.out, nil
}

func canonicalObjectUnder(root string, text []byte, limits *Limits) ([]byte, error) {
	if !isJSONObject(text) {
		return nil, &JSONError{Path: root, Reason: reasonObject}
	}
	return canonicalUnder(root, text, limits)
}

// isJSONObject looks at the first character only.
func isJSONObject(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) > 0 && text[0] == '{'
}
