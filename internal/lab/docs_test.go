package lab_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"
)

var cellList = regexp.MustCompile(`(?s)<!-- cells (\w+) -->\n.*?<!-- end -->\n`)

// docs/cases.md lists every cell that has no row of its own there.
func TestCasesPageListsEveryCell(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cases.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	listed := 0
	now := cellList.ReplaceAllStringFunc(string(text), func(old string) string {
		suite := cellList.FindStringSubmatch(old)[1]
		var b strings.Builder
		fmt.Fprintf(&b, "<!-- cells %s -->\n\n| cell | what happens | what must be seen |\n| ---- | ------------ | ----------------- |\n", suite)
		for _, c := range lab.Cells() {
			if c.Suite != suite {
				continue
			}
			listed++
			expected := strings.ReplaceAll(c.Expected, "_", " ")
			if c.Control {
				expected = "control: " + expected
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", c.ID, c.Title, expected)
		}
		b.WriteString("\n<!-- end -->\n")
		return b.String()
	})
	if *update {
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if now != string(text) || listed == 0 {
		t.Error("docs/cases.md lists other cells: go test ./internal/lab -run CasesPage -update")
	}
}

var cellName = regexp.MustCompile("`((?:\\d\\d|fault|transport|newid|mute)(?:-[a-z0-9-]+)?)`")

// The page of promises names cells that exist, by their ids or by what they begin
// with.
func TestGuaranteesNameCells(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	names := cellName.FindAllStringSubmatch(string(text), -1)
	if len(names) < 15 {
		t.Errorf("only %d cells are named", len(names))
	}
	for _, name := range names {
		if !slices.ContainsFunc(lab.Cells(), func(c evidence.CellSpec) bool {
			return c.ID == name[1] || strings.HasPrefix(c.ID, name[1]+"-")
		}) {
			t.Errorf("docs/guarantees.md names the cell %s, and there is none", name[1])
		}
	}
}
