package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// Provenance says what ran. It names no host, no user and no path.
type Provenance struct {
	Commit    string   `json:"commit"`  // "" if it is not known
	Dirty     *bool    `json:"dirty"`   // null if it is not known
	Program   string   `json:"program"` // SHA-256 of the server's binary
	GoVersion string   `json:"goVersion"`
	Platform  string   `json:"platform"`
	Modules   []Module `json:"modules"`
}

// Module is one dependency that was built in.
type Module struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Sum     string `json:"sum"`
}

// Describe is the provenance of the running program, and of the binary at exe. A
// build that is not stamped with its commit may be given one.
func Describe(exe, commit string, dirty *bool) (Provenance, error) {
	f, err := os.Open(exe)
	if err != nil {
		return Provenance{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return Provenance{}, err
	}
	p := Provenance{
		Commit: commit, Dirty: dirty, Program: hex.EncodeToString(h.Sum(nil)),
		GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Modules: []Module{},
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return p, nil
	}
	for _, m := range info.Deps {
		p.Modules = append(p.Modules, Module{m.Path, m.Version, m.Sum})
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			p.Commit = s.Value
		case "vcs.modified":
			modified := s.Value == "true"
			p.Dirty = &modified
		}
	}
	return p, nil
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

// entry is one line of the inventory.
type entry struct {
	digest string
	size   int64
	name   string
}

func (e entry) String() string { return fmt.Sprintf("%s %d %s", e.digest, e.size, e.name) }

func enter(root *os.Root, name string) (entry, error) {
	f, err := openFile(root, name)
	if err != nil {
		return entry{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return entry{hex.EncodeToString(h.Sum(nil)), n, name}, err
}

func parseInventory(text []byte) ([]entry, error) {
	var entries []entry
	err := lines(bytes.NewReader(text), func(n int, line []byte) error {
		parts := strings.SplitN(string(line), " ", 3)
		if len(parts) != 3 {
			return fmt.Errorf("line %d: it is not a digest, a size and a name", n)
		}
		size, err := strconv.ParseInt(parts[1], 10, 64)
		e := entry{parts[0], size, parts[2]}
		if sum, errSum := hex.DecodeString(e.digest); err != nil || errSum != nil || len(sum) != sha256.Size || e.String() != string(line) || !fs.ValidPath(e.name) {
			return fmt.Errorf("line %d: it is not a digest, a size and a name", n)
		}
		if k := len(entries); k > 0 && entries[k-1].name >= e.name {
			return fmt.Errorf("line %d: %s is not in its place", n, e.name)
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// What an attempt may have: more than any has.
const (
	maxFile  = 256 << 20 // bytes of a file
	maxFiles = 10_000
)

// openFile opens a file for reading. What was put in its place since it was listed
// is not followed and not waited for.
func openFile(root *os.Root, name string) (io.ReadCloser, error) {
	listed, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	is, err := f.Stat()
	if err == nil && (!is.Mode().IsRegular() || !os.SameFile(listed, is) || is.Size() > maxFile) {
		err = errors.New("it is not the file that was listed")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(f, maxFile), f}, nil
}

// walk lists the files of an attempt, sorted. Anything that is neither a file nor
// a directory that an attempt has is an error that names it.
func walk(root *os.Root) ([]string, error) {
	var names []string
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		depth := strings.Count(name, "/")
		switch {
		case d.Type().IsRegular():
			info, err := d.Info()
			if err != nil {
				return err
			}
			if info.Size() > maxFile {
				return &FileError{name, fmt.Errorf("it has %d bytes, more than any file of an attempt", info.Size())}
			}
			if names = append(names, name); len(names) > maxFiles {
				return &FileError{name, fmt.Errorf("there are more than %d files", maxFiles)}
			}
		case !d.IsDir():
			return &FileError{name, errors.New("it is no regular file; links are not followed")}
		case name != "." && name != cellsDir && (path.Dir(name) != cellsDir || depth != 1):
			return &FileError{name, errors.New("no attempt has this directory")}
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// dirFiles are the files of a directory.
type dirFiles string

func (d dirFiles) Names() ([]string, error) {
	list, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, nil
}

func (d dirFiles) Open(name string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), name))
}
