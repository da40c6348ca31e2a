package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// maxHead bounds the first line and the header of a message.
const maxHead = 128 << 10

// request is a request as it was read: head and body are what will be forwarded.
type request struct {
	*http.Request
	head []byte // with the empty line
	body []byte
}

func readHead(in *bufio.Reader) (*request, error) {
	head, err := peekHead(in)
	if err != nil {
		return nil, err
	}
	r, err := http.ReadRequest(in)
	if err != nil {
		return nil, err
	}
	return &request{Request: r, head: head}, nil
}

func (r *request) readBody() (err error) {
	r.body, err = io.ReadAll(r.Body)
	if len(r.TransferEncoding) > 0 {
		r.head = withLength(r.head, len(r.body))
	}
	return err
}

// peekHead is a copy of the next head, which stays unread.
func peekHead(in *bufio.Reader) ([]byte, error) {
	for n := 1; ; n = in.Buffered() + 1 {
		if _, err := in.Peek(n); err != nil {
			return nil, err
		}
		all, _ := in.Peek(in.Buffered())
		if end := bytes.Index(all, []byte("\r\n\r\n")); end >= 0 {
			return slices.Clone(all[:end+4]), nil
		}
	}
}

// withLength is head with Content-Length n, and no other framing. The other lines
// stay as they are.
func withLength(head []byte, n int) []byte {
	length := fmt.Appendf(nil, "Content-Length: %d\r\n", n)
	var out []byte
	for line := range bytes.Lines(bytes.TrimSuffix(head, []byte("\r\n"))) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		switch http.CanonicalHeaderKey(string(name)) {
		case "Content-Length", "Transfer-Encoding", "Trailer":
			out, length = append(out, length...), nil
		default:
			out = append(out, line...)
		}
	}
	return slices.Concat(out, length, []byte("\r\n"))
}

// reply is a reply that was read to its end.
type reply struct {
	raw   bytes.Buffer // everything, interim replies included
	head  []byte
	body  []byte
	close bool // the server wants no more requests on the connection
}

// roundTrip sends r, once, and reads the reply to its end. to gets each piece of
// it as it comes; nil is nobody.
func (w *wire) roundTrip(r *request, to io.Writer) (*reply, error) {
	if to == nil {
		to = io.Discard
	}
	// A server may answer without reading all: the reply counts, not the error.
	_, _ = w.Write(slices.Concat(r.head, r.body))
	a := new(reply)
	in := bufio.NewReaderSize(io.TeeReader(w, io.MultiWriter(&a.raw, to)), maxHead)
	for {
		head, err := peekHead(in)
		if err != nil {
			return nil, err
		}
		resp, err := http.ReadResponse(in, r.Request)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode < 200 { // interim
			continue
		}
		a.head, a.close = head, resp.Close
		a.body, err = io.ReadAll(resp.Body)
		return a, err
	}
}

// withoutMember is text without the member of that path, every occurrence of it.
// All other bytes are as they were. Text that is no JSON object stays as it is.
func withoutMember(text []byte, path ...string) []byte {
	if !json.Valid(text) || bytes.TrimLeft(text, " \t\r\n")[0] != '{' {
		return text
	}
	d := json.NewDecoder(bytes.NewReader(text))
	_, _ = d.Token() // no error is possible here: text is valid
	out := slices.Clone(text[:d.InputOffset()])
	for first := true; ; {
		before := d.InputOffset()
		if !d.More() {
			return append(out, text[before:]...)
		}
		name, _ := d.Token()
		var value json.RawMessage
		_ = d.Decode(&value)
		if name == path[0] && len(path) == 1 {
			continue
		}
		member := text[before : d.InputOffset()-int64(len(value))]
		if first { // the comma belonged to one that was left out
			if bare := bytes.TrimLeft(member, " \t\r\n"); bytes.HasPrefix(bare, []byte(",")) {
				member = bare[1:]
			}
			first = false
		}
		if name == path[0] {
			value = withoutMember(value, path[1:]...)
		}
		out = slices.Concat(out, member, value)
	}
}
