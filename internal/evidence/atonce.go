package evidence

import (
	"bytes"
	"slices"
)

// atOnce tells of copies of one request that a process had in hand together. Which
// of them came first is nobody's choice, so they are told as of one time, in the
// order of their lines.
func (c *cell) atOnce(call *Call) (at int64, line string) {
	at = call.At
	for _, other := range c.calls {
		if other == call || other.Process != call.Process || !bytes.Equal(other.Text, call.Text) || !overlap(call, other) {
			continue
		}
		at, line = min(at, other.At), "at once: "
	}
	return at, line
}

func overlap(a, b *Call) bool {
	return a.http != nil && b.http != nil && b.At < a.end() && a.At < b.end()
}

// end is when a call over HTTP had its reply, or when the last was seen of its
// connection.
func (call *Call) end() (at int64) {
	if call.Reply != nil {
		return call.Reply.At
	}
	for _, r := range call.Process.Records {
		if r.Conn == call.http.conn {
			at = r.At
		}
	}
	return at
}

// eitherOf reports whether a request of a client had become two at once behind an
// intermediary: the client gets either reply.
func (c *cell) eitherOf(call *Call) bool {
	return slices.ContainsFunc(c.calls, func(other *Call) bool {
		if other.Process == call.Process || other.Process.behind == nil || !bytes.Equal(other.Text, call.Text) {
			return false
		}
		_, line := c.atOnce(other)
		return line != ""
	})
}
