package lab

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Line is one message of a transcript.
type Line struct {
	Sent bool // by the client
	Cut  bool // it lacks its end; nothing more is known of it
	Message
}

// Message is what the lab reads of a JSON-RPC message.
type Message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name           string          `json:"name"`
		RequestState   string          `json:"requestState"`
		InputResponses json.RawMessage `json:"inputResponses"`
	} `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// Tool is the name of the tool a line calls, or "".
func (l Line) Tool() string {
	if l.Sent && l.Method == "tools/call" {
		return l.Params.Name
	}
	return ""
}

// Continuation reports whether a line answers a question.
func (l Line) Continuation() bool { return l.Tool() != "" && l.Params.InputResponses != nil }

// ReadTranscript reads the messages of one server process in their order.
func ReadTranscript(path string) ([]Line, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []Line
	scan := bufio.NewScanner(file)
	scan.Buffer(nil, 16<<20)
	for n := 1; scan.Scan(); n++ {
		prefix, text, _ := strings.Cut(scan.Text(), " ")
		line := Line{Sent: strings.HasPrefix(prefix, ">"), Cut: strings.HasSuffix(prefix, "~")}
		switch prefix {
		case ">", "<":
			if err := json.Unmarshal([]byte(text), &line.Message); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n, err)
			}
		case ">~", "<~":
		default:
			return nil, fmt.Errorf("%s:%d: neither sent nor received", path, n)
		}
		lines = append(lines, line)
	}
	return lines, scan.Err()
}

// Reply finds what the server answered to a line, or nil.
func Reply(lines []Line, to Line) *Line {
	for i := range lines {
		if !lines[i].Sent && lines[i].Method == "" && string(lines[i].ID) == string(to.ID) {
			return &lines[i]
		}
	}
	return nil
}
