package guard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Stdio serves one MCP client over newline-delimited JSON. The zero value serves
// standard input and output with every default.
type Stdio struct {
	// In and Out are the two directions. They default to standard input and
	// output. A read that blocks when Run returns is left behind.
	In  io.Reader
	Out io.Writer

	// MaxLine bounds the bytes of one message. A longer line is discarded as it
	// arrives and answered with an error. Defaults to 4 MiB.
	MaxLine int

	// MaxDepth bounds the nesting of one message. Defaults to 128.
	MaxDepth int

	// DrainTimeout bounds the time in which accepted calls may finish once the
	// client or the operator has ended the session. Defaults to 30 seconds.
	DrainTimeout time.Duration

	// Logger gets what the client is not told. It must not write to Out. Nil
	// discards it.
	Logger *slog.Logger
}

// RunStdio serves server over standard input and output; see [Stdio.Run].
func RunStdio(ctx context.Context, server *mcp.Server) error {
	return new(Stdio).Run(ctx, server)
}

// Run serves server until the input ends, ctx is cancelled, the output breaks, or
// SIGTERM, SIGINT or SIGHUP arrives. Then it reads nothing more, lets every
// accepted call finish and writes its reply, and returns nil. Until then the
// handlers' contexts are not cancelled, further signals do nothing, and writing
// to a closed pipe does not end the process.
//
// A call that waits for the client's answer to a question is answered with an
// error, because no answer can arrive any more; subscriptions end without one.
//
// If DrainTimeout passes first, the contexts of the calls still running are
// cancelled and Run returns an error matching [context.DeadlineExceeded]: what
// they have recorded stands, their replies are lost.
//
// A message that is not one well-formed JSON-RPC message gets its error and
// changes nothing else.
func (s *Stdio) Run(ctx context.Context, server *mcp.Server) error {
	o, err := s.resolve()
	if err != nil {
		return err
	}
	stop, release := stopSignals(ctx)
	defer release()

	c := newDrainConn(o)
	go c.readLines(o.In)
	// Not Server.Run: when its context is cancelled it closes the session, and the
	// SDK then refuses the replies of calls that are still running.
	session, err := server.Connect(context.WithoutCancel(ctx), c, nil)
	if err != nil {
		c.abandon()
		return fmt.Errorf("guard: connect the server: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()

	draining := c.draining
	var timeout <-chan time.Time
	for {
		select {
		case err := <-ended:
			return c.result(err)
		case reason := <-stop:
			if !c.drain(reason) {
				o.Logger.Info("already draining", "reason", reason)
			}
		case <-draining:
			draining = nil
			timeout = time.After(o.DrainTimeout)
		case <-timeout:
			n := c.abandon()
			o.Logger.Error("drain timed out", "running", n, "timeout", o.DrainTimeout)
			return fmt.Errorf("guard: %d calls still running after %v: %w", n, o.DrainTimeout, context.DeadlineExceeded)
		}
	}
}

// resolve copies s with its defaults filled, or returns everything wrong with it.
func (s *Stdio) resolve() (Stdio, error) {
	r := *s
	var errs []error
	if r.In == nil {
		r.In = os.Stdin
	}
	if r.Out == nil {
		r.Out = os.Stdout
	}
	for _, n := range []struct {
		name  string
		value *int
		fill  int
	}{
		{"MaxLine", &r.MaxLine, defaultMessageBytes},
		{"MaxDepth", &r.MaxDepth, mcpreplay.DefaultJSONDepth},
	} {
		if *n.value == 0 {
			*n.value = n.fill
		}
		if *n.value < 0 {
			errs = append(errs, fmt.Errorf("guard: Stdio.%s: must not be negative (got %d)", n.name, *n.value))
		}
	}
	if r.DrainTimeout == 0 {
		r.DrainTimeout = defaultDrain
	}
	if r.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("guard: Stdio.DrainTimeout: must not be negative (got %v)", r.DrainTimeout))
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return r, errors.Join(errs...)
}

const defaultDrain = 30 * time.Second

// stopSignals delivers reasons to stop: ctx, and the signals that would have ended
// the process. They do not until release is called: hosts and wrappers send several
// in a row, and the second must not cut an effect short.
func stopSignals(ctx context.Context) (stop <-chan string, release func()) {
	surviveBrokenPipes()
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signals = append(signals, syscall.SIGHUP)
	}
	got := make(chan os.Signal, 4)
	signal.Notify(got, signals...)
	reasons, quit := make(chan string), make(chan struct{})
	go func() {
		cancelled := ctx.Done()
		for {
			var reason string
			select {
			case <-cancelled:
				cancelled = nil
				reason = "context cancelled"
			case s := <-got:
				reason = s.String()
			case <-quit:
				return
			}
			select {
			case reasons <- reason:
			case <-quit:
				return
			}
		}
	}()
	return reasons, func() {
		signal.Stop(got)
		close(quit)
	}
}

// surviveBrokenPipes lets a write to a closed standard output or error return
// EPIPE. By default it ends a Go program (os/signal), between an effect and its
// record at the worst. Notify does this, and unlike Ignore is not passed on to
// child processes. It is never undone: the last log line must not be what fails.
var surviveBrokenPipes = sync.OnceFunc(func() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
})

// line is one message of the input, or where it ended.
type line struct {
	text []byte
	bad  *badMessage // in place of a text that was too long
	err  error       // the input ended; io.EOF if it did so by itself
}

// readLines cuts the input into messages. A last line without a newline counts.
func (c *drainConn) readLines(in io.Reader) {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		l := readLine(r, c.limits.Bytes)
		select {
		case c.lines <- l:
		case <-c.closed:
			return
		}
		if l.err != nil {
			return
		}
	}
}

// readLine reads the next line that is not empty. Memory is bounded: a line longer
// than limit is read to its end but not kept.
func readLine(r *bufio.Reader, limit int) line {
	var text []byte
	var scan *idScanner
	for {
		part, err := r.ReadSlice('\n')
		if scan == nil && len(text)+len(bytes.TrimSuffix(part, []byte("\n"))) > limit {
			scan = new(idScanner)
			scan.write(text)
			text = nil
		}
		if scan != nil {
			scan.write(part)
		} else {
			text = append(text, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case scan != nil:
			return line{bad: scan.tooLong(limit)} // an error comes back with the next call
		case len(bytes.TrimSpace(text)) > 0:
			return line{text: text}
		case err != nil:
			return line{err: err}
		}
		text = text[:0]
	}
}

// idScanner finds the id of a message that is too long to keep, wherever in it the
// id stands: some clients write it last, and a call that is never answered is
// unknown to its client although it provably was not made. It sees every byte and
// keeps only that. What it finds in a text that is not JSON is of no account: the
// text is refused in any case.
type idScanner struct {
	depth    int
	inString bool
	escaped  bool
	object   bool   // the message is an object
	value    bool   // at depth 1, behind the colon
	token    []byte // of the name or value at depth 1, as far as it matters
	name     string
	id       json.RawMessage
	seen     map[string]int // how often each name that matters is there
}

const idScannerToken = 2 << 10 // longer than any usable id

func (s *idScanner) write(part []byte) {
	for _, b := range part {
		if s.depth == 1 && (s.inString || b != ',' && b != ':' && b != '}') && len(s.token) < idScannerToken {
			s.token = append(s.token, b)
		}
		switch {
		case s.escaped:
			s.escaped = false
		case s.inString:
			s.escaped = b == '\\'
			s.inString = b != '"'
		case b == '"':
			s.inString = true
		case b == '{' || b == '[':
			if s.depth == 0 {
				s.object, s.token = b == '{', s.token[:0]
			}
			s.depth++
		case b == '}' || b == ']':
			if s.depth == 1 {
				s.member()
			}
			s.depth--
		case b == ':' && s.depth == 1 && !s.value:
			s.name, s.value = string(bytes.TrimSpace(s.token)), true
			s.token = s.token[:0]
		case b == ',' && s.depth == 1:
			s.member()
		}
	}
}

// member ends a member of the message.
func (s *idScanner) member() {
	if s.value {
		switch s.name {
		case `"id"`:
			s.id = bytes.Clone(bytes.TrimSpace(s.token))
			fallthrough
		case `"method"`, `"result"`, `"error"`:
			if s.seen == nil {
				s.seen = make(map[string]int)
			}
			s.seen[s.name]++
		}
	}
	s.value, s.token = false, s.token[:0]
}

func (s *idScanner) tooLong(limit int) *badMessage {
	b := invalid("")
	b.reason = mcpreplay.ReasonLimit
	b.message = fmt.Sprintf("%s: message has more than %d bytes", mcpreplay.ReasonLimit, limit)
	if s.seen[`"id"`] == 1 {
		b.under(usableID(s.id))
	}
	whole, method := s.object && s.depth == 0, s.seen[`"method"`] > 0
	b.answer = whole && !method && s.seen[`"result"`]+s.seen[`"error"`] > 0
	b.silent = b.answer || whole && method && s.seen[`"id"`] == 0
	return b
}
