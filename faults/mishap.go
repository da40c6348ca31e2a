package faults

import (
	"fmt"
	"net/http"
	"slices"
)

// Mishap names one way in which an [Intermediary] misbehaves. The names are stable.
type Mishap string

// The mishaps in which the server executed the request, and the client does not
// get the reply, or not in time, or not whole.
const (
	// DropReply: the client's connection is closed without a byte.
	DropReply Mishap = "drop-reply"
	// DelayReply: the reply is held until the client has gone away, or until
	// Release, which passes it on.
	DelayReply Mishap = "delay-reply"
	// CutReply: the head of the reply, with the length of the whole body, and the
	// first half of the body; then the connection is closed.
	CutReply Mishap = "cut-reply"
	// Answer401 and the like: the client gets that status instead of the reply,
	// with a line of plain text that is no JSON-RPC message.
	Answer401 Mishap = "answer-401"
	Answer404 Mishap = "answer-404"
	Answer502 Mishap = "answer-502"
	Answer503 Mishap = "answer-503"
	Answer504 Mishap = "answer-504"
	// AnswerHTML: status 200 and a web page, as a captive portal has it.
	AnswerHTML Mishap = "answer-html"
	// ResetAfterForward: the client's connection is reset without a byte.
	ResetAfterForward Mishap = "reset-after-forward"
	// CloseKeptAliveForwarded is DropReply for a request that is not the first on
	// its connection. net/http takes that for a connection that had gone stale,
	// and sends a POST which carries an Idempotency-Key a second time by itself.
	CloseKeptAliveForwarded Mishap = "close-kept-alive-forwarded"
)

// The mishaps in which the server never sees the request. To the client they look
// like the ones in which it executed.
const (
	// ResetBeforeBody: the connection is reset when the head of the request was
	// read, and nothing of its body. It is selected by its head alone.
	ResetBeforeBody Mishap = "reset-before-body"
	// ResetAfterBody: the connection is reset when the whole request was read.
	ResetAfterBody Mishap = "reset-after-body"
	// CloseKeptAlive: the connection is closed without a byte when the whole
	// request was read, and was not the first on that connection.
	CloseKeptAlive Mishap = "close-kept-alive"
)

// The mishaps in which the server sees other requests than the client sent.
const (
	// NoMishap: everything passes, and is recorded.
	NoMishap Mishap = "none"
	// StripState: params.requestState is taken out. The other bytes of the body
	// stay as they were. Strikes only requests that have one.
	StripState Mishap = "strip-state"
	// DuplicateRequest: the request is sent a second time after the first was
	// answered. Then the client gets the first reply.
	DuplicateRequest Mishap = "duplicate-request"
	// DuplicateConcurrent: both are sent at once. When both were answered the
	// client gets the reply to the one whose connection was opened first.
	DuplicateConcurrent Mishap = "duplicate-concurrent"
	// Reorder: the first of two requests is held until the second was answered
	// and the answer passed on. It is then sent even if its client has gone:
	// that is how a request arrives late. Release lets it go without a second.
	Reorder Mishap = "reorder"
)

// mishaps is what each does with a request that was read, the body included
// except for ResetBeforeBody. It reports whether the client's connection can take
// another one; if not, it is closed.
var mishaps = map[Mishap]func(*client, *request) (again bool){
	NoMishap:                (*client).pass,
	DropReply:               (*client).drop,
	DelayReply:              (*client).delay,
	CutReply:                (*client).cut,
	Answer401:               answer(http.StatusUnauthorized, "WWW-Authenticate: Bearer\r\nContent-Type: text/plain; charset=utf-8", "Unauthorized\n"),
	Answer404:               answer(http.StatusNotFound, "Content-Type: text/plain; charset=utf-8", "Not Found\n"),
	Answer502:               answer(http.StatusBadGateway, "Content-Type: text/plain; charset=utf-8", "Bad Gateway\n"),
	Answer503:               answer(http.StatusServiceUnavailable, "Content-Type: text/plain; charset=utf-8", "Service Unavailable\n"),
	Answer504:               answer(http.StatusGatewayTimeout, "Content-Type: text/plain; charset=utf-8", "Gateway Timeout\n"),
	AnswerHTML:              answer(http.StatusOK, "Content-Type: text/html; charset=utf-8", "<!doctype html>\n<title>Error</title>\n<p>The service cannot be reached.\n"),
	ResetAfterForward:       (*client).resetForwarded,
	CloseKeptAliveForwarded: (*client).drop,
	ResetBeforeBody:         (*client).reset,
	ResetAfterBody:          (*client).reset,
	CloseKeptAlive:          (*client).ignore,
	StripState:              (*client).strip,
	DuplicateRequest:        (*client).duplicate,
	DuplicateConcurrent:     (*client).duplicateConcurrent,
	Reorder:                 (*client).reorder,
}

// ParseMishap returns the mishap of that name. An unknown name is an error, for
// the same reason as in [Parse].
func ParseMishap(name string) (Mishap, error) {
	if _, ok := mishaps[Mishap(name)]; ok {
		return Mishap(name), nil
	}
	return "", fmt.Errorf("unknown mishap %q; the mishaps are %s", name, listNames(mishaps))
}

// execute sends r to the server and reads the reply to its end, whether or not
// the client is still there.
func (c *client) execute(r *request) (*reply, error) {
	up, err := c.i.dial()
	if err != nil {
		return nil, err
	}
	defer up.Close()
	return up.roundTrip(r, nil)
}

// pass sends r to the server and hands on each piece of the reply as it comes. A
// client that goes away ends the request.
func (c *client) pass(r *request) bool {
	up, err := c.i.dial()
	if err != nil {
		return false
	}
	defer up.Close()
	defer c.watch(func() { up.Close() })()
	answered, err := up.roundTrip(r, c.conn)
	return err == nil && c.mayGoOn(r, answered)
}

// mayGoOn reports whether, after the whole of a, there may be another request.
func (c *client) mayGoOn(r *request, a *reply) bool { return !r.Close && !a.close }

func (c *client) send(p []byte) bool {
	_, err := c.conn.Write(p)
	return err == nil
}

func (c *client) drop(r *request) bool {
	if _, err := c.execute(r); err == nil {
		c.conn.event(Dropped)
	}
	return false
}

func (c *client) delay(r *request) bool {
	answered, err := c.execute(r)
	if err != nil {
		return false
	}
	gone, stop := c.gone()
	c.conn.event(Held)
	select {
	case <-c.i.released:
	case <-gone:
	case <-c.i.ctx.Done():
	}
	stop() // whoever was seen to leave has left
	if isClosed(gone) || c.i.ctx.Err() != nil {
		c.conn.event(Dropped)
		return false
	}
	c.conn.event(Released)
	return c.send(answered.raw.Bytes()) && c.mayGoOn(r, answered)
}

func (c *client) cut(r *request) bool {
	answered, err := c.execute(r)
	if err != nil {
		return false
	}
	head := withLength(answered.head, len(answered.body))
	c.send(slices.Concat(head, answered.body[:len(answered.body)/2]))
	c.conn.event(Dropped)
	return false
}

func answer(status int, header, text string) func(*client, *request) bool {
	whole := fmt.Sprintf("HTTP/1.1 %d %s\r\n%s\r\nContent-Length: %d\r\n\r\n%s", status, http.StatusText(status), header, len(text), text)
	return func(c *client, r *request) bool {
		if _, err := c.execute(r); err != nil {
			return false
		}
		c.conn.event(Dropped)
		return c.send([]byte(whole)) && !r.Close
	}
}

func (c *client) reset(*request) bool {
	c.conn.event(Dropped)
	c.conn.Reset()
	return false
}

func (c *client) resetForwarded(r *request) bool {
	if _, err := c.execute(r); err != nil {
		return false
	}
	return c.reset(r)
}

func (c *client) ignore(*request) bool {
	c.conn.event(Dropped)
	return false
}

func (c *client) strip(r *request) bool {
	r.body = withoutMember(r.body, "params", "requestState")
	r.head = withLength(r.head, len(r.body))
	return c.pass(r)
}

func (c *client) duplicate(r *request) bool {
	first, err := c.execute(r)
	if err != nil {
		return false
	}
	if up, err := c.i.dial(); err == nil {
		spare(up, r)
	}
	return c.send(first.raw.Bytes()) && c.mayGoOn(r, first)
}

func (c *client) duplicateConcurrent(r *request) bool {
	one, err := c.i.dial()
	if err != nil {
		return false
	}
	defer one.Close()
	other := make(chan struct{})
	if two, err := c.i.dial(); err != nil {
		close(other)
	} else {
		go func() {
			defer close(other)
			spare(two, r)
		}()
	}
	first, err := one.roundTrip(r, nil)
	<-other
	return err == nil && c.send(first.raw.Bytes()) && c.mayGoOn(r, first)
}

// spare sends r over up, for a reply that nobody gets.
func spare(up *wire, r *request) {
	defer up.Close()
	if _, err := up.roundTrip(r, nil); err == nil {
		up.event(Dropped)
	}
}

func (c *client) reorder(r *request) bool {
	overtaken, held := c.i.pair()
	gone, stop := c.gone()
	defer stop()
	if held {
		c.conn.event(Held)
		select {
		case <-overtaken:
		case <-c.i.released:
		case <-c.i.ctx.Done():
			c.conn.event(Dropped)
			return false
		}
		c.conn.event(Released)
	} else {
		defer close(overtaken)
	}
	answered, err := c.execute(r)
	if err != nil {
		return false
	}
	stop() // whoever was seen to leave has left
	if isClosed(gone) {
		c.conn.event(Dropped)
		return false
	}
	return c.send(answered.raw.Bytes()) && c.mayGoOn(r, answered)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
