package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/spf13/cobra"
)

// restoreView is what a restore put into place. Its members are a contract:
// docs/cli.md.
type restoreView struct {
	Ledger     ledgerView    `json:"ledger"`
	Operations int           `json:"operations"`
	Events     int           `json:"events"`
	Unsettled  int           `json:"unsettled"`
	Findings   []findingView `json:"findings"`
	Replaced   *string       `json:"replaced"` // null if there was nothing
}

// maxIncarnation bounds what may be given as an incarnation that was seen.
const maxIncarnation = 1000

type restoreFlags struct {
	ledger, reason, by       string
	replace, declare, asJSON bool
	after                    int64
	maxJump                  time.Duration
}

func newRestore(e *env) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore (BACKUP | --declare) --ledger sqlite:PATH --reason TEXT",
		Short: "Put a backup in the place of a ledger, and say so in it",
		Long: `Puts a copy of BACKUP where the ledger was, as its next incarnation: a client that
knows what came after the backup sees that this ledger cannot settle it. The copy
is declared and proved consistent before it gets the ledger's name; cut off at any
point, the old ledger is there or the declared one. A ledger that is there stays,
unless --replace moves it aside; no process may have it open then.

--declare is for a ledger that was put back by other means, such as a snapshot: it
only says so. Do it before the servers are started.

What was done since the backup is not in the ledger. An id that a server minted
before the restore stays unknown; one that a caller chose is new work if it is sent
again. If a backup was restored before and that ledger is gone, give its
incarnation as --after-incarnation. The key file is not part of a backup.`,
		Example: `  mcpreplay restore issues-monday.db --ledger sqlite:issues.db --replace --reason "disk 3 broke"
  mcpreplay restore --declare --ledger sqlite:issues.db --reason "snapshot of Monday"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			by, err := f.check(args)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if f.declare {
				return f.declareRestore(ctx, e, by)
			}
			return f.restore(ctx, e, args[0], by)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.ledger, "ledger", "", "the ledger: `sqlite:PATH`")
	flags.StringVar(&f.reason, "reason", "", "why, for the record: `TEXT`")
	flags.StringVar(&f.by, "by", "", "your `NAME` (default: the user of this system)")
	flags.BoolVar(&f.replace, "replace", false, "move a ledger that is there aside")
	flags.BoolVar(&f.declare, "declare", false, "the ledger is there already: only say that it was restored")
	flags.Int64Var(&f.after, "after-incarnation", 0, "latest incarnation that a client may have seen")
	flags.DurationVar(&f.maxJump, "max-clock-jump", 366*24*time.Hour, "how far the clock may be ahead of the backup; negative: any")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("declare", "replace")
	return cmd
}

// check refuses what cannot be meant, and returns who acts.
func (f *restoreFlags) check(args []string) (by string, err error) {
	switch {
	case f.declare && len(args) > 0:
		return "", misused("leave one of them out", "both a backup and --declare are given")
	case !f.declare && (len(args) != 1 || args[0] == ""):
		return "", misused("see mcpreplay restore --help", "give one BACKUP (got %d)", len(args))
	case f.ledger == "":
		return "", misused("name one with --ledger sqlite:PATH", "no ledger given")
	case strings.TrimSpace(f.reason) == "":
		return "", misused("say it with --reason TEXT: clients will ask what became of the rest", "no reason given")
	case len(f.reason) > guard.MaxReason || !utf8.ValidString(f.reason):
		return "", misused("", "the reason must be at most %d bytes of UTF-8", guard.MaxReason)
	case f.after < 0 || f.after > maxIncarnation:
		return "", misused("status and verify tell the incarnation of a ledger", "--after-incarnation must be 0 to %d", maxIncarnation)
	}
	return operator(f.by)
}

func (f *restoreFlags) restore(ctx context.Context, e *env, backup, by string) error {
	path, err := ledgerPath(f.ledger)
	if err != nil {
		return err
	}
	r, err := sqlite.Restore(ctx, backup, path, sqlite.Restoring{
		Actor: by, Reason: f.reason, Replace: f.replace, After: f.after, MaxClockJump: f.maxJump,
	})
	switch {
	case errors.Is(err, sqlite.ErrInUse):
		return failed(err, "stop its servers, and every command that looks at it")
	case errors.Is(err, sqlite.ErrNotSound):
		return failed(err, "nothing was changed: try an older backup")
	case errors.Is(err, fs.ErrExist):
		return failed(err, "nothing was changed: --replace moves a ledger that is there aside; a log without its ledger is yours to move")
	case errors.Is(err, mcpreplay.ErrClock):
		return failed(err, "nothing was changed: correct the clock, or allow it with --max-clock-jump")
	case err != nil:
		return failed(err, "the ledger's name leads to what it led to before, or to the restored one: mcpreplay verify tells")
	}
	return f.tell(e, r)
}

// declareRestore says of a ledger that is in its place that it was restored.
func (f *restoreFlags) declareRestore(ctx context.Context, e *env, by string) error {
	s, err := openToWrite(ctx, f.ledger)
	if err != nil {
		return err
	}
	defer s.Close()
	declarer, ok := s.(interface {
		DeclareRestore(ctx context.Context, actor, reason string) (mcpreplay.Info, error)
	})
	if !ok {
		return misused("see the documentation of its store", "a restore of this ledger cannot be declared")
	}
	var r sqlite.Restored
	for first := true; first || r.Ledger.Incarnation <= f.after; first = false {
		if r.Ledger, err = declarer.DeclareRestore(ctx, by, f.reason); err != nil {
			return failed(err, "the restore may not be declared: mcpreplay verify tells the incarnation")
		}
	}
	if r.Report, err = mcpreplay.Verify(ctx, s); err != nil {
		return failed(fmt.Errorf("the restore is declared; verify: %w", err), "")
	}
	if err := f.tell(e, r); err != nil {
		return err
	}
	if !r.Report.Consistent() {
		return failed(fmt.Errorf("the restore is declared, and the ledger is not consistent: %s", count(len(r.Report.Findings), "finding")), "do not serve it: restore another backup")
	}
	return nil
}

func (f *restoreFlags) tell(e *env, r sqlite.Restored) error {
	v := restoreView{
		Ledger: viewLedger(r.Ledger), Operations: r.Report.Operations, Events: r.Report.Events,
		Unsettled: r.Report.Unsettled, Findings: []findingView{},
	}
	for _, found := range r.Report.Findings {
		v.Findings = append(v.Findings, findingView(found))
	}
	if r.Replaced != "" {
		v.Replaced = &r.Replaced
	}
	return e.reply(f.asJSON, v, v.print)
}

func (v restoreView) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "restored: %s, %s, %d unsettled\n%s\n", count(v.Operations, "operation"), count(v.Events, "event"), v.Unsettled, v.Ledger.line())
	for _, f := range v.Findings {
		if err == nil {
			_, err = fmt.Fprintf(w, "  %s  %s: %s\n", plain(f.OperationID), f.Rule, plain(f.Detail))
		}
	}
	if err == nil && v.Replaced != nil {
		_, err = fmt.Fprintf(w, "what was there is now %s\n", *v.Replaced)
	}
	return err
}
