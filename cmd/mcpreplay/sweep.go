package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/spf13/cobra"
)

// sweepView is what sweep did. Its members are a contract: docs/cli.md.
type sweepView struct {
	Complete bool  `json:"complete"` // the end of the ledger was reached
	Looked   int   `json:"looked"`
	Dropped  int   `json:"dropped"`
	Bytes    int64 `json:"bytes"`
}

func newSweep(e *env) *cobra.Command {
	var ledger string
	var grace time.Duration
	var acknowledged, asJSON bool
	cmd := &cobra.Command{
		Use:   "sweep --ledger sqlite:PATH",
		Short: "Drop the bytes of results that nobody may replay any more",
		Long: `Drops the bytes of results whose time to be replayed ended at least --grace ago,
and with --acknowledged also those that their callers said they have. Nothing else
goes: every record, every event, and the digest and size of every result stay, so
that an old operation id never becomes new work.

It goes in small chunks with pauses, and may run beside servers and other sweeps.
It tells on stderr how far it is. Interrupted, it ends after a chunk with exit
code 1; the next one goes on with what is left.`,
		Example: `  mcpreplay sweep --ledger sqlite:issues.db --grace 720h`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if grace < 0 {
				return misused("give it as a duration, such as 24h, or 0", "--grace is below zero")
			}
			s, err := openToWrite(cmd.Context(), ledger)
			if err != nil {
				return err
			}
			defer s.Close()
			return sweep(cmd.Context(), e, s, mcpreplay.SweepPolicy{Grace: grace, Acknowledged: acknowledged}, asJSON)
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `sqlite:PATH`")
	cmd.Flags().DurationVar(&grace, "grace", guard.SweepGrace, "how long a result is kept after the time to replay it")
	cmd.Flags().BoolVar(&acknowledged, "acknowledged", false, "also drop what callers have acknowledged")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// progressEvery is how often a sweep says how far it is.
const progressEvery = time.Second

func sweep(ctx context.Context, e *env, s mcpreplay.Store, p mcpreplay.SweepPolicy, asJSON bool) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	told := time.Now()
	swept, err := guard.Sweep(ctx, s, p, func(so mcpreplay.Swept) {
		if time.Since(told) >= progressEvery {
			told = time.Now()
			fmt.Fprintf(e.stderr, "looked at %s, dropped %d\n", count(so.Looked, "result"), so.Dropped)
		}
	})
	v := sweepView{Complete: err == nil, Looked: swept.Looked, Dropped: swept.Dropped, Bytes: swept.Bytes}
	if err := e.reply(asJSON, v, v.print); err != nil {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return failed(errors.New("stopped before the end"), "what was dropped stays dropped; sweep again for the rest")
	case err != nil:
		return failed(fmt.Errorf("stopped before the end: %w", err), "what was dropped stays dropped; sweep again for the rest")
	}
	return nil
}

func (v sweepView) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "looked at %s, dropped %d (%d bytes)\n", count(v.Looked, "result"), v.Dropped, v.Bytes)
	return err
}
