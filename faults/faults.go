// Package faults makes things go wrong by wrapping a seam, so that production code
// has no switch for it. Around a store, [Wrap] strikes at a named point of the write
// path. Between a client and a server over HTTP, an [Intermediary] loses, spoils,
// repeats or reorders what passes, and records both of its sides.
package faults

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Fault is what happens where. It happens once.
type Fault struct {
	Action Action
	Point  Point
	Write  int // of the points that count writes: which one, from 1
}

// Action is what a fault does at its point. The names are stable.
type Action string

// The actions.
const (
	Exit  Action = "exit"  // the process ends, with the point's code
	Fail  Action = "error" // the effect or, outside it, the store returns an error
	Panic Action = "panic" // the effect panics
	Hold  Action = "hold"  // it waits until it may go on
)

// Point names a moment of the write path. The names are stable.
type Point string

// The points. An operation of one transaction reaches the first five; one of
// several reaches AfterLedgerInsert when its claim is committed, AfterIssueInsert
// in its first step before that is committed, and AfterCommit when its outcome is.
const (
	BeforeWrite       Point = "before-write"        // every check is made, the store is not asked yet
	AfterLedgerInsert Point = "after-ledger-insert" // the record is inserted, no effect has run
	AfterIssueInsert  Point = "after-issue-insert"  // the effect has run and is not committed
	AfterCommit       Point = "after-commit"        // the outcome is committed, its reply is not sent
	AfterRollback     Point = "after-rollback"      // the effect failed and is rolled back, and nobody was told

	AfterPartialFirstCommit Point = "after-partial-first-commit" // the first step of several is committed

	// InWrite and AfterWrite count the transactions of an operation, such as
	// after-write-4. Renewals of a lease do not count. InWrite is before it is
	// committed, and only in those that run a part of the effect: in the others
	// nothing lies between the commit before and their own.
	InWrite    Point = "in-write"
	AfterWrite Point = "after-write"
)

// codes are what the process exits with. They are stable.
var codes = map[Point]int{
	AfterCommit:             70,
	AfterLedgerInsert:       71,
	AfterIssueInsert:        72,
	AfterPartialFirstCommit: 73,
	AfterRollback:           74,
	BeforeWrite:             75,
	InWrite:                 76,
	AfterWrite:              77,
}

// within are the points inside an effect.
var within = map[Point]bool{AfterLedgerInsert: true, AfterIssueInsert: true, InWrite: true}

// DropAfterCommit is the name that exit-after-commit has had for longest: the reply
// is dropped after the commit.
const DropAfterCommit = "drop-after-commit"

// Code is the exit code of a fault that ends the process.
func (f Fault) Code() int { return codes[f.Point] }

func (f Fault) String() string {
	name := string(f.Action) + "-" + string(f.Point)
	if f.Write > 0 {
		name += "-" + strconv.Itoa(f.Write)
	}
	return name
}

// Parse reads a fault: an action and a point, such as hold-before-write. An unknown
// name is an error: a misspelt fault that is never injected would pass for a fault
// survived.
func Parse(name string) (Fault, error) {
	text := name
	if text == DropAfterCommit {
		text = string(Exit) + "-" + string(AfterCommit)
	}
	action, point, _ := strings.Cut(text, "-")
	f := Fault{Action: Action(action), Point: Point(point)}
	for _, counting := range []Point{InWrite, AfterWrite} {
		if n, ok := strings.CutPrefix(point, string(counting)+"-"); ok {
			f.Point = counting
			if f.Write, _ = strconv.Atoi(n); f.Write < 1 || strconv.Itoa(f.Write) != n {
				return Fault{}, fmt.Errorf("fault %q counts no write", name)
			}
		}
	}
	_, known := codes[f.Point]
	counts := f.Point == InWrite || f.Point == AfterWrite
	if !known || counts != (f.Write > 0) || !slices.Contains([]Action{Exit, Fail, Panic, Hold}, f.Action) {
		return Fault{}, fmt.Errorf("unknown fault %q; a fault is %s, or exit, error, panic or hold, then - and one of %s", name, DropAfterCommit, points())
	}
	switch {
	case f.Action == Panic && !within[f.Point]:
		return Fault{}, fmt.Errorf("fault %q: only an effect panics, at after-ledger-insert, after-issue-insert or in-write-N", name)
	case f.Action == Fail && (f.Point == AfterRollback || f.Point == AfterPartialFirstCommit || f.Point == AfterWrite):
		return Fault{}, fmt.Errorf("fault %q: there is nothing to fail there", name)
	}
	return f, nil
}

func points() string {
	names := make(map[string]bool)
	for p := range codes {
		name := string(p)
		if p == InWrite || p == AfterWrite {
			name += "-N"
		}
		names[name] = true
	}
	return listNames(names)
}

func listNames[Name ~string, V any](known map[Name]V) string {
	var names []string
	for name := range known {
		names = append(names, string(name))
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
