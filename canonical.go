package mcpreplay

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

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

// JSONError says what is wrong with a JSON text, and where. Its text is safe to log: it repeats
// nothing of the input except member names, quoted and shortened, and one quoted character.
type JSONError struct {
	Path   string // like $.a[0]["odd name"]
	Reason string
	Limit  bool // the text may be well formed, but is larger, deeper or has a larger exponent than allowed
	Offset int  // bytes before the fault, in the text or member that was read
}

func (e *JSONError) Error() string {
	if e.Offset == 0 {
		return e.Path + ": " + e.Reason
	}
	return fmt.Sprintf("%s: %s at byte %d", e.Path, e.Reason, e.Offset)
}

const (
	reasonEnd       = "unexpected end of text"
	reasonUTF8      = "invalid UTF-8"
	reasonSurrogate = "unpaired surrogate"
	reasonDuplicate = "duplicate member"
	reasonObject    = "must be one JSON object"
)

type jsonStep struct {
	kind  jsonStepKind
	name  []byte
	index int
}

type jsonStepKind uint8

const (
	stepNone    jsonStepKind = iota // between members: a fault belongs to the container
	stepBadName                     // in a name that cannot be shown
	stepName
	stepIndex
)

func (w *jsonWalker) unexpected(at int) error {
	if at >= len(w.text) {
		return w.fault(len(w.text), reasonEnd)
	}
	r, size := utf8.DecodeRune(w.text[at:])
	if r == utf8.RuneError && size == 1 {
		return w.fault(at, reasonUTF8)
	}
	return w.fault(at, "unexpected character "+strconv.QuoteRuneToASCII(r))
}

func (w *jsonWalker) fault(at int, reason string) *JSONError {
	return &JSONError{Path: w.path(), Reason: reason, Offset: at}
}

const (
	pathEnds = 6  // steps shown at each end of a long path
	pathName = 40 // bytes shown of a long name
)

func (w *jsonWalker) path() string {
	var b strings.Builder
	b.WriteString(w.root)
	for i, s := range w.steps {
		if len(w.steps) > 2*pathEnds && i >= pathEnds && i < len(w.steps)-pathEnds {
			if i == pathEnds {
				b.WriteString("[...]")
			}
			continue
		}
		switch s.kind {
		case stepBadName:
			b.WriteString(".<key>")
		case stepName:
			b.WriteString(pathMember(s.name))
		case stepIndex:
			fmt.Fprintf(&b, "[%d]", s.index)
		}
	}
	return b.String()
}

// pathMember quotes every name that is not plainly a word: names come from outside, and errors go
// to logs and terminals.
func pathMember(name []byte) string {
	long := len(name) > pathName
	if long {
		name = name[:pathName]
		for len(name) > 0 && !utf8.Valid(name) {
			name = name[:len(name)-1]
		}
	}
	word := len(name) > 0 && !long
	for _, c := range name {
		word = word && (c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z')
	}
	if word {
		return "." + string(name)
	}
	quoted := strconv.QuoteToASCII(string(name))
	if long {
		quoted += "..."
	}
	return "[" + quoted + "]"
}
