package lab

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"mcpreplay/internal/evidence"
)

// Options are what a run needs.
type Options struct {
	Exe    string   // the binary whose servers are run
	Dir    string   // of the attempt: new
	Suite  string   // "" is all
	Only   []string // cells, or none for the whole suite
	Commit string   // of the source, for a build that is not stamped; "" if unknown
	Dirty  *bool

	// Parallel is how many cells are played at once. Defaults to 4: they mostly
	// wait for processes.
	Parallel int

	// Progress is told of each cell as it ends. It is not called twice at once.
	Progress func(r evidence.Result, took time.Duration, n, of int)
}

// Run plays cells and keeps the evidence. The error is about the run itself; how
// the cells ended is in the summary. digest is that of the inventory.
func Run(ctx context.Context, o Options) (sum evidence.Summary, digest string, err error) {
	if o.Suite == "" {
		o.Suite = SuiteAll
	}
	chosen, err := choose(o.Suite, o.Only)
	if err != nil {
		return sum, "", err
	}
	if o.Parallel < 1 {
		o.Parallel = 4
	}
	provenance, err := evidence.Describe(o.Exe, o.Commit, o.Dirty)
	if err != nil {
		return sum, "", err
	}
	var specs []evidence.CellSpec
	for _, c := range chosen {
		specs = append(specs, c.spec())
	}
	attempt, err := evidence.Create(o.Dir, evidence.NewSpec(specs), provenance)
	if err != nil {
		return sum, "", err
	}
	r := &run{Options: o, attempt: attempt, of: len(chosen)}
	if err := r.all(ctx, chosen); err != nil {
		return sum, "", err
	}
	return attempt.Finish()
}

type run struct {
	Options
	attempt *evidence.Attempt
	of      int

	mu     sync.Mutex
	n      int
	failed error
}

// all plays the cells. One that the context leaves no time for is not executed,
// which the summary shows.
func (r *run) all(ctx context.Context, chosen []cell) error {
	next := make(chan cell)
	var wg sync.WaitGroup
	for range r.Parallel {
		wg.Go(func() {
			for c := range next {
				r.one(ctx, c)
			}
		})
	}
	for _, c := range chosen {
		if ctx.Err() != nil {
			break
		}
		next <- c
	}
	close(next)
	wg.Wait()
	return r.failed
}

func (r *run) one(ctx context.Context, c cell) {
	start := time.Now()
	facts, machinery := r.play(ctx, c)
	result := c.spec().Judge(facts, machinery)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	if err := r.attempt.Add(result); err != nil && r.failed == nil {
		r.failed = err
	}
	if r.Progress != nil {
		r.Progress(result, time.Since(start), r.n, r.of)
	}
}

// play plays a cell, and has its facts derived from what is in its directory then.
func (r *run) play(ctx context.Context, c cell) (facts evidence.Facts, machinery string) {
	dir, err := r.attempt.Cell(c.id)
	if err != nil {
		return nil, err.Error()
	}
	limited, cancel := context.WithTimeout(ctx, cellLimit)
	defer cancel()
	p := &play{
		ctx: limited, exe: r.Exe, dir: dir, transport: c.transport, protocol: c.protocol, unguarded: c.unguarded, op: c.op,
		clock: evidence.NewClock(),
	}
	played := p.perform(c.script)
	tidied := tidy(dir)
	// The evidence is read even of a cell that was not played to its end, and even
	// when there is no time left for the next.
	facts, err = evidence.Derive(context.WithoutCancel(ctx), r.attempt.Files(c.id))
	for _, err := range []error{played, tidied, err} {
		if err != nil {
			return facts, strings.ReplaceAll(err.Error(), r.Dir, "")
		}
	}
	return facts, ""
}

// tidy removes what is no evidence: SQLite makes the index of its log anew.
func tidy(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "-shm") {
			err = os.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("tidy the cell: %w", err)
		}
		return nil
	})
}
