package lab

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"mcpreplay/faults"
	"mcpreplay/internal/evidence"
)

// The transcripts of an intermediary: what passed between it and the client, and
// between it and the server.
const (
	clientSide   = "client"
	upstreamSide = "upstream"
)

// intermediary stands before a server. What passes is in its own two transcripts,
// written when the cell ends, and no longer in the server's.
type intermediary struct {
	*faults.Intermediary
	p *play

	mu     sync.Mutex
	offset time.Duration // from the clock of the cell to that of the intermediary's log
	seen   map[faults.Event]int
	change chan struct{} // closed and made anew with each event
}

// between puts an intermediary before s. The mishap strikes what selects says, or
// else the first continuation.
func (s *server) between(m faults.Mishap, o faults.IntermediaryOptions) *intermediary {
	p := s.p
	i := &intermediary{p: p, seen: map[faults.Event]int{}, change: make(chan struct{}), offset: time.Hour}
	if o.Selects == nil {
		o.Selects = continuations
	}
	o.OnEvent = i.noticed
	client, upstream := p.recorder(clientSide), p.recorder(upstreamSide)
	began := p.clock.Now()
	var err error
	i.Intermediary, err = faults.NewIntermediary(s.addr, m, &o)
	p.must(err)
	s.addr, s.silent, s.conn = strings.TrimPrefix(i.URL(), "http://"), true, nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = append([]func() error{func() error { // before the recorders are closed
		err := i.Close()
		i.record(began, string(m), s.name, client, upstream)
		return err
	}}, p.closing...)
	return i
}

// continuations are known by their body.
func continuations(body []byte, h http.Header) bool {
	return strings.Contains(string(body), `"inputResponses"`)
}

// second selects the second call of the tool, for a mishap that sees heads alone.
func second() func([]byte, http.Header) bool {
	var mu sync.Mutex
	n := 0
	return func(_ []byte, h http.Header) bool {
		if h.Get("Mcp-Name") == statusTool || h.Get("Mcp-Name") == "" {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		return n == 2
	}
}

// noticed keeps how often each event of a client's connection was seen. The log counts its time from a
// moment of its own: the least that an event seems late is closest to the truth,
// and never before it.
func (i *intermediary) noticed(e faults.Entry) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.offset = min(i.offset, i.p.clock.Now()-e.At)
	if e.Side == faults.ClientSide {
		i.seen[e.Event]++
	}
	close(i.change)
	i.change = make(chan struct{})
}

// await waits until the intermediary has seen an event so many times.
func (i *intermediary) await(what faults.Event, times int) {
	late := time.After(replyLimit)
	for {
		i.mu.Lock()
		n, change := i.seen[what], i.change
		i.mu.Unlock()
		if n >= times {
			return
		}
		select {
		case <-change:
		case <-i.p.ctx.Done():
			i.p.fail("%s did not happen: %w", what, i.p.ctx.Err())
		case <-late:
			i.p.fail("%s did not happen in time", what)
		}
	}
}

// sent waits until so many requests have been sent to the server. The log tells
// of bytes only when it is asked.
func (i *intermediary) sent(requests int) {
	for late := time.Now().Add(replyLimit); time.Now().Before(late); time.Sleep(time.Millisecond) {
		conns := map[int]bool{}
		for _, e := range i.Log() {
			if e.Side == faults.UpstreamSide && e.Dir == faults.ToServer {
				conns[e.Conn] = true
			}
		}
		if len(conns) >= requests {
			return
		}
	}
	i.p.fail("there were never %d requests on the way to the server", requests)
}

// struck ends the script if the mishap has not struck: a fault that was never
// injected would pass for a fault survived.
func (i *intermediary) struck(times int) {
	if n := i.Strikes(); n != times {
		i.p.fail("the mishap has struck %d times, and not %d", n, times)
	}
}

// record writes both sides of the log.
func (i *intermediary) record(began time.Duration, mishap, server string, client, upstream *evidence.Recorder) {
	i.mu.Lock()
	offset := i.offset
	i.mu.Unlock()
	client.BetweenAt(began, mishap, server)
	upstream.BetweenAt(began, mishap, server)
	for _, e := range i.Log() {
		rec, at := client, max(began, e.At+offset)
		if e.Side == faults.UpstreamSide {
			rec = upstream
		}
		if e.Event != "" {
			rec.LinkAt(at, e.Conn, string(e.Event))
		} else {
			rec.WireAt(at, string(e.Dir), e.Conn, e.Bytes)
		}
	}
}
