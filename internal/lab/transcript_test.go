package lab_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcpreplay/internal/lab"
)

// What a server wrote before it died is in the transcript to the last byte, though
// the line lacks its end.
func TestTranscriptKeepsACutLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.log")
	var stderr bytes.Buffer
	p, err := lab.Start(path, &stderr, "/bin/sh", "-c", `printf '{"jsonrpc":"2.0","method":"notifications/x"}\n{"jsonrpc":"2.0","id":1,"resu'; exit 70`)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := p.Connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = conn.Read(context.Background())
	}
	if code, err := p.Stop(10 * time.Second); err != nil || code != 70 {
		t.Fatalf("Stop() = %d, %v", code, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(string(text), "<~ {\"jsonrpc\":\"2.0\",\"id\":1,\"resu\n") {
		t.Errorf("the transcript holds %q, %v", text, err)
	}
	lines, err := lab.ReadTranscript(path)
	if err != nil || len(lines) != 2 || lines[0].Cut || !lines[1].Cut || lines[1].Sent {
		t.Errorf("read back: %+v, %v", lines, err)
	}
	if reply := lab.Reply(lines, lab.Line{Message: lab.Message{ID: []byte("1")}}); reply != nil {
		t.Errorf("a cut line passes for the reply: %+v", reply)
	}
}

// A server that does not end is killed and told as that, not as an exit code.
func TestAServerThatDoesNotEndIsAnError(t *testing.T) {
	p, err := lab.Start(filepath.Join(t.TempDir(), "t.log"), new(bytes.Buffer), "/bin/sh", "-c", "exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := p.Connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	go conn.Read(context.Background())
	if code, err := p.Stop(50 * time.Millisecond); err == nil {
		t.Errorf("Stop() = %d, want an error", code)
	}
}
