package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"

	"github.com/spf13/cobra"
)

func newLabRun(e *env) *cobra.Command {
	var o lab.Options
	var ledger string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "run --out NEW_DIR",
		Short: "Play cells against real server processes, and keep the evidence",
		Long: `Plays each cell against server processes of this very binary, over the transport
that it names, and keeps raw transcripts and databases in an attempt directory. The
facts of a cell are then derived from those files alone and held against what the
cell must show.

Exit code 0 says that every requested cell was executed and passed, and that every
control failed as it must: a lab whose controls pass is blind.`,
		Example: `  mcpreplay lab run --out attempt
  mcpreplay lab run --only 03,07 --out attempt
  mcpreplay verify attempt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Dir == "" {
				return misused("name a directory that does not exist with --out", "an attempt needs a directory")
			}
			if ledger != "sqlite" {
				return misused("run it with sqlite", "--ledger %q: the lab has no such ledger", ledger)
			}
			if o.Parallel < 1 {
				return misused("play one at a time with --parallel 1", "--parallel %d plays nothing", o.Parallel)
			}
			return runLab(cmd.Context(), e, o, asJSON)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Dir, "out", "", "directory of the attempt, which must not exist")
	flags.StringVar(&o.Suite, "suite", lab.SuiteAll, "cells to play: cases, faults, transport or all")
	flags.StringSliceVar(&o.Only, "only", nil, "cells to play, by id or by what their ids begin with: 03, 03-http")
	flags.StringVar(&ledger, "ledger", "sqlite", "kind of ledger the servers keep")
	flags.IntVar(&o.Parallel, "parallel", 4, "how many cells are played at once")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// labView is what a run comes to. Its members are a contract: docs/cli.md.
type labView struct {
	Attempt   string           `json:"attempt"`
	Summary   evidence.Summary `json:"summary"`
	Passed    bool             `json:"passed"`
	Inventory string           `json:"inventory"`
}

func runLab(ctx context.Context, e *env, o lab.Options, asJSON bool) error {
	var err error
	if o.Exe, err = os.Executable(); err != nil {
		return failed(err, "run the installed binary")
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return failed(err, "name a directory with --out")
	}
	o.Commit, o.Dirty = checkout()
	o.Progress = progress(e.stderr)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	sum, digest, err := lab.Run(ctx, o)
	switch {
	case errors.Is(err, fs.ErrExist):
		return failed(fmt.Errorf("%s exists", o.Dir), "an attempt is never overwritten: name a directory that does not exist with --out")
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return failed(err, "name a new directory in one that exists with --out")
	case errors.Is(err, lab.ErrNoCell):
		return misused("see mcpreplay lab list", "%w", err)
	case err != nil:
		return failed(err, "")
	}
	v := labView{Attempt: o.Dir, Summary: sum, Passed: sum.Good(), Inventory: digest}
	if err := e.reply(asJSON, v, v.print); err != nil {
		return err
	}
	if !v.Passed {
		return failed(fmt.Errorf("%s", sumText(sum)), fmt.Sprintf("mcpreplay lab show CELL --from %s tells what a cell showed", o.Dir))
	}
	return nil
}

func sumText(s evidence.Summary) string {
	return fmt.Sprintf("of %d cells %d were executed: %d passed, %d failed, %d could not be played; %d of %d controls were detected",
		s.Requested, s.Executed, s.Passed, s.Failed, s.MachineryErrors, s.Detected, s.Controls)
}

func (v labView) print(w io.Writer) error {
	verdict := "all passed"
	if !v.Passed {
		verdict = "NOT all passed"
	}
	_, err := fmt.Fprintf(w, "%s\n%s\nattempt    %s\ninventory  %s\n", verdict, sumText(v.Summary), v.Attempt, v.Inventory)
	return err
}

// progress tells of each cell: on a terminal what passed is told in one line that
// is written over, elsewhere each has its own.
func progress(w io.Writer) func(evidence.Result, time.Duration, int, int) {
	file, _ := w.(*os.File)
	terminal := false
	if file != nil {
		if info, err := file.Stat(); err == nil {
			terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return func(r evidence.Result, took time.Duration, n, of int) {
		line := fmt.Sprintf("%*d/%d  %-15s  %6.2f s  %s", len(fmt.Sprint(of)), n, of, r.Status, took.Seconds(), r.Cell)
		if r.Machinery != "" {
			line += ": " + plain(r.Machinery)
		}
		end := "\n"
		if terminal && r.Status == evidence.Passed && n < of {
			end = "\r"
		}
		if terminal {
			line = "\x1b[K" + line
		}
		fmt.Fprint(w, line, end)
	}
}

// checkout is the commit of the source that the command is run in, if it is this
// module's: "go run" does not stamp what it builds.
func checkout() (commit string, dirty *bool) {
	mod, err := os.ReadFile("go.mod")
	if err != nil || !strings.HasPrefix(string(mod), "module mcpreplay\n") {
		return "", nil
	}
	head, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return "", nil
	}
	changes, err := exec.Command("git", "status", "--porcelain").Output()
	if err != nil {
		return "", nil
	}
	changed := len(changes) > 0
	return strings.TrimSpace(string(head)), &changed
}
