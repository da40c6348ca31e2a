package evidence

import (
	"bytes"
	"slices"
)

// twins finds the copies of one request that a process had in hand together. Which
// of them came first, and was answered first, is nobody's choice, so they are told
// as of one time, in the order of their lines.
func (c *cell) twins(call *Call) (at int64, found bool) {
	at = call.At
	for _, other := range c.calls {
		if other == call || other.Process != call.Process || !bytes.Equal(other.Text, call.Text) || !overlap(call, other) {
			continue
		}
		at, found = min(at, other.At), true
	}
	return at, found
}

// ofTwins reports whether a connection carried one of them.
func (c *cell) ofTwins(p *Process, conn int) bool {
	return conn > 0 && slices.ContainsFunc(c.calls, func(call *Call) bool {
		if call.Process != p || call.http == nil || call.http.conn != conn {
			return false
		}
		_, twin := c.twins(call)
		return twin
	})
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
// intermediary, and the client was given the reply to one of them. Which one is
// nobody's choice either.
func (c *cell) eitherOf(call *Call) bool {
	return slices.ContainsFunc(c.calls, func(other *Call) bool {
		if other.Process == call.Process || other.Process.behind == nil || !bytes.Equal(other.Text, call.Text) ||
			call.Reply == nil || other.Reply == nil || !bytes.Equal(other.Reply.Text, call.Reply.Text) {
			return false
		}
		_, twin := c.twins(other)
		return twin
	})
}
