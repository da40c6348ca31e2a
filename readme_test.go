package mcpreplay_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// block returns the nth fenced block of a kind in README.md.
func block(t *testing.T, kind string, n int) string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(readme), "```"+kind+"\n")
	if len(parts) <= n+1 {
		t.Fatalf("README.md has no block %d of %s", n, kind)
	}
	text, _, _ := strings.Cut(parts[n+1], "```")
	return text
}

func TestReadmeProgramIsTheExample(t *testing.T) {
	example, err := os.ReadFile("examples/notes/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(example), "package main\n")
	if got := block(t, "go", 0); got != "package main\n"+program {
		t.Errorf("README.md shows another program than examples/notes/main.go:\n%s", got)
	}
}

// The program works with an unmodified SDK client that knows nothing of
// operations, and with one that repeats itself.
func TestReadmeProgramServesAnSDKClient(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "notes")
	if out, err := exec.Command("go", "build", "-o", program, "./examples/notes").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	ctx := context.Background()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, args := range []map[string]any{
		{"text": "keyless"}, {"text": "named", "operation_id": "note-1"}, {"text": "named", "operation_id": "note-1"},
	} {
		res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "save_note", Arguments: args})
		if err != nil || res.IsError {
			t.Fatalf("%v: %+v, %v", args, res, err)
		}
		texts = append(texts, res.Content[0].(*mcp.TextContent).Text)
	}
	if got := strings.Join(texts, " "); got != `{"id":1} {"id":2} {"id":2}` {
		t.Errorf("results: %s", got)
	}
	if err := cs.Close(); err != nil {
		t.Errorf("the server did not end well: %v", err)
	}
}

// The demo tells what README.md shows it telling.
func TestReadmeDemo(t *testing.T) {
	shown := block(t, "console", 0)
	command, story, _ := strings.Cut(shown, "\n")
	if command != "$ go run ./cmd/mcpreplay demo" {
		t.Fatalf("the first command is %q", command)
	}
	out, err := exec.Command("go", "run", "./cmd/mcpreplay", "demo", "--output-dir", filepath.Join(t.TempDir(), "new")).Output()
	if err != nil {
		t.Fatalf("the demo failed: %v\n%s", err, out)
	}
	rest := string(out)
	for part := range strings.SplitSeq(story, "...\n") {
		part = strings.TrimSuffix(part, "  ")
		_, after, found := strings.Cut(rest, part)
		if !found {
			t.Errorf("the demo does not say\n%s\nbut\n%s", part, out)
		}
		rest = after
	}
}
