package lab_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"
)

// What a server wrote before it died is in the transcript to the last byte, though
// the line lacks its end.
func TestTranscriptKeepsACutLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	rec := newRecorder(t, path)
	p := lab.NewProcess(rec, new(bytes.Buffer), "", "/bin/sh", "-c", `printf '{"jsonrpc":"2.0","method":"notifications/x"}\n{"jsonrpc":"2.0","id":1,"resu'; exit 70`)
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
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	recs, err := evidence.ReadTranscript(file)
	if err != nil {
		t.Fatal(err)
	}
	recs = slices.DeleteFunc(recs, func(r evidence.Record) bool { return r.Event != nil })
	if len(recs) != 2 || recs[0].Cut || !recs[1].Cut || recs[1].Dir != evidence.Received || recs[1].Raw != `{"jsonrpc":"2.0","id":1,"resu` {
		t.Errorf("the transcript holds %+v", recs)
	}
	if calls, err := evidence.ReadCalls(path); err != nil || len(calls) != 0 {
		t.Errorf("the calls are %+v, %v", calls, err)
	}
}

func newRecorder(t *testing.T, path string) *evidence.Recorder {
	t.Helper()
	rec, err := evidence.NewRecorder(path, evidence.NewClock())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.Close() })
	return rec
}

// A server that does not end is killed and told as that, not as an exit code.
func TestAServerThatDoesNotEndIsAnError(t *testing.T) {
	p := lab.NewProcess(newRecorder(t, filepath.Join(t.TempDir(), "t.jsonl")), new(bytes.Buffer), "", "/bin/sh", "-c", "exec sleep 600")
	conn, err := p.Connect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	go conn.Read(context.Background())
	if code, err := p.Stop(50 * time.Millisecond); err == nil {
		t.Errorf("Stop() = %d, want an error", code)
	}
}
