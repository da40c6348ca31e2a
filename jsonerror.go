package mcpreplay

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
