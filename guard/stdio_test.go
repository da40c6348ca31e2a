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
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The test binary is its own server: a child of it with this variable set serves
// stdio and exits as a program that calls Run would.
const childEnv = "MCPREPLAY_TEST_STDIO"

func init() {
	if os.Getenv(childEnv) == "" {
		return
	}
	gate, events := os.NewFile(3, "gate"), os.NewFile(4, "events")
	server := newEffectServer(func(ctx context.Context) {
		f, err := os.OpenFile(os.Getenv(childEnv), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(f, "effect")
		f.Close()
		fmt.Fprintln(events, "started")
		io.Copy(io.Discard, gate) // until the parent closes it
	})
	stdio := &Stdio{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), MaxLine: 64 << 10}
	if d, err := time.ParseDuration(os.Getenv(childEnv + "_TIMEOUT")); err == nil {
		stdio.DrainTimeout = d
	}
	if err := stdio.Run(context.Background(), server); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// newEffectServer has a tool "effect" that runs effect and tells what became of
// its context.
func newEffectServer(effect func(context.Context)) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "effect", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			effect(ctx)
			text := "context alive"
			if err := ctx.Err(); err != nil {
				text = err.Error()
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
		})
	return server
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

func effectCall(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s,"name":"effect","arguments":{}}}`, id, modernMeta)
}

// child is a server in a process of its own.
type child struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	outPipe io.ReadCloser
	out     *bufio.Reader
	log     *bufio.Reader
	events  *bufio.Reader
	gate    *os.File // closing it lets every effect finish
	effects string
}

func startChild(t *testing.T, env ...string) *child {
	t.Helper()
	c := &child{t: t, effects: filepath.Join(t.TempDir(), "effects"), cmd: exec.Command(os.Args[0])}
	// The race detector makes every exit wait for a second.
	c.cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0", childEnv+"="+c.effects), env...)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	c.in, err = c.cmd.StdinPipe()
	must(err)
	c.outPipe, err = c.cmd.StdoutPipe()
	must(err)
	log, err := c.cmd.StderrPipe()
	must(err)
	gate, gateWriter, err := os.Pipe()
	must(err)
	eventReader, events, err := os.Pipe()
	must(err)
	c.cmd.ExtraFiles = []*os.File{gate, events}
	must(c.cmd.Start())
	gate.Close()
	events.Close()
	c.gate = gateWriter
	c.out, c.log, c.events = bufio.NewReader(c.outPipe), bufio.NewReader(log), bufio.NewReader(eventReader)
	watchdog := time.AfterFunc(time.Minute, func() { c.cmd.Process.Kill() })
	t.Cleanup(func() {
		watchdog.Stop()
		c.cmd.Process.Kill()
		c.cmd.Wait()
		gateWriter.Close()
		eventReader.Close()
	})
	return c
}

func (c *child) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *child) started() {
	c.t.Helper()
	if _, err := c.events.ReadString('\n'); err != nil {
		c.t.Fatalf("the effect did not start: %v", err)
	}
}

func (c *child) logged(text string) {
	c.t.Helper()
	for {
		line, err := c.log.ReadString('\n')
		if err != nil {
			c.t.Fatalf("never logged: %s", text)
		}
		if strings.Contains(line, text) {
			return
		}
	}
}

func (c *child) reply() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("no reply: %v", err)
	}
	return line
}

// exit checks how the child ended, and returns what was still on its output.
func (c *child) exit(code int) string {
	c.t.Helper()
	go io.Copy(io.Discard, c.log)
	rest, _ := io.ReadAll(c.out)
	c.cmd.Wait()
	if got := c.cmd.ProcessState.ExitCode(); got != code {
		c.t.Errorf("exit code %d (%v), want %d", got, c.cmd.ProcessState, code)
	}
	return string(rest)
}

func (c *child) countEffects() int {
	text, err := os.ReadFile(c.effects)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	return bytes.Count(text, []byte("\n"))
}

func isReply(line string, id int) bool {
	return strings.HasPrefix(line, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":`, id)) && strings.Contains(line, "context alive")
}

func TestStdioOneShotRunsGetTheirReply(t *testing.T) {
	const runs = 40
	slots := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for range runs {
		c := startChild(t)
		c.gate.Close()
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			io.WriteString(c.in, effectCall(1)+"\n")
			c.in.Close()
			out := c.exit(0)
			if n := c.countEffects(); n != 1 || strings.Count(out, "\n") != 1 || !isReply(out, 1) {
				t.Errorf("%d effects, output %q", n, out)
			}
		})
	}
	wg.Wait()
}

func TestStdioDrainsInTheMiddleOfAnEffect(t *testing.T) {
	oversized := `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"effect","arguments":{"x":"` + strings.Repeat("{\\\"id\\\":9,", 20<<10) + `"}},"id":"big"}`
	tests := []struct {
		name   string
		happen func(*child)
		end    bool // the input has still to be closed
	}{
		{"end of input", func(c *child) { c.in.Close(); c.logged("draining") }, false},
		{"sigterm", func(c *child) { c.cmd.Process.Signal(syscall.SIGTERM); c.logged("draining") }, false},
		{"sigint", func(c *child) { c.cmd.Process.Signal(os.Interrupt); c.logged("draining") }, false},
		{"two signals", func(c *child) {
			c.cmd.Process.Signal(syscall.SIGTERM)
			c.logged("draining")
			c.cmd.Process.Signal(syscall.SIGTERM)
			c.logged("already draining")
		}, false},
		{"end of input, then sigterm", func(c *child) {
			c.in.Close()
			c.logged("draining")
			c.cmd.Process.Signal(syscall.SIGTERM)
			c.logged("already draining")
		}, false},
		{"malformed line", func(c *child) {
			c.send("{\"jsonrpc\":\"2.0\",\"id\":2,\n")
			if line := c.reply(); !strings.Contains(line, `"id":null`) || !strings.Contains(line, "-32700") {
				c.t.Errorf("answered %s", line)
			}
		}, true},
		{"oversized line", func(c *child) {
			c.send(oversized + "\n")
			if line := c.reply(); !strings.Contains(line, `"id":"big"`) || !strings.Contains(line, "limit_exceeded") {
				c.t.Errorf("answered %s", line)
			}
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := startChild(t)
			c.send(effectCall(1) + "\n")
			c.started()
			tt.happen(c)
			c.gate.Close()
			if line := c.reply(); !isReply(line, 1) {
				t.Errorf("reply %s", line)
			}
			if tt.end { // and the session lives on
				c.send(effectCall(3)) // without a newline
				c.in.Close()
				if line := c.reply(); !isReply(line, 3) {
					t.Errorf("reply %s", line)
				}
			}
			rest := c.exit(0)
			want := 1
			if tt.end {
				want = 2
			}
			if n := c.countEffects(); n != want || rest != "" {
				t.Errorf("%d effects, want %d; left on the output: %q", n, want, rest)
			}
		})
	}
}

func TestStdioSurvivesClosedOutput(t *testing.T) {
	c := startChild(t)
	c.send(effectCall(1) + "\n" + effectCall(2) + "\n")
	c.started()
	c.started()
	c.outPipe.Close()
	c.gate.Close()
	c.logged("the output is broken")
	c.exit(0) // although the input is open
	if n := c.countEffects(); n != 2 {
		t.Errorf("%d effects", n)
	}
}

func TestStdioDrainTimesOut(t *testing.T) {
	c := startChild(t, childEnv+"_TIMEOUT=50ms")
	c.send(effectCall(1) + "\n")
	c.started()
	c.in.Close()
	c.logged("calls still running")
	c.exit(1)
	if n := c.countEffects(); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// session is a server in this process.
type session struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
}

func serveStdio(t *testing.T, ctx context.Context, server *mcp.Server) *session {
	t.Helper()
	inReader, in := io.Pipe()
	outReader, out := io.Pipe()
	s := &session{t: t, in: in, out: bufio.NewReader(outReader), done: make(chan error, 1)}
	go func() {
		err := (&Stdio{In: inReader, Out: out}).Run(ctx, server)
		out.Close()
		s.done <- err
	}()
	t.Cleanup(func() {
		in.Close()
		outReader.Close()
	})
	return s
}

func (s *session) send(lines ...string) {
	s.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(s.in, l+"\n"); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *session) read() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("no message: %v", err)
	}
	return line
}

// ended checks that Run returned nil and wrote nothing more.
func (s *session) ended() {
	s.t.Helper()
	if rest, _ := io.ReadAll(s.out); len(rest) > 0 {
		s.t.Errorf("left on the output: %s", rest)
	}
	if err := <-s.done; err != nil {
		s.t.Errorf("Run() = %v", err)
	}
}

func TestStdioDrainsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	started, gate := make(chan bool), make(chan bool)
	s := serveStdio(t, ctx, newEffectServer(func(context.Context) { started <- true; <-gate }))
	s.send(effectCall(1))
	<-started
	cancel()
	close(gate)
	if line := s.read(); !isReply(line, 1) {
		t.Errorf("reply %s", line)
	}
	s.ended()
}

func TestStdioDrainTimeoutCancels(t *testing.T) {
	started, cancelled := make(chan bool), make(chan bool)
	server := newEffectServer(func(ctx context.Context) {
		started <- true
		<-ctx.Done()
		cancelled <- true
	})
	in, inWriter := io.Pipe()
	done := make(chan error)
	go func() {
		done <- (&Stdio{In: in, Out: io.Discard, DrainTimeout: time.Millisecond}).Run(t.Context(), server)
	}()
	io.WriteString(inWriter, effectCall(1)+"\n")
	<-started
	inWriter.Close()
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run() = %v", err)
	}
	<-cancelled
}

// Without containMiddleware, whose servers never send such a reply.
func TestStdioReplyThatCannotBeSent(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "effect", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if len(req.Params.Arguments) > 2 {
				return nil, errors.New("secret")
			}
			return nil, &jsonrpc.Error{Code: 7, Message: "m", Data: json.RawMessage(`{broken`)}
		})
	s := serveStdio(t, t.Context(), server)
	s.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"effect"}}`)
	if line := s.read(); !strings.Contains(line, `"id":3,"error":{"code":-32600`) {
		t.Errorf("before initialize: %s", line)
	}
	s.send(effectCall(1))
	if line := s.read(); strings.TrimSpace(line) != `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"internal error"}}` {
		t.Errorf("broken data: %s", line)
	}
	s.send(strings.Replace(effectCall(2), `"arguments":{}`, `"arguments":{"a":1}`, 1))
	if line := s.read(); strings.TrimSpace(line) != `{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"internal error"}}` {
		t.Errorf("error without a code: %s", line)
	}
	s.in.Close()
	s.ended()
}

func TestStdioIDInUse(t *testing.T) {
	started, gate := make(chan bool, 2), make(chan bool)
	s := serveStdio(t, t.Context(), newEffectServer(func(context.Context) { started <- true; <-gate }))
	s.send(effectCall(1))
	<-started
	// Neither a second call nor a broken one may get an error under the id of
	// the call that is running: its client would take that call for refused.
	for _, again := range []string{effectCall(1), `{"jsonrpc":"2.0","id":1,"method":""}`} {
		s.send(again)
		if line := s.read(); !strings.Contains(line, `"id":null`) || !strings.Contains(line, "-32600") {
			t.Errorf("answered %s", line)
		}
	}
	close(gate)
	if line := s.read(); !isReply(line, 1) {
		t.Errorf("reply %s", line)
	}
	s.send(effectCall(1)) // answered, so the id is free
	if line := s.read(); !isReply(line, 1) {
		t.Errorf("reply %s", line)
	}
	s.in.Close()
	s.ended()
}

func TestStdioSubscriptionDoesNotHoldUpTheDrain(t *testing.T) {
	s := serveStdio(t, t.Context(), newEffectServer(func(context.Context) {}))
	s.send(`{"jsonrpc":"2.0","id":"sub","method":"subscriptions/listen","params":{` + modernMeta + `,"notifications":{"toolsListChanged":true}}}`)
	if line := s.read(); !strings.Contains(line, "acknowledged") {
		t.Fatalf("not subscribed: %s", line)
	}
	s.in.Close()
	s.ended()
}

const legacyInitialize = `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}}`

// newAskingServer has a tool that asks before it has its effect.
func newAskingServer(effect func()) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "ask", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if len(req.Params.InputResponses) == 0 {
				return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": &mcp.ElicitParams{Message: "Sure?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)}}}, nil
			}
			effect()
			return &mcp.CallToolResult{}, nil
		})
	return server
}

func TestStdioQuestionThatCannotBeAnswered(t *testing.T) {
	tests := []struct {
		name string
		then func(*session)
	}{
		{"end of input", func(s *session) { s.in.Close() }},
		{"broken answer", func(s *session) { s.send(`{"jsonrpc":"2.0","id":1,"result":{"action":"accept","action":"accept"}}`) }},
		{"oversized answer", func(s *session) {
			s.send(`{"result":{"action":"accept","content":{"x":"` + strings.Repeat("x", defaultMessageBytes) + `"}},"jsonrpc":"2.0","id":1}`)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serveStdio(t, t.Context(), newAskingServer(func() { t.Error("effect without an answer") }))
			s.send(legacyInitialize)
			s.read()
			s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
				`{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"ask"}}`)
			if line := s.read(); !strings.Contains(line, `"id":1,"method":"elicitation/create"`) {
				t.Fatalf("not asked: %s", line)
			}
			tt.then(s)
			if line := s.read(); !strings.Contains(line, `"id":"c","error":{"code":-32603`) {
				t.Errorf("answered %s", line)
			}
			s.in.Close()
			s.ended()
		})
	}
}

func TestStdioKeepAliveDoesNotEndADrain(t *testing.T) {
	started, gate := make(chan bool), make(chan bool)
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ServerOptions{KeepAlive: 100 * time.Millisecond, KeepAliveFailureThreshold: 2})
	server.AddTool(&mcp.Tool{Name: "effect", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			started <- true
			<-gate
			return &mcp.CallToolResult{}, nil
		})
	outReader, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- (&Stdio{In: strings.NewReader(effectCall(7) + "\n"), Out: out}).Run(t.Context(), server)
		out.Close()
	}()
	<-started
	lines := bufio.NewScanner(outReader)
	for pings := 0; pings < 4; pings++ { // with the client gone nobody answers them
		if !lines.Scan() || !strings.Contains(lines.Text(), `"method":"ping"`) {
			t.Fatalf("not a ping: %q", lines.Text())
		}
	}
	close(gate)
	replies := 0
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"id":7,"result"`) {
			replies++
		}
	}
	if err := <-done; err != nil || replies != 1 {
		t.Errorf("Run() = %v, %d replies", err, replies)
	}
}

func TestStdioOptionsAreChecked(t *testing.T) {
	err := (&Stdio{MaxLine: -1, MaxDepth: -1, DrainTimeout: -1}).Run(t.Context(), nil)
	for _, name := range []string{"MaxLine", "MaxDepth", "DrainTimeout"} {
		if err == nil || !strings.Contains(err.Error(), "guard: Stdio."+name) {
			t.Errorf("Run() = %v, want something about %s", err, name)
		}
	}
}

func TestReadLine(t *testing.T) {
	broken := errors.New("broken")
	in := io.MultiReader(strings.NewReader("a\n\n \r\n"+strings.Repeat("b", 10)+"\n"+strings.Repeat("c", 11)+"\nd"), errorReader{broken})
	r := bufio.NewReaderSize(in, 16)
	var got []string
	for {
		l := readLine(r, 10)
		if l.err != nil {
			if l.err != broken {
				t.Errorf("ended with %v", l.err)
			}
			break
		}
		if l.bad != nil {
			got = append(got, "too long")
		} else {
			got = append(got, strings.TrimSpace(string(l.text)))
		}
	}
	if s := strings.Join(got, " "); s != "a bbbbbbbbbb too long d" {
		t.Errorf("lines: %s", s)
	}
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }

func TestReadLineMemoryIsBounded(t *testing.T) {
	const size = 8 << 20
	in := io.MultiReader(strings.NewReader(`{"id":"`), io.LimitReader(repeatReader('x'), size), strings.NewReader("\"}\n"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if l := readLine(bufio.NewReaderSize(in, 64<<10), 256<<10); l.bad == nil {
		t.Error("passed")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > size/4 {
		t.Errorf("%d bytes allocated for a line of %d", n, size)
	}
}

type repeatReader byte

func (r repeatReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

func TestIDOfAMessageThatIsTooLong(t *testing.T) {
	tests := []struct {
		name, text, id string
		silent         bool
	}{
		{"first", `{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":[1,{"id":8}]}}`, "7", false},
		{"last", `{"method":"x","params":{"id":8,"a":"}\"id\":9,{"},"jsonrpc":"2.0","id": "a\"b" }`, `"a\"b"`, false},
		{"in a string", `{"method":"x","a":",\"id\":1,","params":{}}`, "null", true},
		{"twice", `{"id":1,"method":"x","id":2}`, "null", false},
		{"unusable", `{"id":1.5,"method":"x"}`, "null", false},
		{"null", `{"id":null,"method":"x"}`, "null", false},
		{"very long", `{"method":"x","id":"` + strings.Repeat("x", 5000) + `"}`, "null", false},
		{"notification", `{"method":"x","params":{}}`, "null", true},
		{"answer", `{"id":1,"result":{}}`, "1", true},
		{"batch", `[{"id":1,"method":"x"}]`, "null", false},
		{"garbage", `}}}"id":1,`, "null", false},
		{"cut off", `{"id":3,"method":"x","params":{"a":`, "3", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			scan := new(idScanner)
			for _, b := range []byte(tt.text) {
				scan.write([]byte{b})
			}
			bad := scan.tooLong(10)
			reply := string(bad.encode())
			if !strings.Contains(reply, `"id":`+tt.id+`,`) || bad.silent != tt.silent || bad.reason != mcpreplay.ReasonLimit {
				t.Errorf("answered %s, silent %v", reply, bad.silent)
			}
		})
	}
}
