package evidence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with an attempt: the rule that is broken, and
// the file that breaks it.
type Problem struct {
	File   string `json:"file"`
	Rule   string `json:"rule"`
	Detail string `json:"detail"`
}

// The rules.
const (
	ruleTree       = "tree"       // nothing but the files of an attempt, and no link
	ruleInventory  = "inventory"  // every file is as the inventory says, and listed
	ruleSpec       = "spec"       // what was asked for is what this program expects
	ruleProvenance = "provenance" // it says what ran and nothing about where
	ruleResults    = "results"    // what was executed is what was requested
	ruleFacts      = "facts"      // the facts recorded are those the evidence gives
	ruleExpected   = "expected"   // the evidence is what the cell must show
	ruleStatus     = "status"     // the status recorded is the one the facts deserve
	ruleSummary    = "summary"    // the summary counts the results
)

// Report is what Verify found.
type Report struct {
	Summary   Summary   `json:"summary"`   // as counted again
	Inventory string    `json:"inventory"` // SHA-256
	Problems  []Problem `json:"problems"`

	// Unasked are the cells of the suites in the attempt that it does not ask for:
	// whether they would have passed, it does not say.
	Unasked []string `json:"unasked"`
}

// Verify derives every fact of an attempt again, from its transcripts and
// databases alone, and holds it against what was recorded and against the cells
// that this program knows. It starts nothing, follows no link, and changes nothing
// in the directory. The error is about reading it; what is wrong is in the report.
func Verify(ctx context.Context, dir string, known []CellSpec) (Report, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return Report{}, err
	}
	if !info.IsDir() {
		return Report{}, fmt.Errorf("%s is no directory", dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Report{}, err
	}
	defer root.Close()
	v := &verifier{root: root, known: known}
	if err := v.verify(ctx); err != nil {
		return Report{}, err
	}
	v.report.Summary = Summarise(v.spec, v.results)
	v.report.Unasked = v.unasked()
	return v.report, nil
}

type verifier struct {
	root    *os.Root
	known   []CellSpec
	names   []string // of the files that are there
	spec    Spec
	results []Result
	report  Report
}

func (v *verifier) problem(file, rule, format string, args ...any) {
	v.report.Problems = append(v.report.Problems, Problem{file, rule, fmt.Sprintf(format, args...)})
}

func (v *verifier) verify(ctx context.Context) error {
	v.report.Problems = []Problem{}
	var err error
	v.names, err = walk(v.root)
	var wrong *FileError
	if errors.As(err, &wrong) {
		v.problem(wrong.File, ruleTree, "%v", wrong.Err)
		return nil
	}
	if err != nil {
		return err
	}
	v.inventory()
	if !v.readSpec() {
		return nil
	}
	v.provenance()
	v.readResults()
	v.summary()
	for _, c := range v.spec.Cells {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := v.cell(ctx, c); err != nil {
			return err
		}
	}
	v.strays()
	return nil
}

// read reads a small file whole. What is missing or larger is a problem.
func (v *verifier) read(name, rule string) ([]byte, bool) {
	if !slices.Contains(v.names, name) {
		v.problem(name, rule, "it is missing")
		return nil, false
	}
	f, err := openFile(v.root, name)
	if err != nil {
		v.problem(name, rule, "%v", err)
		return nil, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	switch {
	case err != nil:
		v.problem(name, rule, "%v", err)
		return nil, false
	case len(text) > maxText:
		v.problem(name, rule, "it is larger than %d bytes", maxText)
		return nil, false
	}
	return text, true
}

// readJSON reads a file that must be spelled as it is written.
func (v *verifier) readJSON(name, rule string, into any) bool {
	text, ok := v.read(name, rule)
	if !ok {
		return false
	}
	if err := json.Unmarshal(text, into); err != nil {
		v.problem(name, rule, "%v", err)
		return false
	}
	again, err := indent(into)
	if err != nil || !bytes.Equal(again, text) {
		v.problem(name, rule, "it is not in the form it is written in")
		return false
	}
	return true
}

func (v *verifier) inventory() {
	text, ok := v.read(inventoryFile, ruleInventory)
	if !ok {
		return
	}
	sum := sha256.Sum256(text)
	v.report.Inventory = hex.EncodeToString(sum[:])
	entries, err := parseInventory(text)
	if err != nil {
		v.problem(inventoryFile, ruleInventory, "%v", err)
		return
	}
	listed := map[string]bool{inventoryFile: true}
	for _, e := range entries {
		listed[e.name] = true
		if !slices.Contains(v.names, e.name) {
			v.problem(e.name, ruleInventory, "it is listed and missing")
			continue
		}
		is, err := enter(v.root, e.name)
		switch {
		case err != nil:
			v.problem(e.name, ruleInventory, "%v", err)
		case is.size != e.size:
			v.problem(e.name, ruleInventory, "it has %d bytes, and %d are listed", is.size, e.size)
		case is.digest != e.digest:
			v.problem(e.name, ruleInventory, "its SHA-256 is not the listed one")
		}
	}
	for _, name := range v.names {
		if !listed[name] {
			v.problem(name, ruleInventory, "it is there and not listed")
		}
	}
}

// readSpec holds what was asked for against what this program would ask.
func (v *verifier) readSpec() bool {
	if !v.readJSON(specFile, ruleSpec, &v.spec) {
		return false
	}
	if v.spec.Format != format {
		v.problem(specFile, ruleSpec, "its format is %d, and this program knows %d", v.spec.Format, format)
		return false
	}
	if v.spec.Note != note {
		v.problem(specFile, ruleSpec, "its note is not the one that is written")
	}
	if len(v.spec.Cells) == 0 {
		v.problem(specFile, ruleSpec, "it asks for nothing")
	}
	seen := map[string]bool{}
	for i, c := range v.spec.Cells {
		at := slices.IndexFunc(v.known, func(k CellSpec) bool { return k.ID == c.ID })
		switch {
		case at < 0:
			v.problem(specFile, ruleSpec, "this program knows no cell %q", c.ID)
			return false
		case seen[c.ID]:
			v.problem(specFile, ruleSpec, "cell %s is asked for twice", c.ID)
			return false
		case !equalSpec(c, v.known[at]):
			v.problem(specFile, ruleSpec, "cell %s is expected to be something else than this program expects", c.ID)
			v.spec.Cells[i] = v.known[at]
		}
		seen[c.ID] = true
	}
	return true
}

func equalSpec(a, b CellSpec) bool {
	return a.ID == b.ID && a.Suite == b.Suite && a.Title == b.Title && a.Expected == b.Expected && a.Control == b.Control && a.Transport == b.Transport && slices.Equal(a.Want, b.Want)
}

var (
	commitText   = regexp.MustCompile(`^([0-9a-f]{40}([0-9a-f]{24})?)?$`)
	digestText   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	platformText = regexp.MustCompile(`^[a-z0-9]+/[a-z0-9]+$`)
	versionText  = regexp.MustCompile(`^(go1|devel)[ -~]{0,60}$`)
	// What a module is replaced by has no version and no sum; a path in its place
	// would say where the program was built.
	moduleVersion = regexp.MustCompile(`^(v[0-9][a-zA-Z0-9.+-]*|\(devel\))?$`)
	moduleSum     = regexp.MustCompile(`^(h1:[A-Za-z0-9+/]{43}=)?$`)

	moduleText = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._~/-]*$`)
)

func (v *verifier) provenance() {
	var p Provenance
	if !v.readJSON(provenanceFile, ruleProvenance, &p) {
		return
	}
	if !commitText.MatchString(p.Commit) || !digestText.MatchString(p.Program) || !platformText.MatchString(p.Platform) || !versionText.MatchString(p.GoVersion) {
		v.problem(provenanceFile, ruleProvenance, "its commit, program, platform or Go version is none")
	}
	for _, m := range p.Modules {
		if !moduleText.MatchString(m.Path) || !moduleVersion.MatchString(m.Version) || !moduleSum.MatchString(m.Sum) {
			v.problem(provenanceFile, ruleProvenance, "%q is no module, or has no version", m.Path)
		}
	}
}

// readResults reads how the cells ended. Requested and executed are equal sets.
func (v *verifier) readResults() {
	text, ok := v.read(resultsFile, ruleResults)
	if !ok {
		return
	}
	err := lines(bytes.NewReader(text), func(n int, line []byte) error {
		var r Result
		if err := decode(line, &r); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		same := func(o Result) bool { return o.Cell == r.Cell }
		switch {
		case slices.ContainsFunc(v.results, same):
			v.problem(resultsFile, ruleResults, "line %d: cell %s was executed twice", n, r.Cell)
		case !slices.ContainsFunc(v.spec.Cells, func(c CellSpec) bool { return c.ID == r.Cell }):
			v.problem(resultsFile, ruleResults, "line %d: cell %q was not requested", n, r.Cell)
		default:
			v.results = append(v.results, r)
		}
		return nil
	})
	if err != nil {
		v.problem(resultsFile, ruleResults, "%v", err)
	}
}

func (v *verifier) summary() {
	var s Summary
	if !v.readJSON(summaryFile, ruleSummary, &s) {
		return
	}
	if again := Summarise(v.spec, v.results); s != again {
		v.problem(summaryFile, ruleSummary, "it says %+v, and the results are %+v", s, again)
	}
}

// cell derives the facts of one cell again.
func (v *verifier) cell(ctx context.Context, c CellSpec) error {
	at := slices.IndexFunc(v.results, func(r Result) bool { return r.Cell == c.ID })
	if at < 0 {
		v.problem(resultsFile, ruleResults, "cell %s was requested and not executed", c.ID)
		return nil
	}
	r, dir := v.results[at], path.Join(cellsDir, c.ID)
	if r.Expected != c.Expected {
		v.problem(resultsFile, ruleResults, "cell %s: it says %q was expected", c.ID, r.Expected)
	}
	facts, err := Derive(ctx, v.files(dir))
	var wrong *FileError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case r.Machinery != "" && r.Facts == nil: // played to no end: there is nothing to derive
		if r.Status != MachineryError {
			v.problem(resultsFile, ruleStatus, "cell %s is called %s and had a machinery error", c.ID, r.Status)
		}
		return nil
	case errors.As(err, &wrong):
		v.problem(path.Join(dir, wrong.File), ruleFacts, "%v", wrong.Err)
		return nil
	case err != nil:
		return err
	}
	if n, ok := difference(facts, r.Facts); ok {
		v.problem(v.source(dir, facts, r.Facts, n), ruleFacts, "%s", describe("it gives", facts, "recorded is", r.Facts, n))
	}
	if name, err := otherTransport(v.files(dir), c.Transport); err != nil || name != "" {
		v.problem(path.Join(dir, name), ruleExpected, "it is not of a server over %s", c.Transport)
	}
	again := c.Judge(facts, r.Machinery)
	if n, ok := difference(facts, c.Want); ok && again.Status != MachineryError {
		v.problem(v.source(dir, facts, c.Want, n), ruleExpected, "%s", describe("it gives", facts, "expected is", c.Want, n))
	}
	if again.Status != r.Status {
		v.problem(resultsFile, ruleStatus, "cell %s is called %s, and its evidence makes it %s", c.ID, r.Status, again.Status)
	}
	return nil
}

// strays are directories of cells that nobody asked for.
func (v *verifier) strays() {
	dirs, err := fs.ReadDir(v.root.FS(), cellsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.problem(cellsDir, ruleTree, "%v", err)
	}
	for _, d := range dirs {
		if d.IsDir() && !v.asks(d.Name()) {
			v.problem(path.Join(cellsDir, d.Name()), ruleTree, "no attempt of these cells has this directory")
		}
	}
	for _, name := range v.names {
		parts := strings.Split(name, "/")
		if len(parts) == 3 && parts[0] == cellsDir && v.asks(parts[1]) {
			continue
		}
		if len(parts) == 1 && slices.Contains([]string{specFile, provenanceFile, resultsFile, summaryFile, inventoryFile}, name) {
			continue
		}
		v.problem(name, ruleTree, "no attempt of these cells has this file")
	}
}

func (v *verifier) asks(cell string) bool {
	return slices.ContainsFunc(v.spec.Cells, func(c CellSpec) bool { return c.ID == cell })
}

func (v *verifier) unasked() []string {
	ids := []string{}
	for _, k := range v.known {
		if !v.asks(k.ID) && slices.ContainsFunc(v.spec.Cells, func(c CellSpec) bool { return c.Suite == k.Suite }) {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

// difference is the first line at which two lists of facts differ.
func difference(a, b Facts) (int, bool) {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i, true
		}
	}
	return 0, false
}

func describe(is string, a Facts, was string, b Facts, n int) string {
	line := func(f Facts) string {
		if n < len(f) {
			return fmt.Sprintf("%q", f[n])
		}
		return "nothing more"
	}
	return fmt.Sprintf("fact %d: %s %s, %s %s", n+1, is, line(a), was, line(b))
}

// source is the file that a differing fact is from. One that was recorded from a
// file that is missing names that.
func (v *verifier) source(dir string, is, was Facts, n int) string {
	recorded, derived := origin(was, n), origin(is, n)
	switch there := func(name string) bool { return slices.Contains(v.names, path.Join(dir, name)) }; {
	case recorded != "" && !there(recorded):
		return path.Join(dir, recorded)
	case derived != "" && there(derived):
		return path.Join(dir, derived)
	case recorded != "":
		return path.Join(dir, recorded)
	case n < len(is): // a rule, which names the file where it is broken
		for _, word := range strings.FieldsFunc(is[n], func(r rune) bool { return r == ' ' || r == ':' }) {
			for _, extension := range []string{TranscriptExtension, Extension} {
				if there(word + extension) {
					return path.Join(dir, word+extension)
				}
			}
		}
	}
	return dir
}

// origin is the file that a fact of a story or of a database begins with, or "".
func origin(f Facts, n int) string {
	if n >= len(f) {
		return ""
	}
	word, _, _ := strings.Cut(f[n], " ")
	switch name, database := strings.CutSuffix(word, ":"); {
	case word == "!" || word == "protocol" || word == "at" || !fs.ValidPath(name):
		return ""
	case database:
		return name + Extension
	default:
		return name + TranscriptExtension
	}
}

// files are the files of a cell, opened inside the directory alone.
func (v *verifier) files(dir string) Files { return &rootFiles{v.root, dir, v.names} }

type rootFiles struct {
	root  *os.Root
	dir   string
	names []string
}

func (r *rootFiles) Names() (names []string, err error) {
	for _, name := range r.names {
		if path.Dir(name) == r.dir {
			names = append(names, path.Base(name))
		}
	}
	return names, nil
}

func (r *rootFiles) Open(name string) (io.ReadCloser, error) {
	full := path.Join(r.dir, name)
	if !slices.Contains(r.names, full) {
		return nil, fs.ErrNotExist
	}
	return openFile(r.root, full)
}
