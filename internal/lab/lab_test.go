package lab_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"
)

var update = flag.Bool("update", false, "write the stories anew; read the difference before committing it")

// The whole lab, as a user runs it: every cell shows what it must, every control
// fails as it must, and the evidence says the same to whoever rechecks it.
func TestEveryCellShowsWhatItMust(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "attempt")
	sum, digest, err := lab.Run(t.Context(), lab.Options{Exe: binary, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		writeStories(t, results(t, dir))
		return
	}
	for _, r := range results(t, dir) {
		if r.Status == evidence.Passed {
			continue
		}
		facts, err := evidence.DeriveCell(t.Context(), dir, r.Cell)
		at := slices.IndexFunc(lab.Cells(), func(c evidence.CellSpec) bool { return c.ID == r.Cell })
		t.Errorf("%s is %s: %s %v\n%s", r.Cell, r.Status, r.Machinery, err, strings.Join(evidence.Compare(lab.Cells()[at].Want, facts), "\n"))
	}
	if !sum.Good() || sum.Controls == 0 {
		t.Errorf("the summary is %+v", sum)
	}
	report, err := evidence.Verify(t.Context(), dir, lab.Cells())
	if err != nil || len(report.Problems) > 0 || report.Summary != sum || report.Inventory != digest {
		t.Errorf("verify says %+v, %v", report, err)
	}
}

// The attempt that is kept in the repository still holds.
func TestTheKeptAttemptHolds(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("..", "..", "evidence", "*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("there is none: %v", err)
	}
	for _, dir := range dirs {
		report, err := evidence.Verify(t.Context(), dir, lab.Cells())
		if err != nil || len(report.Problems) > 0 || !report.Summary.Good() {
			t.Errorf("%s: %+v, %v; where the cells have changed, make evidence", dir, report, err)
		}
	}
}

func results(t *testing.T, dir string) (rs []evidence.Result) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var r evidence.Result
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	return rs
}

// writeStories writes the facts of an attempt as those that are wanted. Where the
// transport makes no difference, one file is for both.
func writeStories(t *testing.T, rs []evidence.Result) {
	byCell := map[string]evidence.Facts{}
	for _, r := range rs {
		if r.Machinery != "" {
			t.Fatalf("%s: %s", r.Cell, r.Machinery)
		}
		byCell[r.Cell] = r.Facts
	}
	old, err := filepath.Glob("stories/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	for id, facts := range byCell {
		name := id
		if base, variant, _ := strings.Cut(id, "-"); variant == "stdio" || variant == "http" {
			if slices.Equal(byCell[base+"-stdio"], byCell[base+"-http"]) {
				name = base
			}
		}
		if err := os.WriteFile(filepath.Join("stories", name+".txt"), []byte(strings.Join(facts, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Only a control breaks a rule, and a control always does: in the one that it is
// there for.
func TestOnlyControlsBreakRules(t *testing.T) {
	mechanisms := map[string]string{"nobody_can_tell": "no_status"}
	for _, c := range lab.Cells() {
		broken := slices.DeleteFunc(slices.Clone(c.Want), func(line string) bool { return !strings.HasPrefix(line, "! ") })
		if !c.Control {
			if len(broken) > 0 {
				t.Errorf("%s is no control and is wanted to break %q", c.ID, broken)
			}
			continue
		}
		rule := c.Expected
		if m := mechanisms[rule]; m != "" {
			rule = m
		}
		if !slices.ContainsFunc(broken, func(line string) bool { return strings.HasPrefix(line, "! "+rule+" ") }) {
			t.Errorf("%s is to show %s and is wanted to break only %q", c.ID, rule, broken)
		}
	}
}
