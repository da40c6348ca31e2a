package evidence

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a file has after the part that is read would be hidden from the judge.
func TestATranscriptIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	line := func(size int) []byte {
		const frame = `{"at":0,"dir":"<","raw":""}` + "\n"
		return []byte(strings.Replace(frame, `""`, `"`+strings.Repeat("x", size-len(frame))+`"`, 1))
	}
	hidden := []byte(`{"at":0,"dir":">","raw":"hidden"}` + "\n")
	if recs, err := ReadTranscript(bytes.NewReader(append(line(maxText), hidden...))); err == nil {
		t.Errorf("%d records were read, and what follows was not", len(recs))
	}
	if _, err := ReadTranscript(bytes.NewReader(line(maxText))); err != nil {
		t.Errorf("a transcript of the greatest size: %v", err)
	}
	if _, err := ReadTranscript(strings.NewReader(strings.Repeat(string(hidden), maxRecords+1))); err == nil {
		t.Error("there is no end to the records")
	}
}

// As many connections as a transcript can have are read in their number's time.
func TestManyConnectionsAreReadInTime(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	for i := range maxRecords {
		fmt.Fprintf(&text, `{"at":0,"dir":">","conn":%d,"raw":"GET / HTTP/1.1\r\nHost: x\r\n\r\n"}`+"\n", i+1)
	}
	start := time.Now()
	recs, err := ReadTranscript(&text)
	if err == nil {
		_, err = readProcess("server", recs)
	}
	if took := time.Since(start); err != nil || took > 20*time.Second {
		t.Errorf("it took %v: %v", took, err)
	}
}

// A file that was listed and then replaced by a link is not read.
func TestALinkIsNotFollowedLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("other", filepath.Join(dir, "name")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if f, err := openFile(root, "name"); err == nil {
		f.Close()
		t.Error("the link was followed")
	}
	if _, err := DeriveCell(t.Context(), dir, "name"); err == nil {
		t.Error("a directory with a link was read as an attempt")
	}
}

func TestARecordSaysOneThing(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		`{"at":0,"raw":"hidden","event":{"kind":"kill"}}`, `{"at":0,"cut":true,"event":{"kind":"kill"}}`,
		`{"at":0,"dir":"<","raw":"x","bytes":"/w=="}`, `{"at":0,"dir":"<","bytes":"eA=="}`, `{"at":-1,"dir":"<","raw":"x"}`,
		`{"at":0,"dir":"<","conn":-1,"raw":"x"}`, `{"at":0,"dir":"<","event":{"kind":"kill"}}`,
	} {
		if _, err := ReadTranscript(strings.NewReader(line + "\n")); err == nil {
			t.Errorf("%s is read", line)
		}
	}
}
