package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/spf13/cobra"
)

// fenceWait bounds the wait for a ledger that others are writing to.
const fenceWait = 25 * time.Second

func newFence(e *env) *cobra.Command {
	var ledger, principal, reason string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "fence OPERATION_ID --principal NAME --reason TEXT --ledger sqlite:PATH",
		Short: "Make an operation that was never recorded impossible",
		Long: `Records that the operation never happened and never can, so that the same work
may be done under a new id. An operation of which something is known is left as it
is: if it was applied nothing is fenced, and if it is in progress its outcome
stays unknown.

Exit code 0 says that "not applied" stands, 1 that nothing was fenced, and 3 that
the outcome is unknown.`,
		Example: `  mcpreplay fence order-1842 --principal alice --reason "client gave up" --ledger sqlite:issues.db`,
		Args:    oneOperation,
		RunE: func(cmd *cobra.Command, args []string) error {
			key := mcpreplay.Key{Principal: principal, ID: args[0]}
			if err := checkFence(key, reason); err != nil {
				return err
			}
			s, err := openToWrite(cmd.Context(), ledger)
			if err != nil {
				return err
			}
			defer s.Close()
			if err := placeFence(cmd.Context(), s, key, reason); err != nil {
				return err
			}
			v, err := readStatus(cmd.Context(), s, key.ID, key.Principal)
			if err != nil {
				return failed(err, "the fence may have been placed: ask again with mcpreplay status")
			}
			return v.fenced(e, asJSON)
		},
	}
	cmd.Flags().StringVar(&ledger, "ledger", "", "the ledger: `sqlite:PATH` or postgres:URL")
	cmd.Flags().StringVar(&principal, "principal", "", "`NAME` the operation belongs to")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record: `TEXT`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func checkFence(key mcpreplay.Key, reason string) error {
	if key.Principal == "" {
		return misused("name it with --principal NAME: a fence belongs to it like the operation would", "no principal given")
	}
	if err := mcpreplay.ValidatePrincipal(key.Principal); err != nil {
		return misused("name it as the server does", "--principal: %w", err)
	}
	if strings.TrimSpace(reason) == "" {
		return misused("say it with --reason TEXT: a fence is for good, and someone will ask", "no reason given")
	}
	if len(reason) > guard.MaxReason || !utf8.ValidString(reason) {
		return misused("", "the reason must be at most %d bytes of UTF-8", guard.MaxReason)
	}
	return nil
}

// openFile opens a ledger that exists for writing. Only a look at it tells
// its backend, and only a ledger that was there is opened.
func openFile(ctx context.Context, ledger string) (*sqlite.Store, error) {
	look, err := openReadOnly(ledger)
	if err != nil {
		return nil, err
	}
	info, err := look.Info(ctx)
	if err = errors.Join(err, look.Close()); err != nil {
		return nil, failed(fmt.Errorf("read the ledger: %w", err), "")
	}
	path, err := ledgerPath(ledger)
	if err != nil {
		return nil, err
	}
	return openLedger(path, &sqlite.Options{Backend: info.Backend})
}

// placeFence records that the operation never happened, unless it has a record.
func placeFence(ctx context.Context, s mcpreplay.Store, key mcpreplay.Key, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, fenceWait)
	defer cancel()
	_, err := mcpreplay.Fence(ctx, s, key, key.Principal, reason)
	switch {
	case errors.Is(err, mcpreplay.ErrUnknown), errors.Is(err, mcpreplay.ErrForgotten):
		return nil // what the ledger says next is the answer
	case errors.Is(err, mcpreplay.ErrConflict):
		return failed(errors.New("the operation belongs to another principal: nothing was fenced"), "mcpreplay status tells whose it is")
	case err != nil:
		return failed(fmt.Errorf("nothing was fenced: %w", err), "")
	}
	return nil
}

// fenced prints v and ends the command with what became of the fence.
func (v *statusView) fenced(e *env, asJSON bool) error {
	if err := v.write(e, asJSON); err != nil {
		return err
	}
	switch state := v.Observation.State; {
	case state == mcpreplay.StateNotApplied:
		return nil
	case v.Record != nil && v.Record.State.Final():
		return failed(fmt.Errorf("the operation is already %s: nothing was fenced", v.Record.State), "its result, if it is kept, is above")
	case v.Record != nil:
		return &commandError{code: exitUnknown, err: fmt.Errorf("the operation is %s: nothing was fenced", v.Record.State),
			hint: "ask again with mcpreplay status once its owner is done"}
	}
	return &commandError{code: exitUnknown, err: errors.New("whether the fence was placed is unknown"), hint: "place it again: that is harmless"}
}
