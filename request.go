package mcpreplay

import "bytes"

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
