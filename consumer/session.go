package consumer

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Session is an *mcp.ClientSession whose traffic is recorded: what came back is
// judged by the bytes of the server, never by what the SDK made of them.
type Session struct {
	*mcp.ClientSession
	rec *recording
}

// Connect is client.Connect for a session that Call and Reconcile can use. All
// options of the client keep their meaning, the answering of questions included.
//
// A *mcp.StreamableClientTransport is used with a copy of its HTTPClient, from
// whose requests StripKeys removes what makes net/http send a call twice. A
// RoundTripper of the caller that adds such a header must itself be put around
// StripKeys.
func Connect(ctx context.Context, client *mcp.Client, t mcp.Transport, opts *mcp.ClientSessionOptions) (*Session, error) {
	rec := &recording{inner: t}
	session, err := client.Connect(ctx, rec, opts)
	if err != nil {
		return nil, err
	}
	return &Session{ClientSession: session, rec: rec}, nil
}

// recording is a transport that fills the exchanges of calls.
type recording struct {
	inner mcp.Transport

	// strays counts tool calls that belong to no exchange, and what may be one
	// because it cannot be read. While there were some, nothing proves that a call
	// did not leave: a middleware may have sent it under another context.
	strays atomic.Int64
}

func (r *recording) stray(method string) {
	if method == methodCall {
		r.strays.Add(1)
	}
}

// Connect implements mcp.Transport. HTTP is recorded below the SDK's connection:
// only there is the text of a reply, and a wrapped connection would no longer
// learn the version that was negotiated.
func (r *recording) Connect(ctx context.Context) (mcp.Connection, error) {
	if t, ok := r.inner.(*mcp.StreamableClientTransport); ok {
		recorded := *t
		client := http.Client{}
		if t.HTTPClient != nil {
			client = *t.HTTPClient
		}
		client.Transport = &recordingTripper{base: client.Transport, rec: r}
		recorded.HTTPClient = &client
		return recorded.Connect(ctx)
	}
	conn, err := r.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &recordedConn{Connection: conn, rec: r, open: map[jsonrpc.ID]sent{}}, nil
}

// recordedConn records a connection that carries one message at a time.
type recordedConn struct {
	mcp.Connection
	rec *recording

	mu   sync.Mutex
	open map[jsonrpc.ID]sent
}

type sent struct {
	x      *exchange
	r      *round
	forget func() bool // stops waiting for the end of the call
}

func (c *recordedConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	req, ok := msg.(*jsonrpc.Request)
	if !ok || !req.IsCall() {
		return c.Connection.Write(ctx, msg)
	}
	x := exchangeOf(ctx)
	if !x.mine(req.Method, req.Params) {
		c.rec.stray(req.Method)
		return c.Connection.Write(ctx, msg)
	}
	id, err := json.Marshal(req.ID.Raw())
	if err != nil {
		return stop(err)
	}
	r, err := x.begin(ctx, string(id), req.Params)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.open[req.ID] = sent{x, r, context.AfterFunc(ctx, func() { c.take(req.ID) })}
	c.mu.Unlock()
	x.leaving(r)
	return c.Connection.Write(ctx, msg)
}

func (c *recordedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	msg, err := c.Connection.Read(ctx)
	if err != nil {
		return nil, err
	}
	if resp, ok := msg.(*jsonrpc.Response); ok {
		if s, ok := c.take(resp.ID); ok {
			s.x.answerResponse(s.r, resp)
		}
	}
	return msg, nil
}

func (c *recordedConn) take(id jsonrpc.ID) (sent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.open[id]
	if ok {
		delete(c.open, id)
		s.forget()
	}
	return s, ok
}
