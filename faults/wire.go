package faults

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// Side says to whom a connection of an intermediary leads.
type Side string

// The sides.
const (
	ClientSide   Side = "client"
	UpstreamSide Side = "upstream"
)

// Direction says which way bytes went.
type Direction string

// The directions.
const (
	ToServer Direction = ">"
	ToClient Direction = "<"
)

// Event is what happened to a connection besides bytes. The names are stable.
type Event string

// The events.
const (
	// Opened: accepted from a client, or established to the server.
	Opened Event = "opened"
	// Closed, Reset: ended by the intermediary, with FIN or with RST. One of them
	// is the end of every connection, whoever ended it first.
	Closed Event = "closed"
	Reset  Event = "reset"
	// PeerClosed, PeerReset: the other end went away, and this was noticed.
	PeerClosed Event = "peer-closed"
	PeerReset  Event = "peer-reset"
	// Unreachable: no connection to the server could be established.
	Unreachable Event = "unreachable"
	// Struck: the mishap strikes the request that was just read.
	Struck Event = "struck"
	// Held, Released: a reply or, for Reorder, a request waits, and goes on.
	Held     Event = "held"
	Released Event = "released"
	// Dropped: a request, a reply or the rest of one will not be passed on.
	Dropped Event = "dropped"
)

// Entry is one entry of what an intermediary recorded: bytes or an event.
type Entry struct {
	At    time.Duration // since the intermediary was made; monotonic
	Side  Side
	Conn  int       // counts the connections of a side from 1
	Dir   Direction // of Bytes
	Bytes []byte    // as they were on the connection, framing included
	Event Event
}

// wireLog is the record. A write is entered before its bytes can arrive, and a
// read after they did, so a cause always stands before its effect.
type wireLog struct {
	start   time.Time
	onEvent func(Entry)

	mu      sync.Mutex
	entries []Entry
	conns   map[Side]int
}

func (l *wireLog) number(s Side) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[s]++
	return l.conns[s]
}

func (l *wireLog) event(s Side, conn int, what Event) {
	l.mu.Lock()
	e := Entry{At: time.Since(l.start), Side: s, Conn: conn, Event: what}
	l.entries = append(l.entries, e)
	l.mu.Unlock()
	if l.onEvent != nil {
		l.onEvent(e)
	}
}

// bytes enters p and returns where. Reads that follow each other are one entry.
func (l *wireLog) bytes(s Side, conn int, d Direction, p []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.entries) - 1
	if last >= 0 && d == inward(s) {
		if e := &l.entries[last]; e.Side == s && e.Conn == conn && e.Dir == d {
			e.Bytes = append(e.Bytes, p...)
			return last
		}
	}
	l.entries = append(l.entries, Entry{At: time.Since(l.start), Side: s, Conn: conn, Dir: d, Bytes: slices.Clone(p)})
	return last + 1
}

// shorten leaves n bytes of a write: the others could not be sent.
func (l *wireLog) shorten(at, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[at].Bytes = l.entries[at].Bytes[:n]
}

func (l *wireLog) copy() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.entries), func(e Entry) bool {
		return e.Event == "" && len(e.Bytes) == 0
	})
}

// inward is the direction of what is read on a side.
func inward(s Side) Direction {
	if s == ClientSide {
		return ToServer
	}
	return ToClient
}

func outward(s Side) Direction {
	if s == ClientSide {
		return ToClient
	}
	return ToServer
}

// wire is a connection that is recorded. The TCP connection is not embedded: its
// ReadFrom and WriteTo would go past the record.
type wire struct {
	tcp    *net.TCPConn
	log    *wireLog
	side   Side
	number int
	forget func()

	lost, ended sync.Once
}

func (w *wire) event(what Event) { w.log.event(w.side, w.number, what) }

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.tcp.Read(p)
	if n > 0 {
		w.log.bytes(w.side, w.number, inward(w.side), p[:n])
	}
	w.notice(err)
	return n, err
}

func (w *wire) Write(p []byte) (int, error) {
	at := w.log.bytes(w.side, w.number, outward(w.side), p)
	n, err := w.tcp.Write(p)
	if n < len(p) {
		w.log.shorten(at, n)
	}
	w.notice(err)
	return n, err
}

// notice records, once, that the other end went away.
func (w *wire) notice(err error) {
	if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	w.lost.Do(func() {
		if errors.Is(err, io.EOF) {
			w.event(PeerClosed)
		} else {
			w.event(PeerReset)
		}
	})
}

// Close ends the connection, if it has not been ended.
func (w *wire) Close() { w.end(Closed) }

// Reset ends it with RST: the other end gets an error, and not what was sent last.
func (w *wire) Reset() { w.end(Reset) }

func (w *wire) end(how Event) {
	w.ended.Do(func() {
		w.event(how)
		if how == Reset {
			_ = w.tcp.SetLinger(0)
		}
		_ = w.tcp.Close()
		w.forget()
	})
}

// frugal reads a connection byte by byte while it is sparing, so that nothing
// after what was asked for is taken from it.
type frugal struct {
	conn    *wire
	sparing bool
}

func (f *frugal) Read(p []byte) (int, error) {
	if f.sparing && len(p) > 1 {
		p = p[:1]
	}
	return f.conn.Read(p)
}
