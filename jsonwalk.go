package mcpreplay

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// jsonWalker reads one JSON text, refuses what the contract refuses and, if build is set, writes
// the canonical form. Checking and building are one walk, so they cannot disagree.
type jsonWalker struct {
	text   []byte
	root   string // the path of the text
	limits Limits
	build  bool
	v1     bool // contract v1: see fingerprintv1.go

	pos     int
	out     []byte
	steps   []jsonStep   // one for each open array or object
	members []jsonMember // of all open objects, innermost last
	names   []byte       // unescaped names of all open objects
	spare   []byte
	top     []jsonMember // of the outermost object, once it is closed
	later   []int        // v1 only: offsets of faults that a later duplicate may still take away
	stop    int          // v1 only: 1 + the offset of the fault to report
}

type jsonMember struct {
	name       []byte
	at         int // the name in text
	from, to   int // the value in text
	start, end int // name and value in out
}

func (w *jsonWalker) document() error {
	if len(w.text) > w.limits.Bytes {
		return &JSONError{Path: w.root, Limit: true,
			Reason: fmt.Sprintf("text has %d bytes, more than %d", len(w.text), w.limits.Bytes)}
	}
	if w.build {
		w.out = make([]byte, 0, len(w.text))
	}
	w.space()
	if err := w.value(); err != nil {
		return err
	}
	w.space()
	if w.pos < len(w.text) {
		return w.unexpected(w.pos)
	}
	return nil
}

func (w *jsonWalker) value() error {
	switch c := w.peek(); {
	case c == '{':
		return w.object()
	case c == '[':
		return w.array()
	case c == '"':
		return w.stringValue()
	case c == '-' || '0' <= c && c <= '9':
		return w.number()
	case c == 't':
		return w.literal("true")
	case c == 'f':
		return w.literal("false")
	case c == 'n':
		return w.literal("null")
	}
	return w.unexpected(w.pos)
}

func (w *jsonWalker) literal(word string) error {
	for i := range len(word) {
		if at := w.pos + i; at == len(w.text) || w.text[at] != word[i] {
			return w.unexpected(at)
		}
	}
	w.pos += len(word)
	w.emit(word)
	return nil
}

func (w *jsonWalker) array() error {
	if err := w.open("["); err != nil {
		return err
	}
	top := len(w.steps) - 1
	for i := 0; ; i++ {
		w.space()
		if i == 0 && w.peek() == ']' {
			break
		}
		if i > 0 {
			w.emit(",")
		}
		w.steps[top] = jsonStep{kind: stepIndex, index: i}
		if err := w.value(); err != nil {
			return err
		}
		w.steps[top].kind = stepNone
		if more, err := w.more(']'); err != nil {
			return err
		} else if !more {
			break
		}
	}
	w.pos++
	w.steps = w.steps[:top]
	w.emit("]")
	return nil
}

func (w *jsonWalker) object() error {
	start, members, names, later := len(w.out), len(w.members), len(w.names), len(w.later)
	if err := w.open("{"); err != nil {
		return err
	}
	top := len(w.steps) - 1
	for i := 0; ; i++ {
		w.space()
		if i == 0 && w.peek() == '}' {
			break
		}
		if i > 0 {
			w.emit(",")
		}
		if err := w.member(top); err != nil {
			return err
		}
		if more, err := w.more('}'); err != nil {
			return err
		} else if !more {
			break
		}
	}
	w.pos++
	w.emit("}")
	list, err := w.order(w.members[members:], start, later)
	if err != nil {
		return err
	}
	w.steps = w.steps[:top]
	if top == 0 {
		w.top = list
		return nil
	}
	w.members, w.names = w.members[:members], w.names[:names]
	return nil
}

func (w *jsonWalker) member(top int) error {
	if w.peek() != '"' {
		return w.unexpected(w.pos)
	}
	m := jsonMember{at: w.pos, start: len(w.out)}
	w.steps[top] = jsonStep{kind: stepBadName}
	raw, escaped, err := w.scanString()
	if err != nil {
		return err
	}
	m.name = raw
	if escaped {
		// Earlier names keep the memory they were given if this append moves.
		from := len(w.names)
		w.names = appendUnescaped(w.names, raw)
		m.name = w.names[from:len(w.names):len(w.names)]
	}
	w.steps[top] = jsonStep{kind: stepName, name: m.name}
	w.emitString(m.name, escaped)
	w.space()
	if w.peek() != ':' {
		return w.unexpected(w.pos)
	}
	w.pos++
	w.emit(":")
	w.space()
	m.from = w.pos
	if err := w.value(); err != nil {
		return err
	}
	m.to, m.end = w.pos, len(w.out)
	w.steps[top].kind = stepNone
	w.members = append(w.members, m)
	return nil
}

// order sorts the members of an object that has just been read, refuses duplicates (v1: drops all
// but the last) and writes the members again if their order in out is not the canonical one.
func (w *jsonWalker) order(list []jsonMember, start, later int) ([]jsonMember, error) {
	inOrder := true
	for i := 1; i < len(list) && inOrder; i++ {
		inOrder = bytes.Compare(list[i-1].name, list[i].name) < 0
	}
	if inOrder {
		return list, nil
	}
	slices.SortFunc(list, func(a, b jsonMember) int {
		return cmp.Or(bytes.Compare(a.name, b.name), cmp.Compare(a.at, b.at))
	})
	if w.v1 {
		list = w.keepLast(list, later)
	} else {
		for i := 1; i < len(list); i++ {
			if bytes.Equal(list[i-1].name, list[i].name) {
				w.steps[len(w.steps)-1] = jsonStep{kind: stepName, name: list[i].name}
				return nil, w.fault(list[i].at, reasonDuplicate)
			}
		}
	}
	if w.build {
		w.spare = append(w.spare[:0], w.out[start:]...)
		w.out = append(w.out[:start], '{')
		for i, m := range list {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			w.out = append(w.out, w.spare[m.start-start:m.end-start]...)
		}
		w.out = append(w.out, '}')
	}
	return list, nil
}

// open enters an array or object.
func (w *jsonWalker) open(bracket string) error {
	if len(w.steps) >= w.limits.Depth {
		err := w.fault(w.pos, fmt.Sprintf("nested deeper than %d", w.limits.Depth))
		err.Limit = true
		return err
	}
	if w.steps == nil { // one piece of memory each serves most messages
		w.steps, w.members = make([]jsonStep, 0, 8), make([]jsonMember, 0, 16)
	}
	w.steps = append(w.steps, jsonStep{})
	w.pos++
	w.emit(bracket)
	return nil
}

// more moves to what follows an element: over a comma, or onto the closing bracket.
func (w *jsonWalker) more(closing byte) (bool, error) {
	w.space()
	switch c := w.peek(); {
	case c == ',':
		w.pos++
		return true, nil
	case c == closing:
		return false, nil
	}
	return false, w.unexpected(w.pos)
}

func (w *jsonWalker) number() error {
	n, end, ok := scanNumeral(w.text, w.pos)
	if !ok {
		return w.unexpected(end)
	}
	start := w.pos
	w.pos = end
	if w.v1 {
		i, ok := n.safeInteger()
		if !ok {
			return w.soft(start, "number is not an integer within ±(2^53-1)")
		}
		if w.build {
			w.out = strconv.AppendInt(w.out, i, 10)
		}
		return nil
	}
	n = n.normal()
	if n.exp < -maxExponent || n.exp > maxExponent {
		err := w.fault(start, fmt.Sprintf("exponent is beyond ±%d", maxExponent))
		err.Limit = true
		return err
	}
	if w.build {
		w.out = n.append(w.out)
	}
	return nil
}

// space skips white space.
func (w *jsonWalker) space() {
	for w.pos < len(w.text) {
		switch w.text[w.pos] {
		case ' ', '\t', '\n', '\r':
			w.pos++
		default:
			return
		}
	}
}

// peek returns the next byte, or 0, which begins no token, at the end.
func (w *jsonWalker) peek() byte {
	if w.pos < len(w.text) {
		return w.text[w.pos]
	}
	return 0
}

func (w *jsonWalker) emit(s string) {
	if w.build {
		w.out = append(w.out, s...)
	}
}
