package main

import (
	"math"
	"os"
	"time"

	"mcpreplay"
	"mcpreplay/faults"
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
	fault          string
	probe          string
	unguarded      bool
	stateKey       string
	fingerprintKey string
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
authority, and a fault can strike once in the middle of a write. A fault is an
action (exit, error, panic or hold), "-" and one of the points:

  before-write                 exit 75  checked, the ledger not asked yet
  after-ledger-insert          exit 71  record inserted, effect not run
  after-issue-insert           exit 72  effect run, not committed
  after-commit                 exit 70  committed, and not answered
  after-rollback               exit 74  failed and rolled back, and not answered
  after-partial-first-commit   exit 73  first of several steps committed
  in-write-N, after-write-N    76, 77   Nth transaction of several: before and after its commit

drop-after-commit is another name of exit-after-commit. What holds waits until the
lab's probe lets it go on.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd, true); err != nil {
				return err
			}
			lf.clockSet = cmd.Flags().Changed("clock")
			if lf.unguarded && lf.fault != "" && lf.fault != faults.DropAfterCommit {
				return misused("give it "+faults.DropAfterCommit+", or none", "--unguarded has no such point of its write path")
			}
			return serve(cmd.Context(), e, &f, &lf)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&lf.clock, "clock", 0, "seconds since 1970 at which the clock stands still")
	flags.StringVar(&lf.fault, "fault", "", "what goes wrong, and where")
	flags.StringVar(&lf.probe, "probe", "", "address at which the lab waits for a fault that holds")
	flags.BoolVar(&lf.unguarded, "unguarded", false, "serve the same tool without a guard, which does its work as often as it is asked")
	flags.StringVar(&lf.stateKey, "state-key-hex", "", "secret that seals request state, in hexadecimal")
	flags.StringVar(&lf.fingerprintKey, "fingerprint-key-hex", "", "secret of the fingerprints, in hexadecimal (default: the one of request state)")
	cmd.MarkFlagsMutuallyExclusive("state-key-hex", "key-file")
	return cmd
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
	if f.fault != "" {
		wrap, err = lab.Fault(f.fault, f.probe)
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
		if f.fault == faults.DropAfterCommit {
			os.Exit(faults.Fault{Point: faults.AfterCommit}.Code())
		}
	})
}
