package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"mcpreplay"
	"mcpreplay/sqlite"

	"github.com/spf13/cobra"
)

func newStatus(e *env) *cobra.Command {
	var ledger, principal string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status OPERATION_ID --ledger sqlite:PATH",
		Short: "Tell what the ledger knows of an operation",
		Long: `Reads the ledger as an operator does: whoever the operation belongs to, and
whatever deadline has passed. It changes nothing and permits nothing. It reads
the record, not the effect: whether the effect is still there it does not know.

Exit code 0 says that the operation is settled (applied, partial or not_applied)
and 3 that its outcome is unknown, which is not the same as "it did not happen".`,
		Example: `  mcpreplay status order-1842 --ledger sqlite:issues.db`,
		Args:    oneOperation,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := lookAt(cmd.Context(), ledger)
			if err != nil {
				return err
			}
			defer s.Close()
			v, err := readStatus(cmd.Context(), s, args[0], principal)
			if err != nil {
				return failed(err, "")
			}
			return v.answer(e, asJSON)
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `sqlite:PATH` or postgres:URL")
	cmd.Flags().StringVar(&principal, "principal", "", "look only at operations of `NAME`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// oneOperation checks that the arguments of a command are one operation id.
func oneOperation(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return misused("see "+cmd.CommandPath()+" --help", "give one operation id (got %d)", len(args))
	}
	if err := mcpreplay.ValidateID(args[0]); err != nil {
		return misused("an id is what the caller chose, or the operationId of a reply", "%w", err)
	}
	return nil
}

// openReadOnly opens a ledger that exists, whatever its backend, for a command
// that only looks.
func openReadOnly(ledger string) (*sqlite.Store, error) {
	if ledger == "" {
		return nil, misused("name one with --ledger sqlite:PATH", "no ledger given")
	}
	path, err := ledgerPath(ledger)
	if err != nil {
		return nil, err
	}
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, failed(fmt.Errorf("there is no file %s", path), "name the file of a server's --ledger; the server creates it")
	case err != nil:
		return nil, failed(fmt.Errorf("open the ledger: %w", err), "check the path and its permissions")
	case !fi.Mode().IsRegular():
		return nil, failed(fmt.Errorf("%s is no regular file", path), "name the file of a server's --ledger")
	}
	s, err := sqlite.Open(path, &sqlite.Options{ReadOnly: true})
	switch {
	case errors.Is(err, mcpreplay.ErrIncompatible):
		return nil, failed(fmt.Errorf("open the ledger: %w", err), "name the file of a server's --ledger, and use a program at least as new as the server")
	case err != nil:
		return nil, failed(fmt.Errorf("open the ledger: %w", err), "check the path and its permissions")
	}
	return s, nil
}

// readStatus reads one operation, of any principal if none is named: ids are
// unique in a ledger.
func readStatus(ctx context.Context, s mcpreplay.Store, id, principal string) (*statusView, error) {
	if principal == "" {
		list, err := s.List(ctx, mcpreplay.Filter{ID: id})
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			principal = list[0].Principal
		}
	}
	key := mcpreplay.Key{Principal: principal, ID: id}
	v := &statusView{Events: []eventView{}}
	rec, err := s.Get(ctx, key)
	found := err == nil
	if err != nil && !errors.Is(err, mcpreplay.ErrNotFound) {
		return nil, err
	}
	scope := mcpreplay.Scope{OperationID: id, Principal: principal, Backend: rec.Ledger.Backend}
	v.Observation = mcpreplay.Observe(scope, rec, found, nil)
	if !found {
		return v, nil
	}
	v.Record = viewRecord(rec)
	if rec.Result != nil {
		v.body = rec.Result.Body
	}
	events, err := s.Events(ctx, key)
	if err != nil {
		return nil, err
	}
	for i, ev := range events {
		if ev.Position > rec.Position { // newer than the record that was read
			events = events[:i]
			break
		}
	}
	v.Events = viewEvents(events)
	return v, nil
}

// answer prints v and ends the command with what it says.
func (v *statusView) answer(e *env, asJSON bool) error {
	err := v.write(e, asJSON)
	if err == nil && v.Observation.State == mcpreplay.StateUnknown {
		return &commandError{code: exitUnknown}
	}
	return err
}

func (v *statusView) write(e *env, asJSON bool) error {
	return e.reply(asJSON, v, v.print)
}
