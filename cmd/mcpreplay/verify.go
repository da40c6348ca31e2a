package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"mcpreplay"
	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"

	"github.com/spf13/cobra"
)

// verifyView is what verify tells of a ledger. Its members are a contract:
// docs/cli.md.
type verifyView struct {
	Ledger     ledgerView    `json:"ledger"`
	Consistent bool          `json:"consistent"`
	Operations int           `json:"operations"`
	Events     int           `json:"events"`
	Unsettled  int           `json:"unsettled"`
	Forgotten  *forgotten    `json:"forgotten,omitempty"`
	Findings   []findingView `json:"findings"`
	Restores   []declaration `json:"restores"`
}

type ledgerView struct {
	Backend string `json:"backend"`
	mcpreplay.LedgerRef
	Time string `json:"time"`
}

// declaration is a restore that was declared, and began an incarnation.
type declaration struct {
	Incarnation int64  `json:"incarnation"`
	After       int64  `json:"after"`
	Until       int64  `json:"until"`
	Actor       string `json:"actor"`
	Reason      string `json:"reason"`
	At          string `json:"at"`
}

func viewRestores(all []mcpreplay.Restore) []declaration {
	out := make([]declaration, 0, len(all))
	for _, r := range all {
		out = append(out, declaration{r.Incarnation, r.After, r.Until, r.Actor, r.Reason, timeText(r.At)})
	}
	return out
}

// forgotten is what a ledger holds no longer.
type forgotten struct {
	Operations int64  `json:"operations"`
	Events     int64  `json:"events"`
	Before     string `json:"before"` // ids that were minted before have a record or are refused
}

type findingView struct {
	OperationID string `json:"operationId"`
	Rule        string `json:"rule"`
	Detail      string `json:"detail"`
}

func newVerify(e *env) *cobra.Command {
	var ledger string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify PATH | verify --ledger sqlite:PATH",
		Short: "Prove a ledger consistent, or recheck the evidence of an attempt",
		Long: `Of a ledger, which is a file, checks every record against its history and all of
them against each other. It only reads, and may run while servers write. An
operation in progress that has no live owner is counted and is no finding: its
outcome is unknown, which is no fault of the ledger.

Of an attempt of the lab, which is a directory, checks that nothing is missing,
added or changed, and derives every fact again from the transcripts and databases
alone. It starts nothing, follows no link, and changes nothing.

Exit code 0 says that there is nothing wrong, 1 that there is.`,
		Example: `  mcpreplay verify --ledger sqlite:issues.db
  mcpreplay verify attempt`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return proveLedger(cmd.Context(), e, ledger, asJSON)
			}
			if ledger != "" {
				return misused("verify one of them", "both a path and --ledger are given")
			}
			info, err := os.Stat(args[0])
			switch {
			case err != nil:
				return failed(err, "name a ledger's file, or the directory of an attempt")
			case info.IsDir():
				return verifyAttempt(cmd.Context(), e, args[0], asJSON)
			}
			return proveLedger(cmd.Context(), e, "sqlite:"+args[0], asJSON)
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `sqlite:PATH` or postgres:URL")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func proveLedger(ctx context.Context, e *env, ledger string, asJSON bool) error {
	s, err := lookAt(ctx, ledger)
	if err != nil {
		return err
	}
	defer s.Close()
	v, err := verifyLedger(ctx, s)
	if err != nil {
		return failed(err, "")
	}
	if err := e.reply(asJSON, v, v.print); err != nil {
		return err
	}
	if !v.Consistent {
		return failed(fmt.Errorf("the ledger is not consistent: %s", count(len(v.Findings), "finding")), "stop writing to it, keep a copy, and restore it from a backup")
	}
	return nil
}

// attemptView is what verify tells of an attempt. Its members are a contract:
// docs/cli.md.
type attemptView struct {
	Attempt  string `json:"attempt"`
	Verified bool   `json:"verified"`
	evidence.Report
}

func verifyAttempt(ctx context.Context, e *env, dir string, asJSON bool) error {
	r, err := evidence.Verify(ctx, dir, lab.Cells())
	if err != nil {
		return failed(err, "name the directory of an attempt")
	}
	v := attemptView{Attempt: dir, Verified: len(r.Problems) == 0, Report: r}
	if err := e.reply(asJSON, v, v.print); err != nil {
		return err
	}
	switch {
	case !v.Verified:
		return failed(fmt.Errorf("the evidence does not hold: %s", count(len(r.Problems), "problem")), "")
	case !r.Summary.Good():
		return failed(errors.New("the evidence holds, and it is of an attempt that did not pass"), "")
	}
	return nil
}

func (v attemptView) print(w io.Writer) error {
	verdict := "verified"
	if !v.Verified {
		verdict = fmt.Sprintf("NOT verified: %s", count(len(v.Problems), "problem"))
	}
	_, err := fmt.Fprintf(w, "%s\ninventory  %s\n%s\n", sumText(v.Summary), v.Inventory, verdict)
	if err == nil && len(v.Unasked) > 0 {
		_, err = fmt.Fprintf(w, "not asked for, and not shown: %s\n", strings.Join(v.Unasked, " "))
	}
	for _, p := range v.Problems {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %s  %s: %s\n", plain(p.File), p.Rule, plain(p.Detail))
		}
	}
	return err
}

func verifyLedger(ctx context.Context, s mcpreplay.Store) (*verifyView, error) {
	info, err := s.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	r, err := mcpreplay.Verify(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("verify the ledger: %w", err)
	}
	v := &verifyView{
		Ledger:     viewLedger(info),
		Consistent: r.Consistent(),
		Operations: r.Operations,
		Events:     r.Events,
		Unsettled:  r.Unsettled,
		Findings:   []findingView{},
		Restores:   viewRestores(info.Restores),
	}
	if f := info.Forgotten; f.Operations > 0 {
		v.Forgotten = &forgotten{f.Operations, f.Events, timeText(f.Before)}
	}
	for _, f := range r.Findings {
		v.Findings = append(v.Findings, findingView(f))
	}
	return v, nil
}

func (v *verifyView) print(w io.Writer) error {
	verdict := "consistent"
	if !v.Consistent {
		verdict = fmt.Sprintf("NOT consistent: %s", count(len(v.Findings), "finding"))
	}
	_, err := fmt.Fprintf(w, "%s, %s, %d unsettled\n%s\n", count(v.Operations, "operation"), count(v.Events, "event"), v.Unsettled, verdict)
	if f := v.Forgotten; f != nil && err == nil {
		_, err = fmt.Fprintf(w, "  forgotten: operations %d, with events %d, of ids minted before %s\n", f.Operations, f.Events, f.Before)
	}
	for _, r := range v.Restores {
		if err == nil {
			_, err = fmt.Fprintf(w, "  incarnation %d since %s, restored to position %d by %s: %q\n", r.Incarnation, r.At, r.After, plain(r.Actor), r.Reason)
		}
	}
	for _, f := range v.Findings {
		if err == nil {
			of := plain(f.OperationID)
			if f.OperationID == "" {
				of = "the ledger"
			}
			_, err = fmt.Fprintf(w, "  %s  %s: %s\n", of, f.Rule, plain(f.Detail))
		}
	}
	return err
}

// count is n things, in words.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
