package main

import (
	"math"
	"time"

	"mcpreplay"
	"mcpreplay/internal/lab"
	"mcpreplay/sqlite"

	"github.com/spf13/cobra"
)

// labFlags are what only tests and the lab may set. A nil *labFlags sets nothing.
type labFlags struct {
	clock          float64
	clockSet       bool
	fault          string
	stateKey       string
	fingerprintKey string
}

func newLab(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Reproduce failures",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLabServe(e))
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
authority, and a named fault ends it in the middle of a write:

  drop-after-commit                exit 70  committed, and not answered
  exit-after-ledger-insert         exit 71  record inserted, effect not run
  exit-after-issue-insert          exit 72  effect run, not committed
  exit-after-partial-first-commit  exit 73  first of several steps committed`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd, true); err != nil {
				return err
			}
			lf.clockSet = cmd.Flags().Changed("clock")
			return serve(cmd.Context(), e, &f, &lf)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&lf.clock, "clock", 0, "seconds since 1970 at which the clock stands still")
	flags.StringVar(&lf.fault, "fault", "", "point at which the process ends")
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
		wrap, err = lab.Fault(f.fault)
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
