package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"
)

// Every break still fits the source, is there to be killed by cells that exist, and
// is in the documentation. That they are killed is what "make mutants" shows.
func TestMutantsFitTheSource(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	doc, err := os.ReadFile("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		if _, err := m.overlay(filepath.Join(t.TempDir(), m.name)); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		for _, cell := range m.cells {
			if !slices.ContainsFunc(lab.Cells(), func(c evidence.CellSpec) bool { return c.ID == cell && !c.Control }) {
				t.Errorf("%s is to be killed by %s, which is no cell", m.name, cell)
			}
		}
		if row := "| `" + m.name + "` | " + m.what + " | " + strings.Join(m.cells, ", ") + " |"; !strings.Contains(string(doc), row) {
			t.Errorf("docs/cases.md lacks the row %s", row)
		}
	}
}
