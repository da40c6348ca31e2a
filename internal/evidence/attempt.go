package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The files of an attempt directory. Beside them is only cells, with a directory
// for each cell.
const (
	specFile       = "spec.json"
	provenanceFile = "provenance.json"
	resultsFile    = "results.jsonl"
	summaryFile    = "SUMMARY.json"
	inventoryFile  = "INVENTORY"
	cellsDir       = "cells"
)

// format is the version of the form of an attempt.
const format = 1

// Spec says what was asked for and what is expected, before anything runs.
type Spec struct {
	Format int        `json:"format"`
	Note   string     `json:"note"`
	Cells  []CellSpec `json:"cells"`
}

const note = "Synthetic data. The keys and tokens in the transcripts are published fixtures of the lab and protect nothing."

// NewSpec is the spec of some cells.
func NewSpec(cells []CellSpec) Spec { return Spec{format, note, cells} }

// CellSpec is one cell as it is asked for.
type CellSpec struct {
	ID       string `json:"id"`
	Suite    string `json:"suite"`
	Title    string `json:"title"`
	Expected string `json:"expected"` // its outcome in a word
	Control  bool   `json:"control"`  // it must break a rule: the lab is blind if it does not
	// Transport is how its servers are spoken to: the story of a cell is often that of
	// another over another transport.
	Transport string `json:"transport"`
	Want      Facts  `json:"want"`
}

// Status is how a cell ended.
type Status string

// The statuses. A machinery error is a cell that could not be played to its end:
// it says nothing about the product, and is never a pass.
const (
	Passed         Status = "passed"
	Failed         Status = "failed"
	MachineryError Status = "machinery_error"
)

// Result is one line of results.jsonl.
type Result struct {
	Cell      string `json:"cell"`
	Expected  string `json:"expected"`
	Status    Status `json:"status"`
	Facts     Facts  `json:"facts"`
	Machinery string `json:"machinery,omitempty"` // why it is a machinery error
}

// Judge is the status that facts deserve.
func (s CellSpec) Judge(facts Facts, machinery string) Result {
	r := Result{Cell: s.ID, Expected: s.Expected, Status: Passed, Facts: facts, Machinery: machinery}
	switch {
	case machinery != "":
		r.Status = MachineryError
	case !slices.Equal(facts, s.Want):
		r.Status = Failed
	}
	return r
}

// Summary counts what was asked for, what was done, and how it ended.
type Summary struct {
	Requested       int `json:"requested"`
	Executed        int `json:"executed"`
	Passed          int `json:"passed"`
	Failed          int `json:"failed"`
	MachineryErrors int `json:"machineryErrors"`
	Controls        int `json:"controls"` // of those requested
	Detected        int `json:"detected"` // controls that broke their rule, as they must
}

// Summarise counts. An attempt is good if everything that was requested passed.
func Summarise(s Spec, results []Result) Summary {
	sum := Summary{Requested: len(s.Cells), Executed: len(results)}
	for _, c := range s.Cells {
		if c.Control {
			sum.Controls++
		}
	}
	for _, r := range results {
		switch r.Status {
		case Passed:
			sum.Passed++
			if slices.ContainsFunc(s.Cells, func(c CellSpec) bool { return c.ID == r.Cell && c.Control }) {
				sum.Detected++
			}
		case Failed:
			sum.Failed++
		default:
			sum.MachineryErrors++
		}
	}
	return sum
}

// Good reports whether all that was requested was done and passed.
func (s Summary) Good() bool {
	return s.Requested > 0 && s.Executed == s.Requested && s.Passed == s.Requested && s.Detected == s.Controls
}

// Attempt is an attempt directory that is being written.
type Attempt struct {
	dir     string
	spec    Spec
	results []Result
}

// Create makes a new attempt directory and writes down what is asked for. It
// never takes one that exists.
func Create(dir string, s Spec, p Provenance) (*Attempt, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(dir, cellsDir), 0o755); err != nil {
		return nil, err
	}
	a := &Attempt{dir: dir, spec: s}
	return a, errors.Join(a.put(specFile, s), a.put(provenanceFile, p), a.write(resultsFile, nil))
}

// Cell makes the directory of a cell.
func (a *Attempt) Cell(id string) (string, error) {
	dir := filepath.Join(a.dir, cellsDir, id)
	return dir, os.Mkdir(dir, 0o755)
}

// Files is the evidence of a cell, as Derive reads it.
func (a *Attempt) Files(id string) Files { return dirFiles(filepath.Join(a.dir, cellsDir, id)) }

// Add writes down how a cell ended, at once: what comes after may fail.
func (a *Attempt) Add(r Result) error {
	a.results = append(a.results, r)
	line, err := encode(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(a.dir, resultsFile), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(line)
	return errors.Join(err, f.Close())
}

// Finish writes the summary and the inventory. The digest is that of the
// inventory: published elsewhere, it fixes every byte of the attempt.
func (a *Attempt) Finish() (sum Summary, digest string, err error) {
	sum = Summarise(a.spec, a.results)
	if err := a.put(summaryFile, sum); err != nil {
		return sum, "", err
	}
	root, err := os.OpenRoot(a.dir)
	if err != nil {
		return sum, "", err
	}
	defer root.Close()
	names, err := walk(root)
	if err != nil {
		return sum, "", err
	}
	var text strings.Builder
	for _, name := range names {
		e, err := enter(root, name)
		if err != nil {
			return sum, "", err
		}
		fmt.Fprintf(&text, "%s\n", e)
	}
	if err := a.write(inventoryFile, []byte(text.String())); err != nil {
		return sum, "", err
	}
	h := sha256.Sum256([]byte(text.String()))
	return sum, hex.EncodeToString(h[:]), nil
}

// put writes v, indented.
func (a *Attempt) put(name string, v any) error {
	text, err := indent(v)
	if err != nil {
		return err
	}
	return a.write(name, text)
}

func (a *Attempt) write(name string, text []byte) error {
	f, err := os.OpenFile(filepath.Join(a.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func indent(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}
