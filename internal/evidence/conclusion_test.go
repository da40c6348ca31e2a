package evidence_test

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mcpreplay/internal/evidence"
)

// A client that concludes anything but what it was sent is found out, whether it
// guesses or throws away what it could know.
func TestConclusionsAreHeldAgainstTheBytes(t *testing.T) {
	const (
		result  = `{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","content":[]}}`
		refusal = `{"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"operation_conflict","data":{"reason":"operation_conflict","operationId":"op","retryable":false}}}`
		failure = `{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"no"}}`
	)
	const unknown, verdict, refused = "unknown/unknown/reconcile", "verdict/unknown/return_stored_result", "verdict/unknown/stop"
	tests := []struct {
		name, status, media, body string
		want                      string
	}{
		{"nothing", "", "", "", unknown},
		{"a result", "200 OK", "application/json", result, verdict},
		{"a refusal", "400 Bad Request", "application/json", refusal, refused},
		{"an error that says nothing", "200 OK", "application/json", failure, unknown},
		{"a refusal in a 502", "502 Bad Gateway", "application/json", refusal, unknown},
		{"a result in a 504", "504 Gateway Timeout", "application/json", result, unknown},
		{"a refusal in a 429", "429 Too Many Requests", "application/json", refusal, unknown},
		{"a page", "200 OK", "text/html", "<p>hello", unknown},
		{"another id", "200 OK", "application/json", strings.Replace(result, `"id":2`, `"id":3`, 1), unknown},
	}
	for _, tt := range tests {
		for _, said := range []string{unknown, verdict, refused, "verdict/not_applied/stop", "verdict/applied/return_stored_result", "not_sent/unknown/stop", "observed/applied/return_stored_result"} {
			facts := concluded(t, tt.status, tt.media, tt.body, said)
			found := slices.ContainsFunc(facts, func(line string) bool { return strings.HasPrefix(line, "! guessed_outcome ") })
			if found != (said != tt.want) {
				t.Errorf("%s, said to be %s: guessed is %v, wanted is %s\n%s", tt.name, said, found, tt.want, strings.Join(facts, "\n"))
			}
		}
	}
}

// concluded is the facts of one call over HTTP, and of what its client says of it.
func concluded(t *testing.T, status, media, body, said string) evidence.Facts {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "attempt")
	a, err := evidence.Create(dir, evidence.NewSpec([]evidence.CellSpec{{ID: "c"}}), evidence.Provenance{})
	if err != nil {
		t.Fatal(err)
	}
	cell, err := a.Cell("c")
	if err != nil {
		t.Fatal(err)
	}
	clock := evidence.NewClock()
	record := func(name string) *evidence.Recorder {
		rec, err := evidence.NewRecorder(filepath.Join(cell, name+evidence.TranscriptExtension), clock)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	client, lab := record("client"), record(evidence.Acts)
	const request = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"create","arguments":{"operation_id":"op"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	client.Wire(evidence.Sent, 1, message("POST /mcp HTTP/1.1\r\nHost: h\r\n", "application/json", request))
	if status != "" {
		client.Wire(evidence.Received, 1, message("HTTP/1.1 "+status+"\r\n", media, body))
	}
	parts := strings.Split(said, "/")
	lab.Event(evidence.Event{Kind: evidence.EventOutcome, Operation: "op", Conclusion: &evidence.Conclusion{
		Client: "client", From: evidence.FromCall, Kind: parts[0], Effect: parts[1], Action: parts[2],
	}})
	for _, rec := range []*evidence.Recorder{client, lab} {
		if err := rec.Close(); err != nil {
			t.Fatal(err)
		}
	}
	facts, err := evidence.Derive(context.Background(), a.Files("c"))
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

func message(head, media, body string) []byte {
	return []byte(head + "Content-Type: " + media + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}
