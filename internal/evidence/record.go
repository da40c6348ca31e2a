// Package evidence is the form in which the lab keeps what happened, and the
// judge of it: an attempt directory with raw transcripts and databases, from which
// every fact can be derived again by anyone, offline.
//
// What the lab does and what is said about it are apart: the lab only records.
// Derive reads facts from the files alone, when the lab runs and when somebody
// verifies.
package evidence

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

// Record is one line of a transcript: what was on the wire, or an event beside it.
type Record struct {
	// At is when, in microseconds since the cell began. All transcripts of a cell
	// have one clock, which never runs backwards.
	At int64 `json:"at"`

	// Dir is ">" for what was sent to a server and "<" for what came from it; ""
	// for an event.
	Dir string `json:"dir,omitempty"`

	// Conn is the connection, from 1, where there are several.
	Conn int `json:"conn,omitempty"`

	// Raw is the text: one line without its end over stdio, the bytes as they were
	// read or written over HTTP. Bytes that are not UTF-8 are in Bytes instead.
	Raw   string `json:"raw,omitempty"`
	Bytes []byte `json:"bytes,omitempty"`

	// Cut says that a line over stdio lacks its end.
	Cut bool `json:"cut,omitempty"`

	Event *Event `json:"event,omitempty"`
}

// Event is something that happened beside the wire.
type Event struct {
	Kind string `json:"kind"`

	// Of a start: how the server is spoken to, and its arguments.
	Transport string   `json:"transport,omitempty"`
	Args      []string `json:"args,omitempty"`

	// Of an exit: its code. A process that was killed has none.
	Code *int `json:"code,omitempty"`

	// Of a point of the write path: its name, and the operation.
	Point     string `json:"point,omitempty"`
	Operation string `json:"operation,omitempty"`

	// Of an act of the lab: what it changed. Of an intermediary: its mishap. Of a
	// connection: what happened to it.
	Text string `json:"text,omitempty"`

	// Of an intermediary: the transcript of the server that it stands before.
	Server string `json:"server,omitempty"`

	// Of an outcome: what the client concludes.
	Conclusion *Conclusion `json:"conclusion,omitempty"`
}

// The kinds of events.
const (
	EventStart   = "start"   // a server process was started
	EventExit    = "exit"    // it ended by itself
	EventKill    = "kill"    // it was killed
	EventReached = "reached" // it is at a point of the write path, and waits
	EventRelease = "release" // it may go on
	EventAct     = "act"     // the lab changed something
	EventOutcome = "outcome" // a client came to a conclusion
	EventBetween = "between" // the transcript is one side of an intermediary
	EventLink    = "link"    // something happened to a connection
)

// The directions of a record.
const (
	Sent     = ">"
	Received = "<"
)

// Clock is what the transcripts of a cell share. It tells no time twice: two
// records of different transcripts are in an order, however soon one follows.
type Clock struct {
	start time.Time

	mu   sync.Mutex
	last int64
}

// NewClock starts a clock.
func NewClock() *Clock { return &Clock{start: time.Now()} }

// tick is the time of a record, in microseconds.
func (c *Clock) tick() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, c.Now().Microseconds())
	return c.last
}

// Now is the time since the clock was started.
func (c *Clock) Now() time.Duration { return time.Since(c.start) }

// Recorder writes a transcript. It is safe for concurrent use. The order of lines
// is the order of time.
type Recorder struct {
	clock *Clock

	mu     sync.Mutex
	file   *os.File
	failed error
}

// NewRecorder makes a new file.
func NewRecorder(path string, clock *Clock) (*Recorder, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &Recorder{clock: clock, file: file}, nil
}

// Wire records bytes of a connection.
func (r *Recorder) Wire(dir string, conn int, raw []byte) { r.write(text(dir, conn, raw)) }

// Line records one line of stdio.
func (r *Recorder) Line(dir string, raw []byte, cut bool) {
	rec := text(dir, 0, raw)
	rec.Cut = cut
	r.write(rec)
}

// Event records an event.
func (r *Recorder) Event(e Event) { r.write(Record{Event: &e}) }

func text(dir string, conn int, raw []byte) Record {
	rec := Record{Dir: dir, Conn: conn}
	if utf8.Valid(raw) {
		rec.Raw = string(raw)
	} else {
		rec.Bytes = append([]byte(nil), raw...)
	}
	return rec
}

func (r *Recorder) write(rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.At = r.clock.tick()
	r.append(rec)
}

// WireAt and LinkAt record what others have observed on a connection, when they
// did: in the order of time.
func (r *Recorder) WireAt(at time.Duration, dir string, conn int, raw []byte) {
	rec := text(dir, conn, raw)
	rec.At = at.Microseconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(rec)
}

// LinkAt is WireAt for something that happened to the connection.
func (r *Recorder) LinkAt(at time.Duration, conn int, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(Record{At: at.Microseconds(), Conn: conn, Event: &Event{Kind: EventLink, Text: what}})
}

// BetweenAt says that what follows is one side of an intermediary.
func (r *Recorder) BetweenAt(at time.Duration, mishap, server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(Record{At: at.Microseconds(), Event: &Event{Kind: EventBetween, Text: mishap, Server: server}})
}

func (r *Recorder) append(rec Record) {
	if r.failed != nil {
		return
	}
	line, err := encode(rec)
	if err == nil {
		_, err = r.file.Write(line)
	}
	r.failed = err
}

// Close ends the transcript. It returns the first error of writing it.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(r.failed, os.ErrClosed) {
		return nil
	}
	err := errors.Join(r.failed, r.file.Close())
	r.failed = os.ErrClosed
	return err
}

func (r Record) raw() []byte {
	if r.Bytes != nil {
		return r.Bytes
	}
	return []byte(r.Raw)
}

// What a file of lines may have: more is refused, never left unread.
const (
	maxText    = 64 << 20
	maxRecords = 20_000
)

// ReadTranscript reads a transcript whole.
func ReadTranscript(r io.Reader) ([]Record, error) {
	var recs []Record
	err := lines(r, func(n int, line []byte) error {
		var rec Record
		if err := decode(line, &rec); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if err := rec.check(); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if len(recs) == maxRecords {
			return fmt.Errorf("line %d: there are more than %d records", n, maxRecords)
		}
		if k := len(recs); k > 0 && rec.At < recs[k-1].At {
			return fmt.Errorf("line %d: it is earlier than the line before it", n)
		}
		recs = append(recs, rec)
		return nil
	})
	return recs, err
}

// check holds that a record says one thing, and nothing that would be passed over.
func (r Record) check() error {
	wire := r.Dir == Sent || r.Dir == Received
	switch {
	case wire == (r.Event != nil) || !wire && r.Dir != "":
		return errors.New("neither sent, received nor an event")
	case !wire && (r.Raw != "" || r.Bytes != nil || r.Cut):
		return errors.New("an event has bytes of a connection")
	case r.Bytes != nil && (r.Raw != "" || utf8.Valid(r.Bytes)):
		return errors.New("its bytes are text, or beside text")
	case r.At < 0 || r.Conn < 0:
		return errors.New("it is before the beginning, or of a connection that is none")
	}
	return nil
}

// lines calls fn for each line, from 1. The last must have its end.
func lines(r io.Reader, fn func(n int, line []byte) error) error {
	limit := &io.LimitedReader{R: r, N: maxText + 1}
	b := bufio.NewReader(limit)
	for n := 1; ; n++ {
		line, err := b.ReadBytes('\n')
		switch {
		case limit.N == 0:
			return fmt.Errorf("it has more than %d bytes", maxText)
		case err == io.EOF && len(line) == 0:
			return nil
		case err == io.EOF:
			return fmt.Errorf("line %d: it has no end", n)
		case err != nil:
			return err
		}
		if err := fn(n, line[:len(line)-1]); err != nil {
			return err
		}
	}
}

// encode is v as one line of JSON, readable where it quotes.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// decode reads one JSON value strictly: it must be spelled as it is written, so
// that nothing can hide in what a decoder skips.
func decode(line []byte, v any) error {
	if err := json.Unmarshal(line, v); err != nil {
		return err
	}
	again, err := encode(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")), line) {
		return errors.New("it is not in the form it is written in")
	}
	return nil
}

func sortMessages(ms []Message) {
	slices.SortStableFunc(ms, func(a, b Message) int { return cmp.Compare(a.At, b.At) })
}
