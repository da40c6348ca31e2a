package evidence

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"mcpreplay"
)

// Extension is that of the databases of a cell, TranscriptExtension that of its
// transcripts. Acts is the name of the transcript of what the lab itself did.
const (
	Extension           = ".sqlite3"
	TranscriptExtension = ".jsonl"
	Acts                = "lab"
)

// Files are where the evidence of a cell is read from.
type Files interface {
	Names() ([]string, error)
	Open(name string) (io.ReadCloser, error)
}

// Facts are what the evidence of a cell says: its story, line by line in the order
// of time, then what the databases hold, then every rule that is broken. Two runs
// of a cell whose product behaves alike have equal facts: what differs from run to
// run (instances, nonces, times of the day) is not told but checked.
//
// A line about a rule begins with "!".
type Facts []string

// Derive reads the facts of a cell from its files alone. An error says which file
// cannot be read as what it is.
func Derive(ctx context.Context, files Files) (Facts, error) {
	c, err := readCell(ctx, files)
	if err != nil {
		return nil, err
	}
	facts := c.protocols()
	facts = append(facts, c.story()...)
	facts = append(facts, c.contention()...)
	for _, d := range c.databases {
		facts = append(facts, d.facts()...)
	}
	return append(facts, c.broken()...), nil
}

// cell is the evidence of one cell, read.
type cell struct {
	processes []*Process
	calls     []*Call // of all processes, by time
	faults    []string
	databases []*Database
	labels    map[string]string // request state to its name in the story
	tokens    []token           // in the order they came
}

// token is request state as a server issued it.
type token struct {
	text string
	call *Call
}

// FileError names the file of a cell that is wrong.
type FileError struct {
	File string
	Err  error
}

func (e *FileError) Error() string { return e.File + ": " + e.Err.Error() }

func (e *FileError) Unwrap() error { return e.Err }

func readCell(ctx context.Context, files Files) (*cell, error) {
	names, err := files.Names()
	if err != nil {
		return nil, err
	}
	c := &cell{labels: map[string]string{}}
	for _, name := range names {
		switch path.Ext(name) {
		case TranscriptExtension:
			p, err := readFile(files, name)
			if err != nil {
				return nil, &FileError{name, err}
			}
			c.processes = append(c.processes, p)
		case Extension:
			d, err := readDatabase(ctx, name, files.Open)
			if err != nil {
				return nil, &FileError{name, err}
			}
			c.databases = append(c.databases, d)
		case Extension + "-wal": // read with its database
			if name != usualLedger+"-wal" && !slices.Contains(names, strings.TrimSuffix(name, "-wal")) {
				return nil, &FileError{name, errors.New("it is the log of no database")}
			}
		default:
			return nil, &FileError{name, fmt.Errorf("it is no evidence of a cell")}
		}
	}
	for _, p := range c.processes {
		if len(p.Records) == 0 {
			return nil, &FileError{p.Name + TranscriptExtension, errors.New("there is nothing in it")}
		}
		if err := c.link(p); err != nil {
			return nil, &FileError{p.Name + TranscriptExtension, err}
		}
		calls, faults := p.Calls()
		c.calls = append(c.calls, calls...)
		for _, f := range faults {
			c.faults = append(c.faults, fmt.Sprintf("! wire %s: %v", p.Name, f))
		}
	}
	slices.SortStableFunc(c.calls, func(a, b *Call) int { return cmp.Compare(a.At, b.At) })
	c.nameStates()
	return c, nil
}

// link finds the server that an intermediary stands before.
func (c *cell) link(p *Process) error {
	for _, r := range p.Records {
		if r.Event == nil || r.Event.Kind != EventBetween {
			continue
		}
		if p.behind = c.process(r.Event.Server); p.behind == nil || p.behind == p {
			return fmt.Errorf("it is of an intermediary before %q, which has no transcript", r.Event.Server)
		}
	}
	return nil
}

func (c *cell) process(name string) *Process {
	for _, p := range c.processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func readFile(files Files, name string) (*Process, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	recs, err := ReadTranscript(f)
	if err != nil {
		return nil, err
	}
	return readProcess(strings.TrimSuffix(name, TranscriptExtension), recs)
}

// nameStates gives every request state that a server issued a name, by the order
// in which they came.
func (c *cell) nameStates() {
	replies := slices.Clone(c.calls)
	replies = slices.DeleteFunc(replies, func(c *Call) bool { return c.Reply == nil })
	slices.SortStableFunc(replies, func(a, b *Call) int { return cmp.Compare(a.Reply.At, b.Reply.At) })
	for _, call := range replies {
		var r struct{ RequestState string }
		if json.Unmarshal(call.Reply.Result, &r) != nil || r.RequestState == "" || c.labels[r.RequestState] != "" {
			continue
		}
		c.tokens = append(c.tokens, token{r.RequestState, call})
		c.labels[r.RequestState] = fmt.Sprintf("S%d", len(c.tokens))
	}
}

// protocols are the versions that were spoken.
func (c *cell) protocols() Facts {
	var spoken []string
	for _, call := range c.calls {
		if v := call.version(); v != "" && !slices.Contains(spoken, v) {
			spoken = append(spoken, v)
		}
	}
	slices.Sort(spoken)
	return Facts{"protocol " + strings.Join(spoken, " and ")}
}

// contention tells of two attempts that were in the store at once: one had inserted
// its record and waited, the other had found none and was let in, both before the
// first was let on, and neither was answered before that.
func (c *cell) contention() (facts Facts) {
	holding, letIn := c.stays("after-ledger-insert"), c.stays("before-write")
	for _, a := range c.processes {
		held := holding[a]
		if held == nil {
			continue
		}
		for _, b := range c.processes {
			writing := letIn[b]
			if a == b || writing == nil || held.operation != writing.operation {
				continue
			}
			if held.from < writing.from && writing.to < held.to && c.answered(a, held) && c.answered(b, held) {
				facts = append(facts, fmt.Sprintf("at once in the store: %s and %s, with %s", a.Name, b.Name, held.operation))
			}
		}
	}
	return facts
}

// stay is the time that a process was held at a point.
type stay struct {
	operation string
	from, to  int64
}

func (c *cell) stays(point string) map[*Process]*stay {
	stays := map[*Process]*stay{}
	for _, p := range c.processes {
		stays[p] = p.stay(point)
	}
	return stays
}

func (p *Process) stay(point string) *stay {
	var s *stay
	for _, r := range p.Records {
		switch {
		case r.Event == nil:
		case r.Event.Kind == EventReached && r.Event.Point == point:
			s = &stay{operation: r.Event.Operation, from: r.At}
		case r.Event.Kind == EventRelease && s != nil:
			s.to = r.At
		}
	}
	return s
}

// answered reports whether p was asked for the operation before s ended and
// answered after it.
func (c *cell) answered(p *Process, s *stay) bool {
	return slices.ContainsFunc(c.calls, func(call *Call) bool {
		return call.Process == p && call.Operation() == s.operation && call.At < s.to && call.Reply != nil && call.Reply.At > s.to
	})
}

// told is a line of the story and when it happened.
type told struct {
	at     int64
	line   string
	atOnce bool // see twins
}

func (t told) compare(o told) int {
	if order := cmp.Compare(t.at, o.at); order != 0 || !t.atOnce || !o.atOnce {
		return order
	}
	return cmp.Compare(t.line, o.line)
}

func (c *cell) story() Facts {
	var all []told
	for _, call := range c.calls { // before what happened to them
		if call.Method != "tools/call" {
			continue
		}
		if at, twin := c.twins(call); twin {
			all = append(all, told{at, call.Process.Name + " at once: " + c.tell(call), true})
		} else {
			all = append(all, told{call.At, call.Process.Name + " " + c.tell(call), false})
		}
	}
	for _, p := range c.processes {
		add := func(at int64, format string, args ...any) {
			all = append(all, told{at: at, line: p.Name + " " + fmt.Sprintf(format, args...)})
		}
		for _, r := range p.Records {
			if r.Event != nil && r.Event.told() && !c.ofTwins(p, r.Conn) {
				add(r.At, "%s", r.Event.text())
			}
		}
		for _, r := range p.Garbled {
			add(r.At, "%s %d bytes that are no message", r.Dir, len(r.raw()))
		}
		for _, x := range p.Torn {
			add(x.at, "%s, its body cut off -> nothing", strings.TrimSpace(x.header.Get("Mcp-Method")+" "+x.header.Get("Mcp-Name")))
		}
		for _, r := range p.Cut {
			add(r.At, "%s a line without its end", r.Dir)
		}
		for _, m := range p.Messages {
			if line := cmp.Or(c.aside(m), p.further(m)); line != "" {
				add(m.At, "%s", line)
			}
		}
	}
	slices.SortStableFunc(all, told.compare)
	facts := make(Facts, len(all))
	for i, t := range all {
		facts[i] = t.line
	}
	return facts
}

// aside is what is told of a message that is neither a call nor its reply.
func (c *cell) aside(m Message) string {
	switch {
	case m.Method == "notifications/cancelled" && m.http != nil:
		// A client sends it beside its call, when it finds the time or not at all,
		// and over stateless HTTP it is about nothing.
		return ""
	case m.Method == "notifications/cancelled":
		return "cancels " + string(m.Params.RequestID)
	case m.Method == "elicitation/create" && !m.Sent:
		return "asks"
	case m.Method == "" && m.Sent:
		return "answers " + answerText(m.Result)
	case m.Method == "" && (m.ID == "" || m.ID == "null"):
		return "says " + errorText(m.Error)
	}
	return ""
}

// tell is the line of one call.
func (c *cell) tell(call *Call) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", call.ID, call.Params.Name, compact(call.Params.Arguments))
	if call.http != nil {
		if _, shown := principalOf(call.http.header); shown != Principal {
			fmt.Fprintf(&b, " by %s", shown)
		}
		if call.http.header["Idempotency-Key"] != nil {
			b.WriteString(" with an Idempotency-Key")
		}
	}
	if s := call.Params.RequestState; s != nil {
		label := c.labels[*s]
		if label == "" {
			label = "a changed state"
		}
		fmt.Fprintf(&b, " %s", label)
	}
	for _, name := range sortedNames(call.Params.InputResponses) {
		fmt.Fprintf(&b, " %s=%s", name, answerText(call.Params.InputResponses[name]))
	}
	b.WriteString(" -> ")
	if c.eitherOf(call) {
		b.WriteString("one of the two replies")
	} else {
		b.WriteString(c.outcome(call))
	}
	return b.String()
}

// outcome is what came back for a call.
func (c *cell) outcome(call *Call) string {
	if call.Reply == nil {
		x := call.http
		switch {
		case x == nil || x.status == 0:
			return "nothing"
		case !x.complete:
			return fmt.Sprintf("HTTP %d, cut off", x.status)
		case x.contentType == "":
			return fmt.Sprintf("HTTP %d", x.status)
		}
		return fmt.Sprintf("HTTP %d, %s", x.status, x.contentType)
	}
	if call.Reply.Error != nil {
		return errorText(call.Reply.Error)
	}
	switch call.Params.Name {
	case statusTool, fenceTool:
		if text, ok := c.status(call); ok {
			return text
		}
	case listTool:
		if text, ok := listText(call.Reply.Result); ok {
			return text
		}
	}
	return c.resultText(call.Reply.Result)
}

const (
	statusTool = "get_operation_status"
	fenceTool  = "fence_operation"
)

func (c *cell) resultText(result json.RawMessage) string {
	v := mcpreplay.ClassifyResult(result)
	if v.Kind == mcpreplay.VerdictInputRequired {
		var r struct {
			RequestState  string
			InputRequests map[string]json.RawMessage
		}
		if err := json.Unmarshal(result, &r); err != nil {
			return "a question that cannot be read"
		}
		return strings.TrimSpace(fmt.Sprintf("asks %s, %s", strings.Join(sortedNames(r.InputRequests), " "), c.labels[r.RequestState]))
	}
	var r struct {
		IsError           bool
		StructuredContent json.RawMessage
		Content           []struct{ Text string }
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return "a result that cannot be read"
	}
	text := compact(r.StructuredContent)
	if text == "" && len(r.Content) > 0 {
		text = fmt.Sprintf("%q", r.Content[0].Text)
	}
	kind := "result"
	if r.IsError {
		kind = "error result"
	}
	if v.Kind == mcpreplay.VerdictUnknown {
		kind = "UNKNOWN"
		text = string(v.Reason)
	}
	mark, marked, _ := mcpreplay.ReadMark(result)
	switch {
	case !marked:
		return kind + " " + text
	case mark.Replayed:
		return fmt.Sprintf("%s %s, %s, replayed", kind, text, mark.State)
	}
	return fmt.Sprintf("%s %s, %s", kind, text, mark.State)
}

// status is what a client makes of a status reply: only what the consumer's own
// check accepts counts.
func (c *cell) status(call *Call) (string, bool) {
	var probe struct{ StructuredContent json.RawMessage }
	if json.Unmarshal(call.Reply.Result, &probe) != nil || probe.StructuredContent == nil {
		return "", false
	}
	obs, err := mcpreplay.ParseStatus(call.Reply.Result, c.scope(call))
	if err != nil {
		return fmt.Sprintf("status not believed: %v", err), true
	}
	text := "status " + string(obs.State)
	if len(obs.MatchingIDs) > 0 {
		text += " effect " + strings.Join(obs.MatchingIDs, " ")
	}
	if obs.StoredResult != nil {
		text += ", " + c.resultText(obs.StoredResult)
	}
	if obs.ResultDropped != nil {
		text += ", result dropped"
	}
	if obs.NewOperationSafe {
		text += ", a new operation is safe"
	}
	return text + ", action " + string(obs.NextAction), true
}

// scope is whose operation a call asks about.
func (c *cell) scope(call *Call) mcpreplay.Scope {
	return mcpreplay.Scope{OperationID: call.Operation(), Principal: c.principal(call), Backend: Backend}
}

// principal is on whose behalf a call runs: by its token over HTTP, by the
// process's configuration over stdio.
func (c *cell) principal(call *Call) string {
	if call.http != nil {
		name, _ := principalOf(call.http.header)
		return name
	}
	return call.Process.setting("--principal", Principal)
}

// server is the process itself, or the one that an intermediary stands before.
func (p *Process) server() *Process {
	if p.behind != nil {
		return p.behind
	}
	return p
}

// setting is the value of a flag that the process was started with.
func (p *Process) setting(flag, otherwise string) string {
	p = p.server()
	for _, r := range p.Records {
		if r.Event == nil || r.Event.Kind != EventStart {
			continue
		}
		return r.Event.flag(flag, otherwise)
	}
	return otherwise
}

func sortedNames(m map[string]json.RawMessage) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
