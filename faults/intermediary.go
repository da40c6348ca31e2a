package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// IntermediaryOptions configures an Intermediary.
type IntermediaryOptions struct {
	// Selects says which requests the mishap may strike, by the body and the
	// header of each. Nil selects all. Only a POST is ever asked about, and for
	// ResetBeforeBody the body is nil. It is called from several goroutines.
	Selects func(body []byte, h http.Header) bool

	// Count is how often the mishap strikes; what is selected after that passes.
	// Defaults to 1; a negative one is no limit. For Reorder it counts pairs.
	Count int

	// OnEvent is called with each entry that is an event, when it is in the log.
	// It is called from several goroutines, and must not call Close.
	OnEvent func(Entry)
}

// Intermediary stands between clients and one server that speak HTTP/1.1 without
// TLS, on the loopback interface, and misbehaves in one way. What it is not told to spoil it passes on
// byte for byte, in both directions and as it comes; only a request whose body is
// chunked gets a length instead. It forwards nothing twice, unless that is the
// mishap: each request has a connection to the server of its own, which is closed
// after the reply. Connections of clients are kept for as long as they and the
// server want them.
//
// If the server cannot be reached or breaks off, the client gets as much as there
// was, or nothing if the mishap struck, and its connection is closed.
type Intermediary struct {
	upstream string
	mishap   Mishap
	o        IntermediaryOptions
	log      *wireLog
	listener net.Listener

	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	released chan struct{}
	release  func()
	running  sync.WaitGroup

	mu      sync.Mutex
	conns   map[*wire]bool // the open ones
	left    int            // requests the mishap will still strike; negative is all
	strikes int
	waiting chan struct{} // of Reorder: closed when the held request was overtaken
}

// NewIntermediary listens on 127.0.0.1 for clients of the server at upstream,
// host:port, until Close. A nil o selects every POST, once.
func NewIntermediary(upstream string, m Mishap, o *IntermediaryOptions) (*Intermediary, error) {
	if _, err := ParseMishap(string(m)); err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(upstream); err != nil {
		return nil, fmt.Errorf("faults: upstream: %w", err)
	}
	i := &Intermediary{upstream: upstream, mishap: m, released: make(chan struct{}), conns: map[*wire]bool{}}
	if o != nil {
		i.o = *o
	}
	i.left = i.o.Count
	if i.left == 0 {
		i.left = 1
	}
	if m == Reorder {
		i.left *= 2
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faults: listen: %w", err)
	}
	i.listener = listener
	i.log = &wireLog{start: time.Now(), onEvent: i.o.OnEvent, conns: map[Side]int{}}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	i.release = sync.OnceFunc(func() { close(i.released) })
	i.running.Go(i.accept)
	return i, nil
}

// URL is where clients find it, without a path: paths are passed on.
func (i *Intermediary) URL() string { return "http://" + i.listener.Addr().String() }

// Release passes on what is held. Nothing is held after that.
func (i *Intermediary) Release() { i.release() }

// Strikes is how many requests the mishap has struck. A fault that was never
// injected would pass for a fault survived.
func (i *Intermediary) Strikes() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.strikes
}

// Log is what was recorded so far, in order. After Close it is complete.
func (i *Intermediary) Log() []Entry { return i.log.copy() }

// Close closes every connection, drops what is held, and returns when nothing
// runs any more. It can be called more than once.
func (i *Intermediary) Close() error {
	i.cancel()
	err := i.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	i.mu.Lock()
	open := make([]*wire, 0, len(i.conns))
	for w := range i.conns {
		open = append(open, w)
	}
	i.mu.Unlock()
	for _, w := range open {
		w.Close()
	}
	i.running.Wait()
	return err
}

func (i *Intermediary) accept() {
	defer i.listener.Close() // if it was not Close, further clients are refused
	for {
		conn, err := i.listener.Accept()
		if err != nil {
			return
		}
		w := i.keep(conn.(*net.TCPConn), ClientSide, i.log.number(ClientSide))
		i.running.Go(func() { i.serve(w) })
	}
}

// dial opens a connection to the server, for one request.
func (i *Intermediary) dial() (*wire, error) {
	n := i.log.number(UpstreamSide)
	conn, err := new(net.Dialer).DialContext(i.ctx, "tcp", i.upstream)
	if err != nil {
		i.log.event(UpstreamSide, n, Unreachable)
		return nil, err
	}
	return i.keep(conn.(*net.TCPConn), UpstreamSide, n), nil
}

// keep makes a wire of conn that Close knows of until it is closed.
func (i *Intermediary) keep(conn *net.TCPConn, side Side, number int) *wire {
	w := &wire{tcp: conn, log: i.log, side: side, number: number}
	w.forget = func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.conns, w)
	}
	w.event(Opened)
	i.mu.Lock()
	i.conns[w] = true
	i.mu.Unlock()
	if i.ctx.Err() != nil { // Close may not have seen it
		w.Close()
	}
	return w
}

// client is one connection of a client, served by one goroutine.
type client struct {
	i    *Intermediary
	conn *wire
	from *frugal
	in   *bufio.Reader // of from
}

func (i *Intermediary) serve(conn *wire) {
	defer conn.Close()
	from := &frugal{conn: conn, sparing: i.mishap == ResetBeforeBody}
	c := &client{i: i, conn: conn, from: from, in: bufio.NewReaderSize(from, maxHead)}
	for kept := false; c.exchange(kept); kept = true {
	}
}

// exchange serves one request. It reports whether there may be another.
func (c *client) exchange(kept bool) (again bool) {
	r, err := readHead(c.in)
	if err != nil {
		return false
	}
	early := c.i.mishap == ResetBeforeBody
	struck := early && c.i.strike(r, kept)
	if !struck {
		if err := c.readBody(r); err != nil {
			return false
		}
		struck = !early && c.i.strike(r, kept)
	}
	if !struck {
		return c.pass(r)
	}
	c.conn.event(Struck)
	return mishaps[c.i.mishap](c, r)
}

func (c *client) readBody(r *request) error {
	sparing := c.from.sparing
	c.from.sparing = false
	defer func() { c.from.sparing = sparing }()
	return r.readBody()
}

// strike decides whether the mishap strikes r, and counts it if so.
func (i *Intermediary) strike(r *request, kept bool) bool {
	switch {
	case i.mishap == NoMishap || r.Method != http.MethodPost:
		return false
	case (i.mishap == CloseKeptAlive || i.mishap == CloseKeptAliveForwarded) && !kept:
		return false
	case i.mishap == StripState && len(withoutMember(r.body, "params", "requestState")) == len(r.body):
		return false
	case i.o.Selects != nil && !i.o.Selects(r.body, r.Header):
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.left == 0 {
		return false
	}
	if i.left > 0 {
		i.left--
	}
	i.strikes++
	return true
}

// pair matches the requests that Reorder strikes, two by two. The first of them is
// held until overtaken is closed, which is for the second to do.
func (i *Intermediary) pair() (overtaken chan struct{}, held bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.waiting == nil {
		i.waiting = make(chan struct{})
		return i.waiting, true
	}
	overtaken, i.waiting = i.waiting, nil
	return overtaken, false
}

// gone returns a channel that is closed when the client goes away before stop is
// called.
func (c *client) gone() (gone <-chan struct{}, stop func()) {
	left := make(chan struct{})
	return left, sync.OnceFunc(c.watch(func() { close(left) }))
}

// watch calls gone if the client goes away before stop is called. Meanwhile
// nothing else may read from it.
func (c *client) watch(gone func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		for n := 1; err == nil; n = c.in.Buffered() + 1 { // a request that was sent early stays where it is
			_, err = c.in.Peek(n)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, bufio.ErrBufferFull) {
			gone()
		}
	}()
	return func() {
		_ = c.conn.tcp.SetReadDeadline(time.Unix(1, 0))
		<-done
		_ = c.conn.tcp.SetReadDeadline(time.Time{})
	}
}
