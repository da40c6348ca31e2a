package lab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/issues"
)

// meta is what every request of the modern protocol carries.
func (s *server) meta() map[string]any {
	return map[string]any{
		"io.modelcontextprotocol/protocolVersion":    evidence.ProtocolModern,
		"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "lab", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{"elicitation": map[string]any{}},
	}
}

// call is one tools/call.
type call struct {
	id        int
	tool      string // the usual one if empty
	operation string // the cell's if empty; "-" for none
	title     string // that of the operation if empty
	mode      string
	state     string // request state; "" for none
	body      string // answer to the question; "" for none
	answers   string // the same as raw JSON
	by        string // principal over HTTP: alice if empty; see authorization
}

// answer is what came back: nothing at all if raw is nil.
type answer struct {
	raw   json.RawMessage
	state string // request state in it
}

func (s *server) params(c call) (string, map[string]any) {
	operation := c.operation
	if operation == "" {
		operation = s.p.op
	}
	args := map[string]any{}
	if operation != "-" {
		args["operation_id"] = operation
	}
	params := map[string]any{"name": c.tool, "arguments": args}
	if c.tool == "" {
		params["name"] = issues.Tool
		args["title"] = c.title
		if c.title == "" {
			args["title"] = "title of " + operation
		}
		if c.mode != "" {
			args["mode"] = c.mode
		}
	}
	if c.state != "" {
		params["requestState"] = c.state
	}
	switch {
	case c.answers != "":
		params["inputResponses"] = json.RawMessage(c.answers)
	case c.body != "":
		params["inputResponses"] = map[string]any{"body": accept(c.body)}
	}
	if s.p.protocol == evidence.ProtocolModern {
		params["_meta"] = s.meta()
	}
	return "tools/call", params
}

func accept(body string) map[string]any {
	return map[string]any{"action": "accept", "content": map[string]any{"body": body}}
}

// send makes a call and waits for what comes back.
func (s *server) send(c call) answer {
	method, params := s.params(c)
	return s.request(fmt.Sprint(c.id), method, params, c.by)
}

// begin makes a call; the function it returns waits for what comes back.
func (s *server) begin(c call) (wait func() answer) {
	method, params := s.params(c)
	return s.beginRequest(fmt.Sprint(c.id), method, params, c.by)
}

func (s *server) request(id, method string, params map[string]any, by string) answer {
	return s.beginRequest(id, method, params, by)()
}

func (s *server) beginRequest(id, method string, params map[string]any, by string) func() answer {
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(id), "method": method, "params": params})
	s.p.must(err)
	came := make(chan json.RawMessage, 1)
	if s.p.transport == overHTTP {
		go func() { came <- s.post(id, method, params, by, text) }()
	} else {
		s.mu.Lock()
		s.waiting[id] = came
		s.mu.Unlock()
		s.write(text)
	}
	return func() answer {
		select {
		case raw := <-came:
			return readAnswer(raw)
		case <-s.silence(came):
			select {
			case raw := <-came:
				return readAnswer(raw)
			default:
				return answer{}
			}
		case <-time.After(replyLimit):
			s.p.fail("%s: no reply to %s in time: %s", s.name, id, s.said)
			return answer{}
		}
	}
}

// silence is closed when nothing more can come over stdio. Over HTTP every request
// has an end of its own.
func (s *server) silence(chan json.RawMessage) <-chan struct{} {
	if s.p.transport == overHTTP {
		return nil
	}
	return s.gone
}

func readAnswer(raw json.RawMessage) answer {
	a := answer{raw: raw}
	var r struct {
		Result struct {
			RequestState string
		}
	}
	if json.Unmarshal(raw, &r) == nil {
		a.state = r.Result.RequestState
	}
	return a
}

func (s *server) notify(method string, params map[string]any) {
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": method, "params": params})
	s.p.must(err)
	s.write(text)
}

func (s *server) write(text []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.stdin.Write(append(text, '\n')) // that it is gone shows in what comes back
}

// read hands out what the server says over stdio. Over HTTP it says nothing there.
func (s *server) read() {
	defer close(s.gone)
	r := bufio.NewReader(s.proc.stdout)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(line, &m) != nil {
			continue // the judge says so
		}
		s.mu.Lock()
		came := s.waiting[string(m.ID)]
		if m.Method == "" {
			delete(s.waiting, string(m.ID))
		}
		asked := s.onAsk
		if m.Method == "" && string(m.ID) == s.dieAt {
			s.proc.cmd.Process.Kill() // before anybody does anything with the reply
		}
		s.mu.Unlock()
		switch {
		case m.Method != "" && m.ID != nil && asked != nil:
			asked(m.ID)
		case m.Method == "" && came != nil:
			came <- bytes.TrimSpace(line)
		}
	}
}

// post sends one request over a connection of its own and reads to its end. What
// is no whole reply is nil.
func (s *server) post(id, method string, params map[string]any, by string, body []byte) json.RawMessage {
	conn, n, err := s.dial()
	if err != nil {
		return nil
	}
	if !s.keep {
		defer conn.Close()
	}
	conn.SetDeadline(time.Now().Add(replyLimit - time.Second))
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n", conn.RemoteAddr())
	if !s.keep {
		b.WriteString("Connection: close\r\n")
	}
	fmt.Fprintf(&b, "MCP-Protocol-Version: %s\r\n", s.p.protocol)
	if s.p.protocol == evidence.ProtocolModern {
		fmt.Fprintf(&b, "Mcp-Method: %s\r\n", method)
		if name, ok := params["name"].(string); ok {
			fmt.Fprintf(&b, "Mcp-Name: %s\r\n", name)
		}
	}
	for _, value := range authorization(by) {
		fmt.Fprintf(&b, "Authorization: %s\r\n", value)
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	s.wire(evidence.Sent, n, b.Bytes())
	if _, err := conn.Write(b.Bytes()); err != nil {
		return nil
	}
	raw := s.response(conn) // a reset ends it as well
	if len(raw) > 0 {
		s.wire(evidence.Received, n, raw)
	}
	return lastMessage(raw)
}

// dial opens a connection, or returns the one that is kept.
func (s *server) dial() (net.Conn, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep && s.conn != nil {
		return s.conn, s.conns, nil
	}
	conn, err := net.DialTimeout("tcp", s.addr, replyLimit)
	if err != nil {
		return nil, 0, err
	}
	s.conns++
	s.conn = conn
	return conn, s.conns, nil
}

// response reads to the end of the connection or, where it is kept, of the
// response.
func (s *server) response(conn net.Conn) []byte {
	if !s.keep {
		raw, _ := io.ReadAll(conn)
		return raw
	}
	var raw bytes.Buffer
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &raw)), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if err != nil || resp.Close {
		s.giveUp()
	}
	return raw.Bytes()
}

// giveUp closes the last connection: the client waits no longer.
func (s *server) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// authorization is the header that says on whose behalf a request is: that of
// alice, of nobody for "-", several for "alice+bob", another scheme for
// "Basic:alice".
func authorization(by string) (values []string) {
	switch by {
	case "-":
		return nil
	case "":
		by = evidence.Principal
	}
	for who := range strings.SplitSeq(by, "+") {
		scheme, name, ok := strings.Cut(who, ":")
		if !ok {
			scheme, name = "Bearer", who
		}
		values = append(values, scheme+" "+evidence.Token(name))
	}
	return values
}

func (s *server) wire(dir string, conn int, raw []byte) {
	if !s.silent {
		s.rec.Wire(dir, conn, raw)
	}
}

// lastMessage is the message that a response carries, or nil.
func lastMessage(raw []byte) json.RawMessage {
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(body) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			body = data
		}
	}
	if body = bytes.TrimSpace(body); !json.Valid(body) {
		return nil
	}
	return body
}
