package main

import (
	"context"
	"fmt"
	"io"

	"mcpreplay"

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
	Findings   []findingView `json:"findings"`
}

type ledgerView struct {
	Backend string `json:"backend"`
	mcpreplay.LedgerRef
	Time string `json:"time"`
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
		Use:   "verify --ledger sqlite:PATH",
		Short: "Prove a ledger consistent",
		Long: `Checks every record of the ledger against its history and all of them against
each other. It only reads, and may run while servers write.

An operation in progress that has no live owner is counted and is no finding: its
outcome is unknown, which is no fault of the ledger.

Exit code 0 says that the ledger is consistent, 1 that there are findings.`,
		Example: `  mcpreplay verify --ledger sqlite:issues.db`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return misused("verify a ledger with --ledger sqlite:PATH", "a directory of evidence cannot be verified by this version")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := openReadOnly(ledger)
			if err != nil {
				return err
			}
			defer s.Close()
			v, err := verifyLedger(cmd.Context(), s)
			if err != nil {
				return failed(err, "")
			}
			if asJSON {
				err = printJSON(e.stdout, v)
			} else {
				err = v.print(e.stdout)
			}
			if err != nil {
				return failed(err, "")
			}
			if !v.Consistent {
				return failed(fmt.Errorf("the ledger is not consistent: %s", count(len(v.Findings), "finding")), "stop writing to it, keep a copy, and restore it from a backup")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `sqlite:PATH`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
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
		Ledger:     ledgerView{Backend: info.Backend, LedgerRef: info.Ref(), Time: timeText(info.Time)},
		Consistent: r.Consistent(),
		Operations: r.Operations,
		Events:     r.Events,
		Unsettled:  r.Unsettled,
		Findings:   []findingView{},
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
