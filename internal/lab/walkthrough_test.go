package lab_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"mcpreplay/internal/evidence"
)

// block is a quotation in docs/walkthrough.md: of a transcript, the record in a
// line; of a database, all that it holds.
var block = regexp.MustCompile("(?s)<!-- (crash|restart|store)( [0-9]+)? -->\n\n```\\w+\n(.*?)```\n")

// varying is what differs from run to run.
var varyingParts = []struct {
	re *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`"v1\.[A-Za-z0-9_-]{40,}"`), `"v1.SEALED"`},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), `INSTANCE`},
	{regexp.MustCompile(`"version": "[^"]*(devel|dirty|v\d)[^"]*"`), `"version": "VERSION"`},
}

// The walkthrough quotes a run of case 03, and this run is quoted as well.
func TestWalkthroughQuotesTheEvidence(t *testing.T) {
	d := damage(t)
	path := filepath.Join("..", "..", "docs", "walkthrough.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	quoted := 0
	now := block.ReplaceAllStringFunc(string(text), func(old string) string {
		m := block.FindStringSubmatch(old)
		quoted++
		quote := quoteDatabase(t, d)
		language := "text"
		if m[1] != "store" {
			line, err := strconv.Atoi(strings.TrimSpace(m[2]))
			if err != nil {
				t.Fatal(err)
			}
			quote, language = quoteRecord(t, d, m[1], line), "json"
		}
		for _, v := range varyingParts {
			quote = v.re.ReplaceAllString(quote, v.as)
		}
		return fmt.Sprintf("<!-- %s%s -->\n\n```%s\n%s```\n", m[1], m[2], language, quote)
	})
	if *update {
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if quoted < 10 {
		t.Errorf("only %d quotations were found", quoted)
	}
	if now != string(text) {
		t.Errorf("docs/walkthrough.md quotes something else than a run gives; go test ./internal/lab -run Walkthrough -update, and read the difference:\n%s",
			strings.Join(evidence.Compare(strings.Split(string(text), "\n"), strings.Split(now, "\n")), "\n"))
	}
}

// quoteRecord is one line of a transcript of 03-stdio, from 1, without its time.
func quoteRecord(t *testing.T, d damaged, transcript string, line int) string {
	t.Helper()
	lines := bytes.Split(d.read("cells/03-stdio/"+transcript+".jsonl"), []byte("\n"))
	if line < 1 || line >= len(lines) {
		t.Fatalf("%s has no line %d", transcript, line)
	}
	var r evidence.Record
	if err := json.Unmarshal(lines[line-1], &r); err != nil {
		t.Fatal(err)
	}
	if r.Event != nil {
		return indented(t, r.Event)
	}
	return indented(t, json.RawMessage(r.Raw))
}

func indented(t *testing.T, v any) string {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// quoteDatabase is what the facts of 03-stdio say of its database.
func quoteDatabase(t *testing.T, d damaged) string {
	t.Helper()
	facts, err := evidence.DeriveCell(t.Context(), d.dir, "03-stdio")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range facts {
		if strings.HasPrefix(f, "store: ") {
			b.WriteString(f + "\n")
		}
	}
	return b.String()
}
