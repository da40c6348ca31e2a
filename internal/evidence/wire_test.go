package evidence_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcpreplay/internal/evidence"
)

// piece is what one side wrote at once.
type piece struct {
	dir  string
	conn int
	text string
}

func record(t *testing.T, pieces ...piece) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.jsonl")
	rec, err := evidence.NewRecorder(path, evidence.NewClock())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		if p.conn == 0 {
			rec.Line(p.dir, []byte(p.text), false)
			continue
		}
		rec.Wire(p.dir, p.conn, []byte(p.text))
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func post(id int) string {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t"}}`, id)
	return fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func replyTo(id int) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, id) }

func jsonResponse(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

const stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

// What came back for a request is found in the bytes, however they were framed and
// in whatever pieces they came; and what did not come whole is no reply.
func TestRepliesAreFoundInTheBytes(t *testing.T) {
	const sent, received = evidence.Sent, evidence.Received
	half := len(jsonResponse(replyTo(1))) - 5
	tests := []struct {
		name   string
		pieces []piece
		want   string // of each call: its id, and + if it has a reply
	}{
		{"over stdio", []piece{{sent, 0, `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`}, {received, 0, replyTo(1)}}, "1+"},
		{"out of order", []piece{{sent, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}, {sent, 0, `{"jsonrpc":"2.0","id":2,"method":"a"}`}, {received, 0, replyTo(2)}, {received, 0, replyTo(1)}}, "1+ 2+"},
		{"none", []piece{{sent, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}}, "1"},
		{"JSON", []piece{{sent, 1, post(1)}, {received, 1, jsonResponse(replyTo(1))}}, "1+"},
		{"in pieces", []piece{{sent, 1, post(1)[:20]}, {sent, 1, post(1)[20:]}, {received, 1, jsonResponse(replyTo(1))[:half]}, {received, 1, jsonResponse(replyTo(1))[half:]}}, "1+"},
		{"cut off", []piece{{sent, 1, post(1)}, {received, 1, jsonResponse(replyTo(1))[:half]}}, "1"},
		{"half a head", []piece{{sent, 1, post(1)}, {received, 1, "HTTP/1.1 200 OK\r\nContent-"}}, "1"},
		{"nothing at all", []piece{{sent, 1, post(1)}}, "1"},
		{"a page", []piece{{sent, 1, post(1)}, {received, 1, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"}}, "1"},
		{"two on one connection", []piece{{sent, 1, post(1)}, {received, 1, jsonResponse(replyTo(1))}, {sent, 1, post(2)}, {received, 1, jsonResponse(replyTo(2))}}, "1+ 2+"},
		{"the second lost", []piece{{sent, 1, post(1)}, {received, 1, jsonResponse(replyTo(1))}, {sent, 1, post(2)}}, "1+ 2"},
		{"two connections", []piece{{sent, 1, post(1)}, {sent, 2, post(2)}, {received, 2, jsonResponse(replyTo(2))}, {received, 1, jsonResponse(replyTo(1))}}, "1+ 2+"},
		{"a stream", []piece{{sent, 1, post(1)}, {received, 1, stream + chunk("event: message\r\ndata: "+replyTo(1)+"\r\n\r\n") + "0\r\n\r\n"}}, "1+"},
		{"a stream that stays open", []piece{{sent, 1, post(1)}, {received, 1, stream + chunk(": hello\n\ndata: "+replyTo(1)+"\n\n")}}, "1+"},
		{"a stream cut in the event", []piece{{sent, 1, post(1)}, {received, 1, stream + chunk("data: "+replyTo(1)+"\n")}}, "1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			calls, err := evidence.ReadCalls(record(t, tt.pieces...))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range calls {
				text := c.ID
				if c.Reply != nil {
					text += "+"
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("calls %v, want %s", got, tt.want)
			}
		})
	}
}

// No client and server that talk to each other leave such a transcript.
func TestImpossibleTranscriptsAreFaults(t *testing.T) {
	const sent, received = evidence.Sent, evidence.Received
	tests := []struct {
		name   string
		pieces []piece
		want   string
	}{
		{"a reply before its request", []piece{{received, 0, replyTo(1)}, {sent, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}}, "before any request"},
		{"two replies", []piece{{sent, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}, {received, 0, replyTo(1)}, {received, 0, replyTo(1)}}, "two replies"},
		{"an id used twice", []piece{{sent, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}, {sent, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}}, "used twice"},
		{"an answer to nothing", []piece{{sent, 0, replyTo(7)}}, "did not ask"},
		{"a question asked twice", []piece{{received, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}, {received, 0, `{"jsonrpc":"2.0","id":1,"method":"a"}`}}, "used twice"},
		{"more than was asked for", []piece{{sent, 1, post(1)}, {received, 1, jsonResponse(replyTo(1)) + jsonResponse(replyTo(2))}}, "after the last response"},
		{"a head that is none", []piece{{sent, 1, post(1)}, {received, 1, "HTTP 200 OK\r\n\r\n" + replyTo(1)}}, "read a response"},
		{"the reply to another request", []piece{{sent, 1, post(1)}, {sent, 2, post(2)}, {received, 1, jsonResponse(replyTo(2))}}, "a reply to 2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := evidence.ReadCalls(record(t, tt.pieces...)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadCalls() = %v, want %q", err, tt.want)
			}
		})
	}
}

// A transcript says one thing only, in one way only.
func TestTranscriptsAreReadStrictly(t *testing.T) {
	for name, text := range map[string]string{
		"no end":           `{"at":1,"dir":"<","raw":"{}"}`,
		"no JSON":          "hello\n",
		"a member more":    `{"at":1,"dir":"<","raw":"{}","why":1}` + "\n",
		"another spelling": `{"at":1, "dir":"<","raw":"{}"}` + "\n",
		"a member twice":   `{"at":1,"at":2,"dir":"<","raw":"{}"}` + "\n",
		"no direction":     `{"at":1,"dir":"?","raw":"{}"}` + "\n",
		"neither":          `{"at":1}` + "\n",
		"both":             `{"at":1,"dir":"<","raw":"{}","event":{"kind":"exit"}}` + "\n",
		"backwards":        `{"at":2,"dir":"<","raw":"{}"}` + "\n" + `{"at":1,"dir":"<","raw":"{}"}` + "\n",
	} {
		if recs, err := evidence.ReadTranscript(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read as %+v", name, recs)
		}
	}
	good := `{"at":1,"dir":"<","raw":"<&>"}` + "\n" + `{"at":1,"event":{"kind":"exit","code":70}}` + "\n"
	if recs, err := evidence.ReadTranscript(strings.NewReader(good)); err != nil || len(recs) != 2 {
		t.Errorf("%+v, %v", recs, err)
	}
}

// Bytes that are no text are kept as they were.
func TestRecordsKeepBytes(t *testing.T) {
	raw := "\xff\x00{"
	file, err := os.Open(record(t, piece{evidence.Received, 1, raw}))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	recs, err := evidence.ReadTranscript(file)
	if err != nil || len(recs) != 1 || string(recs[0].Bytes) != raw || recs[0].Raw != "" {
		t.Errorf("%+v, %v", recs, err)
	}
}

func TestCompareShowsWhatIsMissingAndWhatIsMore(t *testing.T) {
	got := evidence.Compare(evidence.Facts{"a", "b", "c"}, evidence.Facts{"a", "x", "c", "d"})
	if text := strings.Join(got, "|"); text != "  a|- b|+ x|  c|+ d" {
		t.Error(text)
	}
}
