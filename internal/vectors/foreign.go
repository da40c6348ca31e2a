package vectors

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"mcpreplay"
)

// Bounds of what one process of a foreign implementation may print.
const (
	maxAnswer = 64 << 10
	maxStderr = 64 << 10
)

// pipesLimit is how long the output of a process that has ended, or was ended, may
// stay open in the hands of its descendants.
const pipesLimit = 2 * time.Second

// Foreign is another implementation: a command that reads one question, as a line
// of JSON, and prints one answer.
type Foreign struct {
	Command []string      // the program and its arguments; there is no shell
	Limit   time.Duration // for each vector
	Stderr  io.Writer     // gets what the command says there, up to a bound
}

// Classify runs the command anew. What it did for an earlier vector cannot change
// its answer, and what goes wrong costs this vector alone. It is a [Classifier].
func (f *Foreign) Classify(ctx context.Context, q Question) (Classification, error) {
	line, err := oneLine(q)
	if err != nil {
		return "", err
	}
	out, err := f.run(ctx, append(line, '\n'))
	if err != nil {
		return "", err
	}
	return readClassification(out, q.Vector)
}

var (
	errLate = errors.New("it did not end in time")
	errLong = fmt.Errorf("it printed more than %d bytes", maxAnswer)
)

func (f *Foreign) run(ctx context.Context, line []byte) ([]byte, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ctx, cancel := context.WithTimeoutCause(ctx, f.Limit, errLate)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.Command[0], f.Command[1:]...)
	out := &printed{tooLong: func() { stop(errLong) }}
	stderr := &shown{to: f.Stderr, left: maxStderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(line), out, stderr
	cmd.WaitDelay = pipesLimit
	endTogether(cmd)
	err := cmd.Run()
	stderr.close()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errLate):
		return nil, fmt.Errorf("%w (%v)", errLate, f.Limit)
	case cause != nil:
		return nil, cause
	case errors.Is(err, exec.ErrWaitDelay):
		endAll(cmd)
		return nil, errors.New("it ended and left its output open")
	case err != nil:
		return nil, fmt.Errorf("it failed: %w", err)
	}
	return out.text.Bytes(), nil
}

// readClassification is strict: what can be read in two ways is no answer.
func readClassification(out []byte, number int32) (Classification, error) {
	line := bytes.TrimSuffix(out, []byte("\n"))
	switch {
	case len(bytes.TrimSpace(line)) == 0:
		return "", errors.New("it printed no answer")
	case bytes.IndexByte(line, '\n') >= 0:
		return "", errors.New("it printed more than one line")
	}
	if err := mcpreplay.CheckJSON(line, nil); err != nil {
		return "", fmt.Errorf("its answer is no JSON: %w: %.80q", err, line)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(line, &m); err != nil || m == nil {
		return "", fmt.Errorf("its answer is no JSON object: %.80q", line)
	}
	if string(m["vector"]) != fmt.Sprint(number) {
		return "", fmt.Errorf("it answered vector %.20q and was asked %d", m["vector"], number)
	}
	var class *Classification
	if err := json.Unmarshal(m["classification"], &class); err != nil || class == nil {
		return "", fmt.Errorf("its answer has no text as classification: %.80q", line)
	}
	return *class, nil
}

// printed keeps what a command prints, up to its bound.
type printed struct {
	text    bytes.Buffer
	tooLong func()
}

func (p *printed) Write(b []byte) (int, error) {
	if p.text.Len()+len(b) > maxAnswer {
		p.tooLong()
		return 0, errLong
	}
	return p.text.Write(b)
}

// shown passes on what comes before its bound, and takes the rest: a full pipe
// would stop a process that only complains too much.
type shown struct {
	to   io.Writer
	left int
	open bool // a line has begun
}

func (s *shown) Write(b []byte) (int, error) {
	pass := b[:min(len(b), s.left)]
	if len(pass) > 0 {
		s.left -= len(pass)
		s.open = pass[len(pass)-1] != '\n'
		s.to.Write(pass)
	}
	return len(b), nil
}

// close ends a line that was left open.
func (s *shown) close() {
	if s.open {
		io.WriteString(s.to, "\n")
	}
}
