package evidence

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
)

// Message is one JSON-RPC message as far as a fact depends on it.
type Message struct {
	At     int64
	Sent   bool // by the client
	ID     string
	Method string
	Params params
	Result json.RawMessage
	Error  json.RawMessage
	Text   []byte

	http *exchange // that carried it; nil over stdio
}

type params struct {
	Name           string                     `json:"name"`
	Arguments      json.RawMessage            `json:"arguments"`
	RequestState   *string                    `json:"requestState"`
	InputResponses map[string]json.RawMessage `json:"inputResponses"`
	Meta           map[string]json.RawMessage `json:"_meta"`
	RequestID      json.RawMessage            `json:"requestId"`
	Version        string                     `json:"protocolVersion"`
}

func parseMessage(text []byte) (Message, error) {
	if err := checkForm(text); err != nil {
		return Message{}, err
	}
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params params          `json:"params"`
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return Message{}, err
	}
	return Message{ID: string(m.ID), Method: m.Method, Params: m.Params, Result: m.Result, Error: m.Error, Text: text}, nil
}

// Process is the transcript of one server process, or of one side of an
// intermediary that stands before it.
type Process struct {
	Name     string
	Records  []Record
	Messages []Message   // in the order of time
	Cut      []Record    // lines without their end
	Garbled  []Record    // lines sent that are no message
	Torn     []*exchange // requests whose body did not come whole

	behind *Process // an intermediary; this is the server's own
}

// exchange is one HTTP request and what came back for it.
type exchange struct {
	at          int64
	method      string
	header      http.Header
	status      int // 0: not even a status line came
	contentType string
	complete    bool // the whole body came
	conn        int
}

// readProcess finds the messages in a transcript.
func readProcess(name string, recs []Record) (*Process, error) {
	p := &Process{Name: name, Records: recs}
	conns := map[int][]Record{}
	for _, r := range recs {
		if r.Dir != "" && r.Conn > 0 {
			conns[r.Conn] = append(conns[r.Conn], r)
		}
	}
	for i, r := range recs {
		if r.Dir == "" || r.Conn > 0 {
			if of := conns[r.Conn]; of != nil && r.Dir != "" {
				delete(conns, r.Conn)
				if err := p.connection(r.Conn, of); err != nil {
					return nil, fmt.Errorf("line %d: connection %d: %w", i+1, r.Conn, err)
				}
			}
			continue
		}
		if r.Cut {
			p.Cut = append(p.Cut, r)
			continue
		}
		m, err := parseMessage(r.raw())
		if err != nil && r.Dir == Sent { // a client may be wrong: the server's answer is what counts
			p.Garbled = append(p.Garbled, r)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		m.At, m.Sent = r.At, r.Dir == Sent
		p.Messages = append(p.Messages, m)
	}
	sortMessages(p.Messages)
	return p, nil
}

// stream is one direction of a connection, with the time of each of its bytes.
type stream struct {
	bytes bytes.Buffer
	ends  []int
	at    []int64
}

func (s *stream) add(r Record) {
	s.bytes.Write(r.raw())
	s.ends, s.at = append(s.ends, s.bytes.Len()), append(s.at, r.At)
}

// when is the time of the byte at offset n.
func (s *stream) when(n int) int64 {
	if len(s.at) == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(s.ends, n+1)
	return s.at[min(i, len(s.at)-1)]
}

// counted is a reader that knows how far it has come.
type counted struct {
	r io.Reader
	n int
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}

// connection reads the exchanges on one HTTP connection: requests and responses
// in their order.
func (p *Process) connection(conn int, recs []Record) error {
	var sent, received stream
	for _, r := range recs {
		if r.Dir == Sent {
			sent.add(r)
		} else {
			received.add(r)
		}
	}
	out := &counted{r: bytes.NewReader(sent.bytes.Bytes())}
	in := &counted{r: bytes.NewReader(received.bytes.Bytes())}
	requests, responses := bufio.NewReader(out), bufio.NewReader(in)
	for {
		at := sent.when(out.n - requests.Buffered())
		req, err := http.ReadRequest(requests)
		if err == io.EOF {
			return rest(responses)
		}
		if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		x := &exchange{at: at, method: req.Method, header: req.Header, conn: conn}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			p.Torn = append(p.Torn, x)
			return rest(responses)
		}
		if len(body) > 0 {
			m, err := parseMessage(body)
			if err != nil {
				return fmt.Errorf("read the message of a request: %w", err)
			}
			m.At, m.Sent, m.http = at, true, x
			p.Messages = append(p.Messages, m)
		}
		if err := p.response(x, req, responses, in, &received); err != nil {
			return err
		}
	}
}

// rest is an error if there is more than was asked for.
func rest(responses *bufio.Reader) error {
	if _, err := responses.Peek(1); err == nil {
		return errors.New("there are bytes after the last response")
	}
	return nil
}

func (p *Process) response(x *exchange, req *http.Request, r *bufio.Reader, in *counted, received *stream) error {
	at := in.n - r.Buffered()
	resp, err := http.ReadResponse(r, req)
	if err != nil { // nothing came, or less than a head
		if bytes.Contains(received.bytes.Bytes()[at:], []byte("\r\n\r\n")) {
			return fmt.Errorf("read a response: %w", err)
		}
		return nil
	}
	x.status = resp.StatusCode
	x.contentType, _, _ = mime.ParseMediaType(resp.Header.Get("Content-Type"))
	body, err := io.ReadAll(resp.Body)
	x.complete = err == nil
	when := received.when(at)
	var texts [][]byte
	switch {
	case x.contentType == "text/event-stream":
		texts = eventData(body)
	case x.contentType == "application/json" && x.complete && len(body) > 0:
		texts = [][]byte{body}
	}
	for _, text := range texts {
		m, err := parseMessage(text)
		if err != nil {
			return fmt.Errorf("read a reply: %w", err)
		}
		m.At, m.http = when, x
		p.Messages = append(p.Messages, m)
	}
	return nil
}

// eventData are the data of the whole events of a stream.
func eventData(body []byte) (data [][]byte) {
	events := strings.Split(strings.ReplaceAll(string(body), "\r\n", "\n"), "\n\n")
	for _, event := range events[:len(events)-1] { // what follows the last blank line is cut off
		var text []string
		for line := range strings.SplitSeq(event, "\n") {
			if value, ok := strings.CutPrefix(line, "data:"); ok {
				text = append(text, strings.TrimPrefix(value, " "))
			}
		}
		if joined := strings.Join(text, "\n"); joined != "" {
			data = append(data, []byte(joined))
		}
	}
	return data
}

// Call is one request of a client, and what came back.
type Call struct {
	Message
	Process *Process
	Reply   *Message // nil if no whole reply came
}

// Calls are the requests of a process, in the order they were sent. An error names
// a message that cannot have been sent by a client and a server that talk to each
// other.
//
// Over HTTP a reply belongs to a request by the exchange that carries it. The
// same id may pass an intermediary more than once: it sends twice, and lets a
// client begin a new session.
func (p *Process) Calls() (calls []*Call, faults []error) {
	type slot struct {
		http *exchange
		id   string
	}
	open := map[slot]*Call{}
	used := map[string]bool{}
	asked := map[string]bool{} // by the server
	for _, m := range p.Messages {
		switch {
		case m.Method != "" && m.ID == "": // a notification
		case m.Method != "" && m.Sent:
			if used[m.ID] && p.behind == nil {
				faults = append(faults, fmt.Errorf("the request id %s is used twice", m.ID))
			}
			used[m.ID] = true
			c := &Call{Message: m, Process: p}
			open[slot{m.http, m.ID}], calls = c, append(calls, c)
		case m.Method != "":
			if asked[m.ID] {
				faults = append(faults, fmt.Errorf("the server's request id %s is used twice", m.ID))
			}
			asked[m.ID] = true
		case m.Sent:
			if !asked[m.ID] {
				faults = append(faults, fmt.Errorf("the client answers %s, which the server did not ask", m.ID))
			}
		default:
			c := open[slot{m.http, m.ID}]
			switch {
			case m.ID == "null" || m.ID == "": // an error about what could not be read
			case c == nil:
				faults = append(faults, fmt.Errorf("there is a reply to %s before any request of that id", m.ID))
			case c.Reply != nil:
				faults = append(faults, fmt.Errorf("there are two replies to %s", m.ID))
			default:
				reply := m
				c.Reply = &reply
			}
		}
	}
	return calls, faults
}

// Operation is the id that the call names.
func (c *Call) Operation() string {
	var id string
	if json.Unmarshal(c.Params.Meta["mcpreplay/operation-id"], &id) == nil && id != "" {
		return id
	}
	var args struct {
		OperationID string `json:"operation_id"`
	}
	if json.Unmarshal(c.Params.Arguments, &args) == nil {
		return args.OperationID
	}
	return ""
}

// version is the protocol version that the call is sent under, or "".
func (c *Call) version() string {
	var v string
	if c.Method == "initialize" {
		return c.Params.Version
	}
	if json.Unmarshal(c.Params.Meta["io.modelcontextprotocol/protocolVersion"], &v) == nil {
		return v
	}
	return ""
}

// ReadCalls reads the requests in one transcript, in the order they were sent.
func ReadCalls(path string) ([]*Call, error) {
	p, err := readFile(dirFiles(filepath.Dir(path)), filepath.Base(path))
	if err != nil {
		return nil, err
	}
	calls, faults := p.Calls()
	return calls, errors.Join(faults...)
}
