package main

import (
	"context"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"mcpreplay"
	"mcpreplay/faults"
	"mcpreplay/guard"
	"mcpreplay/internal/issues"
	"mcpreplay/internal/lab"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"
)

// labFlags are what only tests and the lab may set. A nil *labFlags sets nothing.
type labFlags struct {
	clock          float64
	clockSet       bool
	faults         []string
	probe          string
	unguarded      bool
	untilEnd       bool
	stateKey       string
	fingerprintKey string
	lease          time.Duration
	wait           time.Duration
	maxResult      int
	maxFileSize    int64
}

func newLab(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Reproduce failures, and keep evidence that anyone can recheck",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLabList(e), newLabRun(e), newLabShow(e), newLabServe(e), newLabVectors(e))
	return cmd
}

func newLabServe(e *env) *cobra.Command {
	var f serveFlags
	var lf labFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the issue tracker with a clock that stands still, known keys or a fault",
		Long: `Serve the same server as "mcpreplay serve", for tests and the lab alone: its
clock can stand still, its keys can be given, its retention can be shorter than its
authority, its limits can be small, and faults can strike in the middle of a write,
each once. A fault is an action (exit, error, panic or hold), "-" and one of the
points:

  before-write                 exit 75  checked, the ledger not asked yet
  after-ledger-insert          exit 71  record inserted, effect not run
  after-issue-insert           exit 72  effect run, not committed or not recorded
  after-commit                 exit 70  committed, and not answered
  after-rollback               exit 74  failed and rolled back, and not answered
  after-partial-first-commit   exit 73  first of several steps committed
  in-write-N, after-write-N    76, 77   Nth transaction of several: before and after its commit

in-write-N strikes only in a transaction that runs a part of the effect.
drop-after-commit is another name of exit-after-commit. What holds waits until the
lab's probe lets it go on. Of several faults the first is the closest to the ledger.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd, true); err != nil {
				return err
			}
			lf.clockSet = cmd.Flags().Changed("clock")
			if lf.unguarded && len(lf.faults) > 0 && !lf.drops() {
				return misused("give it "+faults.DropAfterCommit+", or none", "--unguarded has no such point of its write path")
			}
			return serve(cmd.Context(), e, &f, &lf)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&lf.clock, "clock", 0, "seconds since 1970 at which the clock stands still")
	flags.StringSliceVar(&lf.faults, "fault", nil, "what goes wrong, and where; may be several, with commas between")
	flags.StringVar(&lf.probe, "probe", "", "address at which the lab waits for a fault that holds")
	flags.BoolVar(&lf.untilEnd, "until-eof", false, "over HTTP, end when standard input does")
	flags.BoolVar(&lf.unguarded, "unguarded", false, "serve the same tool without a guard, which does its work as often as it is asked")
	flags.StringVar(&lf.stateKey, "state-key-hex", "", "secret that seals request state, in hexadecimal")
	flags.StringVar(&lf.fingerprintKey, "fingerprint-key-hex", "", "secret of the fingerprints, in hexadecimal (default: the one of request state)")
	flags.DurationVar(&lf.lease, "lease", 30*time.Second, "how long the owner of a partial operation may be silent")
	flags.DurationVar(&lf.wait, "wait", 25*time.Second, "how long a call waits for the ledger or for another attempt")
	flags.IntVar(&lf.maxResult, "max-result", 1<<20, "bytes that a result may have")
	flags.Int64Var(&lf.maxFileSize, "max-file-size", 0, "bytes that a file may have before a write to it fails, as on a full disk; 0: any")
	cmd.MarkFlagsMutuallyExclusive("state-key-hex", "key-file")
	return cmd
}

// drops reports whether the one fault is the one that a server without a guard can
// have.
func (f *labFlags) drops() bool { return slices.Equal(f.faults, []string{faults.DropAfterCommit}) }

// tune sets the limits of the guard.
func (f *labFlags) tune(g *guard.Options) error {
	if f == nil {
		return nil
	}
	if f.lease <= 0 || f.wait <= 0 || f.maxResult <= 0 {
		return misused("leave the flag out, or give it a value above zero", "--lease, --wait or --max-result is not above zero")
	}
	g.Wait, g.MaxResult, g.Lease = f.wait, f.maxResult, f.lease
	return nil
}

// seams are the clock and the wrapping of the store. Without lab flags they
// change nothing.
func (f *labFlags) seams() (clock func() time.Time, wrap func(*sqlite.Store) mcpreplay.Applier[*sqlite.Tx], err error) {
	wrap = func(s *sqlite.Store) mcpreplay.Applier[*sqlite.Tx] { return s }
	if f == nil {
		return nil, wrap, nil
	}
	if f.clockSet {
		if math.IsNaN(f.clock) || f.clock < 0 || f.clock > 1<<34 {
			return nil, nil, misused("give it as seconds since 1970", "--clock is no time")
		}
		at := time.UnixMicro(int64(math.Round(f.clock * 1e6)))
		clock = func() time.Time { return at }
	}
	if f.maxFileSize != 0 {
		if err := limitFileSize(f.maxFileSize); err != nil {
			return nil, nil, misused("leave --max-file-size out", "--max-file-size: %w", err)
		}
	}
	if len(f.faults) > 0 {
		wrap, err = lab.Faults(f.faults, f.probe)
		if err != nil {
			return nil, nil, &commandError{code: exitMisused, err: err, hint: "see mcpreplay lab serve --help"}
		}
	}
	return clock, wrap, nil
}

func (f *labFlags) keys() (keys, error) {
	if f.stateKey == "" {
		return keys{}, misused("give both", "--fingerprint-key-hex without --state-key-hex")
	}
	seal, err := parseKey("state-key-hex", f.stateKey)
	if err != nil || f.fingerprintKey == "" {
		return keys{seal: seal, fingerprint: seal}, err
	}
	fingerprint, err := parseKey("fingerprint-key-hex", f.fingerprintKey)
	return keys{seal: seal, fingerprint: fingerprint}, err
}

// control is the server without a guard.
func (f *labFlags) control(s *sqlite.Store) *mcp.Server {
	return issues.NewUnguardedServer(s, buildVersion(), func() {
		if f.drops() {
			os.Exit(faults.Fault{Point: faults.AfterCommit}.Code())
		}
	})
}

// untilEOF ends the context with the input, if that was asked for: a server whose
// lab is gone must not stay.
func (f *labFlags) untilEOF(ctx context.Context, input io.Reader) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	if f != nil && f.untilEnd {
		go func() {
			io.Copy(io.Discard, input)
			stop()
		}()
	}
	return ctx, stop
}
