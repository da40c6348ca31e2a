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

// Every break still fits the source, is there to be killed by cells or tests that
// exist, and is in the documentation. That they are killed is what "make mutants" shows.
func TestMutantsFitTheSource(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	doc, err := os.ReadFile("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("guard/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := ""
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tests += string(text)
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
		for _, test := range m.tests {
			if !strings.Contains(tests, "\nfunc "+test+"(t *testing.T) {\n") {
				t.Errorf("%s is to be killed by %s, which is no test of the guard", m.name, test)
			}
		}
		if len(m.killers()) == 0 {
			t.Errorf("nothing is to kill %s", m.name)
		}
		if row := "| `" + m.name + "` | " + m.what + " | " + strings.Join(m.killers(), ", ") + " |"; !strings.Contains(string(doc), row) {
			t.Errorf("docs/cases.md lacks the row %s", row)
		}
	}
}
