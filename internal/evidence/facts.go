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
