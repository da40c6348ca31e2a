package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"mcpreplay"
	"mcpreplay/sqlite"

	"github.com/spf13/cobra"
)

// backupView is what a backup holds. Its members are a contract: docs/cli.md.
type backupView struct {
	Path       string     `json:"path"`
	Ledger     ledgerView `json:"ledger"`
	Operations int64      `json:"operations"`
	Bytes      int64      `json:"bytes"`
}

func newBackup(e *env) *cobra.Command {
	var ledger string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "backup OUT --ledger sqlite:PATH",
		Short: "Copy a ledger's file as servers write to it",
		Long: `Copies the whole file, the application's own tables included, as it is at one
moment, to a new file that only its owner may read. Servers may write meanwhile,
and do not wait. OUT appears whole and synced, or not at all; it must not exist.

The key file is not part of it: without its keys a restored ledger still tells
what became of its operations, but replays none. Keep both, and not in one place.`,
		Example: `  mcpreplay backup issues-monday.db --ledger sqlite:issues.db`,
		Args:    oneFile("OUT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			s, err := openReadOnly(ledger)
			if err != nil {
				return err
			}
			defer s.Close()
			return backup(ctx, e, s, args[0], asJSON)
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `sqlite:PATH`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// oneFile checks that the arguments of a command are one path.
func oneFile(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return misused("see "+cmd.CommandPath()+" --help", "give one %s (got %d)", what, len(args))
		}
		return nil
	}
}

func backup(ctx context.Context, e *env, s mcpreplay.Store, out string, asJSON bool) error {
	copier, ok := s.(interface {
		Backup(ctx context.Context, out string) (sqlite.Backup, error)
	})
	if !ok {
		return misused("use the backup of the database it is in", "only a ledger in a file can be backed up so")
	}
	b, err := copier.Backup(ctx, out)
	switch {
	case errors.Is(err, fs.ErrExist):
		return failed(err, "nothing is overwritten: name another file")
	case err != nil:
		return failed(err, "no backup was made")
	}
	v := backupView{Path: out, Ledger: viewLedger(b.Ledger), Operations: b.Operations, Bytes: b.Bytes}
	return e.reply(asJSON, v, v.print)
}

func viewLedger(info mcpreplay.Info) ledgerView {
	return ledgerView{Backend: info.Backend, LedgerRef: info.Ref(), Time: timeText(info.Time)}
}

func (v backupView) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s holds %s in %d bytes\n%s\n", v.Path, count(int(v.Operations), "operation"), v.Bytes, v.Ledger.line())
	return err
}

// line names a ledger for a person.
func (l ledgerView) line() string {
	return fmt.Sprintf("ledger %s, instance %s, incarnation %d, position %d, at %s", plain(l.Backend), l.Instance, l.Incarnation, l.Position, l.Time)
}
