package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/internal/issues"
	"mcpreplay/sqlite"

	"github.com/spf13/cobra"
)

// recoveryView is what recover-server tells. Its members are a contract: docs/cli.md.
type recoveryView struct {
	Looked     int             `json:"looked"`
	Live       int             `json:"live"`
	Settled    int             `json:"settled"`
	Unknown    int             `json:"unknown"`
	Operations []recoveredView `json:"operations"`
}

type recoveredView struct {
	OperationID string          `json:"operationId"`
	Principal   string          `json:"principal"`
	State       mcpreplay.State `json:"state"` // as the ledger holds it now
}

func newRecoverServer(e *env) *cobra.Command {
	var f serveFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "recover-server --ledger sqlite:PATH",
		Short: "Settle what the dead owners of a ledger left in progress",
		Long: `Looks at every operation of the issue tracker that is in progress and whose owner
is gone, and settles what can be known of it: by the steps that the ledger holds.
No effect is run. Servers may run meanwhile; they do the same by themselves.

Exit code 0 says that nothing is left unknown, and 3 that something is: see
mcpreplay status of the operation, and mcpreplay resolve.`,
		Example: `  mcpreplay recover-server --ledger sqlite:issues.db`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := recoverServer(cmd.Context(), e, &f)
			if err != nil {
				return err
			}
			if err := e.reply(asJSON, v, v.print); err != nil {
				return err
			}
			if v.Unknown > 0 {
				return &commandError{code: exitUnknown}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&f.ledger, "ledger", "", "the ledger: `sqlite:PATH`")
	cmd.Flags().StringVar(&f.keyFile, "key-file", "", "file of secrets of its servers (default: the ledger's path and .keys)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func recoverServer(ctx context.Context, e *env, f *serveFlags) (*recoveryView, error) {
	look, err := openReadOnly(f.ledger)
	if err != nil {
		return nil, err
	}
	info, err := look.Info(ctx)
	look.Close()
	if err != nil {
		return nil, failed(fmt.Errorf("read the ledger: %w", err), "")
	}
	path, err := ledgerPath(f.ledger)
	if err != nil {
		return nil, err
	}
	ring, err := f.keys(path, nil)
	if err != nil {
		return nil, err
	}
	store, err := openLedger(path, &sqlite.Options{Backend: info.Backend})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	log := slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	g, err := guard.New(store, &guard.Options{Keys: ring.seal, FingerprintKeys: ring.fingerprint, Logger: log})
	if err != nil {
		return nil, failed(err, "")
	}
	issues.NewServer(g, store, issues.Options{Version: buildVersion(), Outside: outside(store, store)}) // whose tools it has
	v := &recoveryView{Operations: []recoveredView{}}
	r, err := g.Recover(ctx, func(rec mcpreplay.Record) {
		v.Operations = append(v.Operations, recoveredView{OperationID: rec.ID, Principal: rec.Principal, State: rec.State})
	})
	if err != nil {
		return nil, failed(err, "run it again: what is settled stays settled")
	}
	v.Looked, v.Live, v.Settled, v.Unknown = r.Looked, r.Live, r.Settled, r.Unknown
	return v, nil
}

func (v *recoveryView) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, o := range v.Operations {
		fmt.Fprintf(t, "%s\t%s\tof %s\n", plain(o.OperationID), o.State, plain(o.Principal))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d in progress: %d with a live owner, %d settled now, %d unknown\n", v.Looked, v.Live, v.Settled, v.Unknown)
	return err
}
