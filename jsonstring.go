package mcpreplay

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// stringValue reads a string that is a value.
func (w *jsonWalker) stringValue() error {
	raw, escaped, err := w.scanString()
	if err != nil || !w.build {
		return err
	}
	if escaped {
		w.spare = appendUnescaped(w.spare[:0], raw)
		raw = w.spare
	}
	w.emitString(raw, escaped)
	return nil
}

// emitString writes a string. What had no escape needs none: it is copied.
func (w *jsonWalker) emitString(s []byte, escaped bool) {
	switch {
	case !w.build:
	case escaped:
		w.out = appendQuoted(w.out, s)
	default:
		w.out = append(w.out, '"')
		w.out = append(w.out, s...)
		w.out = append(w.out, '"')
	}
}

// scanString moves over the string at pos, checks it, and returns what is between its quotes and
// whether that contains escapes.
func (w *jsonWalker) scanString() (raw []byte, escaped bool, err error) {
	start := w.pos + 1
	for i := start; i < len(w.text); {
		switch c := w.text[i]; {
		case c == '"':
			w.pos = i + 1
			return w.text[start:i], escaped, nil
		case c == '\\':
			escaped = true
			n, err := w.escape(i)
			if err != nil {
				return nil, false, err
			}
			i += n
		case c < 0x20:
			return nil, false, w.fault(i, "unescaped control character")
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(w.text[i:])
			if r == utf8.RuneError && size == 1 {
				return nil, false, w.fault(i, reasonUTF8)
			}
			i += size
		}
	}
	return nil, false, w.fault(len(w.text), reasonEnd)
}

// escape checks the escape at an offset and returns its length; a surrogate pair is one escape.
func (w *jsonWalker) escape(at int) (int, error) {
	if at+1 >= len(w.text) {
		return 0, w.fault(len(w.text), reasonEnd)
	}
	switch w.text[at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, nil
	case 'u':
	default:
		return 0, w.fault(at, "unknown escape")
	}
	r, ok := hexEscape(w.text[at:])
	if !ok {
		return 0, w.fault(at, `\u without four hexadecimal digits`)
	}
	if !utf16.IsSurrogate(r) {
		return 6, nil
	}
	if low, ok := hexEscape(w.text[at+6:]); ok && utf16.DecodeRune(r, low) != utf8.RuneError {
		return 12, nil
	}
	return 6, w.soft(at, reasonSurrogate)
}

// hexEscape reads \uXXXX at the start of text.
func hexEscape(text []byte) (rune, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range text[2:6] {
		d, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return (c | 0x20) - 'a' + 10, true
	}
	return 0, false
}

// appendUnescaped appends the meaning of what scanString returned. An unpaired surrogate, which
// only contract v1 gets this far, becomes the three bytes that UTF-8 reserves for it: U+FFFD would
// make it equal to a name that is spelled so.
func appendUnescaped(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		n := 2
		switch c := raw[1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			dst, n = appendHexEscape(dst, raw)
		default:
			dst = append(dst, c)
		}
		raw = raw[n:]
	}
}

func appendHexEscape(dst, raw []byte) ([]byte, int) {
	r, _ := hexEscape(raw)
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(dst, r), 6
	}
	low, _ := hexEscape(raw[6:])
	if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
		return utf8.AppendRune(dst, pair), 12
	}
	return append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F), 6
}

// appendQuoted appends the canonical form of a string, which must be valid UTF-8.
func appendQuoted[S ~string | ~[]byte](dst []byte, s S) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c >= 0x20:
			dst = append(dst, c)
		case c == '\b':
			dst = append(dst, `\b`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\f':
			dst = append(dst, `\f`...)
		case c == '\r':
			dst = append(dst, `\r`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
		}
	}
	return append(dst, '"')
}

// canonicalString is appendQuoted for a string that a caller gave and that may not be UTF-8.
func canonicalString(path, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, &JSONError{Path: path, Reason: reasonUTF8}
	}
	return appendQuoted(make([]byte, 0, len(s)+2), s), nil
}
