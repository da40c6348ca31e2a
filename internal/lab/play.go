package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"mcpreplay/consumer"
	"mcpreplay/internal/evidence"
)

// play is a cell while it is played. What its script does is recorded; whether that
// is right is for the judge. A step that cannot be played ends the script.
type play struct {
	ctx       context.Context
	exe       string
	dir       string // of the cell: servers run in it
	transport string // of the cell's servers
	protocol  string
	unguarded bool
	op        string                            // the usual operation id
	spoil     func(io.ReadCloser) io.ReadCloser // see Process, of servers to come

	clock *evidence.Clock
	acts  *evidence.Recorder // of the lab itself, once it has acted

	mu      sync.Mutex
	servers []*server
	closing []func() error
	failed  error
}

// The limits of a cell: one reply, the end of a process, and all of it.
const (
	replyLimit = 20 * time.Second
	endLimit   = 20 * time.Second
	cellLimit  = 60 * time.Second
)

// fail ends the script: the machinery, and not the product, has failed.
func (p *play) fail(format string, args ...any) {
	p.mu.Lock()
	if p.failed == nil {
		p.failed = fmt.Errorf(format, args...)
	}
	p.mu.Unlock()
	runtime.Goexit()
}

func (p *play) must(err error) {
	if err != nil {
		p.fail("%w", err)
	}
}

// perform plays a script, and returns why it could not be played.
func (p *play) perform(script func(*play)) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				p.mu.Lock()
				p.failed = fmt.Errorf("the script panicked: %v", r)
				p.mu.Unlock()
			}
		}()
		script(p)
	}()
	select {
	case <-done:
	case <-p.ctx.Done(): // whatever it waits for ends with its processes
		p.mu.Lock()
		if p.failed == nil {
			p.failed = fmt.Errorf("the cell did not end in time: %w", context.Cause(p.ctx))
		}
		p.mu.Unlock()
		p.end()
		select {
		case <-done:
		case <-time.After(endLimit):
			return errors.New("the cell did not end, not even when its processes were killed")
		}
	}
	p.end()
	return p.failed
}

// end leaves no process and no open file behind.
func (p *play) end() {
	p.mu.Lock()
	servers, closing := p.servers, p.closing
	p.closing = nil
	p.mu.Unlock()
	for _, s := range servers {
		s.end()
	}
	for _, c := range closing {
		if err := c(); err != nil {
			p.mu.Lock()
			if p.failed == nil {
				p.failed = err
			}
			p.mu.Unlock()
		}
	}
}

// atEnd has fn called when the cell ends, whichever way it does.
func (p *play) atEnd(fn func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closing = append(p.closing, fn)
}

func (p *play) recorder(name string) *evidence.Recorder {
	rec, err := evidence.NewRecorder(filepath.Join(p.dir, name+evidence.TranscriptExtension), p.clock)
	p.must(err)
	p.atEnd(rec.Close)
	return rec
}

// act records that the lab changes something, and changes it.
func (p *play) act(text string, fn func() error) {
	p.note(evidence.Event{Kind: evidence.EventAct, Text: text})
	if err := fn(); err != nil {
		p.fail("%s: %w", text, err)
	}
}

// concluded records what a client came to know of the usual operation, in the form
// that is held against its bytes.
func (p *play) concluded(client, from string, out consumer.Outcome) {
	p.note(evidence.Event{Kind: evidence.EventOutcome, Operation: p.op, Conclusion: &evidence.Conclusion{
		Client: client, From: from, Kind: string(out.Kind), Effect: string(out.Effect), Action: string(out.Action),
	}})
}

func (p *play) note(e evidence.Event) {
	if p.acts == nil {
		p.acts = p.recorder(evidence.Acts)
	}
	p.acts.Event(e)
}

// store is the path of the cell's database.
func (p *play) store() string { return filepath.Join(p.dir, storeName) }

const storeName = "store" + evidence.Extension

// flags are what a server of this cell is started with, those given last.
func (p *play) flags(given []string) []string {
	flags := []string{
		"--ledger", "sqlite:" + storeName, "--backend", evidence.Backend, "--clock", fmt.Sprint(evidence.T0),
		"--authority-ttl", fmt.Sprintf("%ds", evidence.Authority), "--replay-retention", fmt.Sprintf("%ds", evidence.Retention),
		"--state-ttl", fmt.Sprintf("%ds", evidence.StateTTL), "--principal", evidence.Principal,
		"--state-key-hex", fmt.Sprintf("%x", evidence.StateSecret), "--fingerprint-key-hex", fmt.Sprintf("%x", evidence.FingerprintSecret),
	}
	if p.unguarded {
		flags = append(flags, "--unguarded")
	}
	if p.transport == overHTTP {
		flags = append(flags, "--http", "127.0.0.1:0", "--until-eof", "--token", "alice="+evidence.Token("alice"), "--token", "bob="+evidence.Token("bob"))
	}
	for i := 0; i < len(given); i += 2 { // a flag given replaces the usual one
		replaced := false
		for j, f := range flags {
			if f == given[i] && j+1 < len(flags) {
				flags[j+1], replaced = given[i+1], true
			}
		}
		if !replaced {
			flags = append(flags, given[i], given[i+1])
		}
	}
	return flags
}

// The transports.
const (
	overStdio = "stdio"
	overHTTP  = "http"
)

// at is the flag of a clock that stands at T0 and so many seconds.
func at(seconds int) []string { return []string{"--clock", fmt.Sprint(evidence.T0 + seconds)} }

// tail keeps the last words of a server's stderr, for whoever has to find out why a
// cell could not be played. They are no evidence.
type tail struct {
	mu   sync.Mutex
	text []byte
	seen chan struct{} // closed once listening was said
	url  string
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if t.url == "" {
		if _, after, ok := strings.Cut(string(t.text), "serving on http://"); ok {
			if addr, _, ok := strings.Cut(after, "\n"); ok {
				t.url = addr
				close(t.seen)
			}
		}
	}
	if len(t.text) > 4096 {
		t.text = t.text[len(t.text)-4096:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
