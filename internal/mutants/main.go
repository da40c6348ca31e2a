// Command mutants breaks the product on purpose, one break at a time, and runs the
// lab over each: the cell that is there for it must fail, or the test, where no cell
// can show it. A break that nothing notices is a promise that nobody checks.
//
// Run it from the root of the module. It changes no file there.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// mutant is one break: what of the product is changed, and the cells, and the tests of
// the guard, of which each must fail then.
type mutant struct {
	name  string
	what  string
	edits []edit
	cells []string
	tests []string // for what no cell can show, and beside those that do
}

func (m mutant) killers() []string { return slices.Concat(m.cells, m.tests) }

// edit replaces a text, which must be in the file exactly once.
type edit struct{ file, old, new string }

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(only []string) error {
	dir, err := os.MkdirTemp("", "mcpreplay-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	survived := 0
	for _, m := range mutants {
		if len(only) > 0 && !slices.Contains(only, m.name) {
			continue
		}
		start := time.Now()
		failed, err := m.run(filepath.Join(dir, m.name))
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		verdict := "killed by " + strings.Join(failed, ", ")
		if len(failed) < len(m.killers()) {
			survived++
			verdict = fmt.Sprintf("SURVIVED: of %v failed %v", m.killers(), failed)
		}
		fmt.Printf("%-22s %5.1f s  %s\n", m.name, time.Since(start).Seconds(), verdict)
	}
	if survived > 0 {
		return fmt.Errorf("%d survived", survived)
	}
	return nil
}

// run builds the broken program beside the sources as they are, and returns which
// of its cells failed.
func (m mutant) run(dir string) (failed []string, err error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return nil, err
	}
	failed, err = m.test(overlay)
	if err != nil || len(m.cells) == 0 {
		return failed, err
	}
	exe := filepath.Join(dir, "mcpreplay")
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", exe, "./cmd/mcpreplay").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	attempt := filepath.Join(dir, "attempt")
	out, err := exec.Command(exe, "lab", "run", "--only", strings.Join(m.cells, ","), "--out", attempt).CombinedOutput()
	if code := (*exec.ExitError)(nil); err != nil && !errors.As(err, &code) {
		return nil, err
	}
	cells, err := failures(filepath.Join(attempt, "results.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return append(failed, cells...), nil
}

// test runs the tests over the broken sources, and returns those that failed. One that
// cannot be built says nothing.
func (m mutant) test(overlay string) (failed []string, err error) {
	for _, name := range m.tests {
		out, err := exec.Command("go", "test", "-overlay", overlay, "-timeout", "2m", "-run", "^"+name+"$", "./guard").CombinedOutput()
		if code := (*exec.ExitError)(nil); err != nil && !errors.As(err, &code) {
			return nil, err
		}
		switch {
		case bytes.Contains(out, []byte("--- FAIL: "+name)), bytes.Contains(out, []byte("panic: test timed out")):
			failed = append(failed, name)
		case err != nil || bytes.Contains(out, []byte("no tests to run")):
			return nil, fmt.Errorf("%s: %w\n%s", name, cmp.Or(err, errors.New("there is no such test")), out)
		}
	}
	return failed, nil
}

// overlay writes the changed files, and the list of them that the go command reads.
func (m mutant) overlay(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	changed := map[string]string{}
	for i, e := range m.edits {
		path, err := filepath.Abs(e.file)
		if err != nil {
			return "", err
		}
		from := path
		if changed[path] != "" {
			from = changed[path]
		}
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			return "", fmt.Errorf("%s contains %d times: %s", e.file, n, e.old)
		}
		to := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(to, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o644); err != nil {
			return "", err
		}
		changed[path] = to
	}
	list, err := json.Marshal(map[string]any{"Replace": changed})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, list, 0o644)
}

// failures are the cells that were played to their end and failed. A cell that
// could not be played says nothing.
func failures(results string) (failed []string, err error) {
	f, err := os.Open(results)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 16<<20)
	for scan.Scan() {
		var r struct{ Cell, Status string }
		if err := json.Unmarshal(scan.Bytes(), &r); err != nil {
			return nil, err
		}
		if r.Status == "failed" {
			failed = append(failed, r.Cell)
		}
	}
	slices.Sort(failed)
	return failed, scan.Err()
}
