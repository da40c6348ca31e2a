package guard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// methodListen is the one method of the specification that ends only when it is
// cancelled, which the SDK does when Read reports the end.
const methodListen = "subscriptions/listen"

// drainConn is the connection of one stdio session. It stands between the lines
// of the input and the SDK for the sake of two facts about the SDK (v1.8.0,
// internal/jsonrpc2): once Read has returned an error, or Close was called, or
// Write failed once, it refuses to write any further reply and cancels the
// contexts of the calls that are running. So Read reports the end of the input
// only after the last accepted call has been answered, and Write never fails.
type drainConn struct {
	out    io.Writer
	limits mcpreplay.Limits
	log    *slog.Logger
	lines  chan line

	writing sync.Mutex // one message at a time
	broken  bool       // the output failed; replies go nowhere from here on

	mu      sync.Mutex
	running map[jsonrpc.ID]string // method of each accepted call until its reply is about to be written
	pending int                   // replies not yet written, of calls that end by themselves
	asked   map[jsonrpc.ID]string // method of each question of ours that the client has not answered
	readErr error                 // how the input ended, if not by itself

	changed   chan struct{} // wakes Read while draining
	draining  chan struct{}
	closed    chan struct{}
	drainOnce sync.Once
	closeOnce sync.Once
}

func newDrainConn(s Stdio) *drainConn {
	return &drainConn{
		out:      s.Out,
		limits:   mcpreplay.Limits{Bytes: s.MaxLine, Depth: s.MaxDepth},
		log:      s.Logger,
		lines:    make(chan line),
		running:  make(map[jsonrpc.ID]string),
		asked:    make(map[jsonrpc.ID]string),
		changed:  make(chan struct{}, 1),
		draining: make(chan struct{}),
		closed:   make(chan struct{}),
	}
}

// Connect makes drainConn its own transport: it serves one session.
func (c *drainConn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

func (c *drainConn) SessionID() string { return "" }

// Close is called by the SDK when nothing is left to do.
func (c *drainConn) Close() error {
	c.end()
	return nil
}

func (c *drainConn) end() { c.closeOnce.Do(func() { close(c.closed) }) }

// Read returns the next message that passes every check. Whether a call is
// accepted is decided here and nowhere else.
func (c *drainConn) Read(context.Context) (jsonrpc.Message, error) {
	for {
		select {
		case <-c.draining: // before any line that may be waiting too
			return c.readDraining()
		default:
		}
		select {
		case <-c.closed:
			return nil, io.EOF
		case <-c.draining:
		case l := <-c.lines:
			if l.err != nil {
				c.inputEnded(l.err)
				continue
			}
			if m := c.accept(l); m != nil {
				return m, nil
			}
		}
	}
}

// readDraining answers our open questions in the client's place, then waits for
// the last reply.
func (c *drainConn) readDraining() (jsonrpc.Message, error) {
	for {
		if m := c.unanswered(); m != nil {
			return m, nil
		}
		c.mu.Lock()
		pending := c.pending
		c.mu.Unlock()
		if pending == 0 {
			return nil, io.EOF
		}
		select {
		case <-c.changed:
		case <-c.closed:
			return nil, io.EOF
		}
	}
}

// unanswered makes the answer to one open question: a failure, so that the call
// that asked can end. A ping is answered well, because the SDK's keep-alive closes
// the session, and with it the replies, when one fails.
func (c *drainConn) unanswered() jsonrpc.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, method := range c.asked {
		delete(c.asked, id)
		if method == "ping" {
			return &jsonrpc.Response{ID: id, Result: json.RawMessage(`{}`)}
		}
		return &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the session is ending and the question was not answered"}}
	}
	return nil
}

// accept turns a line into a message for the SDK, or answers it and returns nil.
func (c *drainConn) accept(l line) jsonrpc.Message {
	bad := l.bad
	if bad == nil {
		_, bad = checkMessage(l.text, &c.limits)
	}
	var m jsonrpc.Message
	if bad == nil {
		var err error
		if m, err = jsonrpc.DecodeMessage(l.text); err != nil {
			bad = invalid("not decodable")
			bad.why = err
		}
	}
	if bad == nil {
		bad = c.register(m)
	}
	if bad == nil {
		return m
	}
	c.log.Warn("message refused", "answered", !bad.silent, "error", bad)
	if bad.answer {
		return c.failed(bad.id)
	}
	if !bad.silent {
		c.write(c.unlessRunning(bad).encode())
	}
	return nil
}

// unlessRunning takes the id from an error if it belongs to a call that is running:
// the client would read the error as that call's, which may yet take effect.
func (c *drainConn) unlessRunning(bad *badMessage) *badMessage {
	id := messageID(bad.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.running[id]; ok {
		bad.id = nil
	}
	return bad
}

// messageID reads a usable id. It is zero if there is none.
func messageID(raw json.RawMessage) (id jsonrpc.ID) {
	var v any
	if json.Unmarshal(raw, &v) == nil {
		id, _ = jsonrpc.MakeID(v)
	}
	return id
}

// failed stands in for an answer of the client that could not be read, so that the
// call that asked does not wait for ever.
func (c *drainConn) failed(raw json.RawMessage) jsonrpc.Message {
	id := messageID(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.asked[id]; !ok {
		return nil
	}
	delete(c.asked, id)
	return &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the answer to the question could not be read"}}
}

func (c *drainConn) register(m jsonrpc.Message) *badMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m := m.(type) {
	case *jsonrpc.Response:
		delete(c.asked, m.ID)
	case *jsonrpc.Request:
		if !m.IsCall() {
			break
		}
		if _, taken := c.running[m.ID]; taken {
			return invalid("the id is in use by a call that is running")
		}
		c.running[m.ID] = m.Method
		if m.Method != methodListen {
			c.pending++
		}
	}
	return nil
}

// Write writes one message. It reports no failure: see drainConn.
func (c *drainConn) Write(_ context.Context, m jsonrpc.Message) error {
	var answered bool
	switch m := m.(type) {
	case *jsonrpc.Response:
		// Free the id before the client can see the reply and use it again, but
		// count the reply as pending until it is out.
		c.mu.Lock()
		method, ok := c.running[m.ID]
		delete(c.running, m.ID)
		answered = ok && method != methodListen
		c.mu.Unlock()
		m.Error = c.coded(m.Error)
	case *jsonrpc.Request:
		if m.IsCall() {
			c.mu.Lock()
			c.asked[m.ID] = m.Method
			c.mu.Unlock()
			c.wake()
		}
	}
	text, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		text = c.unencodable(m, err)
	}
	if text != nil {
		c.write(text)
	}
	if answered {
		c.mu.Lock()
		c.pending--
		c.mu.Unlock()
		c.wake()
	}
	return nil
}

// coded gives an error that has no code one: the SDK would send its text under code
// 0, which clients cannot tell from a lost reply. Those of handlers have theirs from
// containMiddleware; what is left is the SDK's own refusal before it dispatched.
func (c *drainConn) coded(err error) error {
	var wire *jsonrpc.Error
	if err == nil || errors.As(err, &wire) && wire != nil {
		return err
	}
	if strings.HasSuffix(err.Error(), "is invalid during session initialization") {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "invalid request: the session is not initialized"}
	}
	c.log.Error("call failed", "error", err)
	return internalError()
}

// unencodable answers in place of a reply that cannot be encoded.
func (c *drainConn) unencodable(m jsonrpc.Message, err error) []byte {
	c.log.Error("message cannot be encoded", "error", err)
	r, ok := m.(*jsonrpc.Response)
	if !ok {
		return nil
	}
	text, err := jsonrpc.EncodeMessage(&jsonrpc.Response{ID: r.ID, Error: internalError()})
	if err != nil {
		return nil
	}
	return text
}

// write puts one line out. If that fails the client is gone: no new call is
// accepted, and those that run are finished for the ledger's sake.
func (c *drainConn) write(text []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.broken {
		return
	}
	if _, err := c.out.Write(append(text, '\n')); err != nil {
		c.broken = true
		c.log.Warn("the output is broken; replies are lost, records are kept", "error", err)
		c.drain("output broken")
	}
}

func (c *drainConn) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *drainConn) inputEnded(err error) {
	if !errors.Is(err, io.EOF) {
		c.mu.Lock()
		c.readErr = err
		c.mu.Unlock()
	}
	c.drain("input ended")
}

// drain stops accepting and reports whether that is news. It returns at once; Run
// waits for the session to end.
func (c *drainConn) drain(reason string) (first bool) {
	c.drainOnce.Do(func() {
		first = true
		c.mu.Lock()
		pending := c.pending
		c.mu.Unlock()
		c.log.Info("draining", "reason", reason, "running", pending)
		close(c.draining)
	})
	return first
}

// abandon ends the session with calls still running and returns how many. The SDK
// cancels their contexts.
func (c *drainConn) abandon() int {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

// result is what Run returns for a session that ended.
func (c *drainConn) result(err error) error {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readErr != nil {
		return errors.Join(c.readErr, err)
	}
	return err
}
