package consumer

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strings"
)

// StripKeys returns a RoundTripper that removes Idempotency-Key and
// X-Idempotency-Key from requests. With either of them net/http takes a POST for
// repeatable: if a kept connection dies before the first byte of the reply, it
// sends the call again by itself, and nobody hears of it.
//
// It belongs directly around the http.Transport. nil stands for
// http.DefaultTransport.
func StripKeys(base http.RoundTripper) http.RoundTripper { return stripper{base} }

type stripper struct{ base http.RoundTripper }

func (s stripper) RoundTrip(req *http.Request) (*http.Response, error) {
	return baseOf(s.base).RoundTrip(stripKeys(req))
}

func stripKeys(req *http.Request) *http.Request {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if _, ok := req.Header[name]; ok {
			req = req.Clone(req.Context())
			req.Header.Del("Idempotency-Key")
			req.Header.Del("X-Idempotency-Key")
			return req
		}
	}
	return req
}

func baseOf(rt http.RoundTripper) http.RoundTripper {
	if rt == nil {
		return http.DefaultTransport
	}
	return rt
}

// recordingTripper records the calls that go over HTTP.
type recordingTripper struct {
	base http.RoundTripper
	rec  *recording
}

func (t *recordingTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	req = stripKeys(req)
	base := baseOf(t.base)
	x := exchangeOf(req.Context())
	r, err := t.round(x, req)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return base.RoundTrip(req)
	}
	if req.Method == http.MethodPost {
		req = traceLeaving(req, base, func() { x.leaving(r) })
	}
	resp, err := base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if read := reader(resp); read != nil {
		resp.Body = &tee{ReadCloser: resp.Body, read: read, found: func(text []byte) { x.answerText(r, text) }}
	}
	return resp, nil
}

// round finds the round of x that a request belongs to, or begins it. A redirect
// and a stream that is resumed belong to the round under way. It returns nil for
// a request that is not of the exchange.
func (t *recordingTripper) round(x *exchange, req *http.Request) (*round, error) {
	if req.Method != http.MethodPost {
		return x.current(), nil
	}
	body := copyBody(req)
	var msg struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params json.RawMessage `json:"params"`
	}
	if json.Unmarshal(body, &msg) != nil {
		t.rec.strays.Add(1) // it may be a call, or hold one
		return nil, nil
	}
	if !x.mine(msg.Method, msg.Params) {
		t.rec.stray(msg.Method)
		return nil, nil
	}
	if r := x.current(); req.Response != nil && r != nil && r.id == string(msg.ID) {
		return r, nil
	}
	return x.begin(req.Context(), string(msg.ID), msg.Params)
}

func (x *exchange) current() *round {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.rounds); n > 0 {
		return x.rounds[n-1]
	}
	return nil
}

// copyBody is the body of req, or nil if it cannot be read twice. The SDK's can.
func copyBody(req *http.Request) []byte {
	if req.GetBody == nil {
		return nil
	}
	body, err := req.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return nil
	}
	return text
}

// traceLeaving calls leaving as soon as bytes of req may leave. net/http tells
// when it has a connection to write to; of any other RoundTripper nothing is
// known, so it may have sent everything.
func traceLeaving(req *http.Request, base http.RoundTripper, leaving func()) *http.Request {
	if s, ok := base.(stripper); ok {
		base = baseOf(s.base)
	}
	if _, ok := base.(*http.Transport); !ok {
		leaving()
		return req
	}
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { leaving() }}
	return req.WithContext(httptrace.WithClientTrace(req.Context(), trace))
}

// maxReply bounds what is kept of a reply. The SDK takes less.
const maxReply = 64 << 20

// messages splits a body into the messages in it. It is fed the body piece by
// piece, and with nil at its proper end.
type messages interface {
	feed(p []byte, found func(text []byte))
}

// reader is how to read the body of resp, or nil if nothing in it can be a reply:
// what an intermediary says about itself is not the server's word, even if it
// says it in JSON.
func reader(resp *http.Response) messages {
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return nil
	}
	ok := resp.StatusCode >= 200 && resp.StatusCode < 300
	refused := resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests
	switch {
	case media == "application/json" && (ok || refused):
		return &document{}
	case media == "text/event-stream" && ok:
		return &events{}
	}
	return nil
}

// tee looks at a body while somebody else reads it.
type tee struct {
	io.ReadCloser
	read  messages
	found func(text []byte)
	done  bool
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if n > 0 {
		t.read.feed(p[:n], t.found)
	}
	if err == io.EOF && !t.done {
		t.done = true
		t.read.feed(nil, t.found)
	}
	return n, err
}

// document is a body that is one message.
type document struct{ text []byte }

func (d *document) feed(p []byte, found func(text []byte)) {
	if p == nil && len(d.text) <= maxReply {
		found(d.text)
	}
	if len(d.text) <= maxReply {
		d.text = append(d.text, p...)
	}
}

// events is a stream of server-sent events. An event that is not ended by an
// empty line is not complete.
type events struct {
	line []byte
	name string
	data [][]byte
	size int
}

func (e *events) feed(p []byte, found func(text []byte)) {
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte("\n"))
		if e.size += len(part); e.size <= maxReply {
			e.line = append(e.line, part...)
		}
		p = rest
		if ended {
			e.end(bytes.TrimSuffix(e.line, []byte("\r")), found)
			e.line = nil
		}
	}
}

func (e *events) end(line []byte, found func(text []byte)) {
	if len(line) == 0 {
		if len(e.data) > 0 && (e.name == "" || e.name == "message") && e.size <= maxReply {
			found(bytes.Join(e.data, []byte("\n")))
		}
		*e = events{}
		return
	}
	field, value, _ := strings.Cut(string(line), ":")
	value = strings.TrimPrefix(value, " ")
	switch field {
	case "event":
		e.name = value
	case "data":
		e.data = append(e.data, []byte(value))
	}
}
