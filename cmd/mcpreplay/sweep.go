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

	Forgotten int `json:"forgotten"` // records that are gone
}

func newSweep(e *env) *cobra.Command {
	var ledger string
	var p mcpreplay.SweepPolicy
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sweep --ledger sqlite:PATH",
		Short: "Drop results that nobody may replay any more, and old records on demand",
		Long: `Drops the bytes of results whose time to be replayed ended at least --grace ago,
and with --acknowledged also those that their callers said they have. Every record,
every event, and the digest and size of every result stay, so that an old operation
id never becomes new work.

With --forget whole records go too, with their events: those under ids that a server
minted so long ago, once they are settled and their results might be dropped. Such
an id says itself how old it is, and is answered with "unknown" from then on. A
record under an id that a client chose is kept for ever, and so is one that is
unknown or in dispute.

It goes in small chunks with pauses, and may run beside servers and other sweeps.
It tells on stderr how far it is. Interrupted, it ends after a chunk with exit
code 1; the next one goes on with what is left.`,
		Example: `  mcpreplay sweep --ledger sqlite:issues.db --grace 720h`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.Grace < 0 {
				return misused("give it as a duration, such as 24h, or 0", "--grace is below zero")
			}
			if err := checkForget("forget", p.Forget); err != nil {
				return err
			}
			s, err := openToWrite(cmd.Context(), ledger)
			if err != nil {
				return err
			}
			defer s.Close()
			return sweep(cmd.Context(), e, s, p, asJSON)
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `sqlite:PATH`")
	cmd.Flags().DurationVar(&p.Grace, "grace", guard.SweepGrace, "how long a result is kept after the time to replay it")
	cmd.Flags().BoolVar(&p.Acknowledged, "acknowledged", false, "also drop what callers have acknowledged")
	cmd.Flags().DurationVar(&p.Forget, "forget", 0, "how long a record is kept after a server minted its id, at least 24h; 0: for ever")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// checkForget refuses a time to keep records that is too short to be meant.
func checkForget(flag string, d time.Duration) error {
	if d != 0 && d < guard.MinForget {
		return misused("give it as a duration, such as 2160h, or 0 to keep them for ever", "--%s is below %v", flag, guard.MinForget)
	}
	return nil
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
			fmt.Fprintf(e.stderr, "looked at %s, dropped %d%s\n", count(so.Looked, "result"), so.Dropped, forgot(so.Forgotten))
		}
	})
	v := sweepView{Complete: err == nil, Looked: swept.Looked, Dropped: swept.Dropped, Bytes: swept.Bytes, Forgotten: swept.Forgotten}
	if err := e.reply(asJSON, v, v.print); err != nil {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return failed(errors.New("stopped before the end"), "what is gone is gone; sweep again for the rest")
	case err != nil:
		return failed(fmt.Errorf("stopped before the end: %w", err), "what is gone is gone; sweep again for the rest")
	}
	return nil
}

func forgot(records int) string {
	if records == 0 {
		return ""
	}
	return ", forgot " + count(records, "record")
}

func (v sweepView) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "looked at %s, dropped %d (%d bytes)%s\n", count(v.Looked, "result"), v.Dropped, v.Bytes, forgot(v.Forgotten))
	return err
}
