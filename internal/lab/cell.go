package lab

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"mcpreplay/internal/evidence"
)

// cell is one thing that the lab shows: a script, and the facts that its evidence
// must give.
type cell struct {
	id       string // number of its case or name, then its variant
	suite    string
	title    string
	expected string
	control  bool // it must break a rule of evidence

	transport string
	protocol  string
	unguarded bool
	op        string
	script    func(*play)
}

// The suites.
const (
	SuiteCases     = "cases"
	SuiteFaults    = "faults"
	SuiteTransport = "transport"
	SuiteAll       = "all"
)

// stories are the facts that each cell must give, a file each. Cells whose facts
// are equal share one: that of 03 is for 03-stdio and 03-http.
//
//go:embed stories/*.txt
var stories embed.FS

// story is the file that holds the facts of a cell.
func (c cell) story() string {
	name := path.Join("stories", c.id+".txt")
	if _, err := stories.Open(name); err == nil {
		return name
	}
	base, _, _ := strings.Cut(c.id, "-")
	if c.suite == SuiteCases && !c.control && c.protocol == evidence.ProtocolModern {
		return path.Join("stories", base+".txt")
	}
	return name
}

func (c cell) want() evidence.Facts {
	text, err := stories.ReadFile(c.story())
	if err != nil {
		return nil // no facts at all: the cell fails, and a test says why
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func (c cell) spec() evidence.CellSpec {
	return evidence.CellSpec{ID: c.id, Suite: c.suite, Title: c.title, Expected: c.expected, Control: c.control, Transport: c.transport, Want: c.want()}
}

func cells() []cell {
	return slices.Concat(caseCells(), faultCells(), transportCells())
}

// Cells is all that the lab can show.
func Cells() []evidence.CellSpec {
	var specs []evidence.CellSpec
	for _, c := range cells() {
		specs = append(specs, c.spec())
	}
	return specs
}

// ErrNoCell is for a name that no cell has.
var ErrNoCell = errors.New("not a cell")

// choose finds the cells of a suite, or of those named: each name is a whole id, or
// the part of it before its variant.
func choose(suite string, only []string) ([]cell, error) {
	if !slices.Contains([]string{SuiteCases, SuiteFaults, SuiteTransport, SuiteAll}, suite) {
		return nil, fmt.Errorf("%w: there is no suite %q; there are %s, %s, %s and %s", ErrNoCell, suite, SuiteCases, SuiteFaults, SuiteTransport, SuiteAll)
	}
	var chosen []cell
	named := map[string]bool{}
	for _, c := range cells() {
		if suite != SuiteAll && c.suite != suite {
			continue
		}
		if len(only) == 0 {
			chosen = append(chosen, c)
			continue
		}
		for _, name := range only {
			if name == c.id || strings.HasPrefix(c.id, name+"-") {
				named[name] = true
				if !slices.ContainsFunc(chosen, func(o cell) bool { return o.id == c.id }) {
					chosen = append(chosen, c)
				}
			}
		}
	}
	for _, name := range only {
		if !named[name] {
			return nil, fmt.Errorf("%w: there is no cell %q in suite %s", ErrNoCell, name, suite)
		}
	}
	return chosen, nil
}
