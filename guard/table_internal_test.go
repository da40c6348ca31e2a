package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcpreplay"
)

// Every row of the error table is on the wire of some transcript, as the table
// has it.
func TestEveryRefusalHasATranscript(t *testing.T) {
	files, err := filepath.Glob("testdata/transcripts/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	for reason, row := range refusals {
		if !strings.Contains(all.String(), `"reason": "`+string(reason)+`"`) {
			t.Errorf("no transcript shows %s", reason)
		}
		if row.next == "" {
			t.Errorf("%s does not say what to do next", reason)
		}
		if v := mcpreplay.ClassifyError(-32602, string(reason), []byte(`{"reason":"`+string(reason)+`"}`)); reason != mcpreplay.ReasonInProgress && v.Kind != mcpreplay.VerdictRefused {
			t.Errorf("a client takes %s for %s", reason, v.Kind)
		}
	}
	if !strings.Contains(all.String(), `"code": "operation_unknown"`) || !strings.Contains(all.String(), `"code": -32021`) {
		t.Error("no transcript shows operation_unknown, or a missing capability")
	}
}
