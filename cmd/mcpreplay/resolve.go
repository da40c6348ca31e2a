package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/spf13/cobra"
)

// resolveView is what resolve tells: what status tells, and whether this call
// changed it. Its members are a contract: docs/cli.md.
type resolveView struct {
	Changed bool `json:"changed"`
	statusView
}

// resolveFlags say what an operator found out.
type resolveFlags struct {
	ledger, principal         string
	applied, partial, nothing bool
	result, reason, by        string
	effectOver, asJSON        bool
}

func newResolve(e *env) *cobra.Command {
	var f resolveFlags
	cmd := &cobra.Command{
		Use:   "resolve OPERATION_ID (--applied | --partial | --not-applied) --principal NAME --reason TEXT",
		Short: "Settle an operation whose owner is gone, by what you found out",
		Long: `Records what became of an operation that is in progress and has no live owner: a
person has looked into the system of record. It is for good. The reason goes into
the history, and is not shown to callers; they are given the result.

--result names a file with one whole MCP tool result, as JSON. --applied needs one.
Without one an error is stored that says what was decided, and by whom.

--partial and --not-applied say that something did not happen. They are refused
until the deadline of the effect and one minute have passed, because an owner that
was paused may wake up. --effect-over vouches that this cannot be: its process has
ended, and so has whatever it sent. Without a deadline it is always needed.

Exit code 0 says that it is settled so, now or before, 1 that it was refused and
nothing changed, and 3 that whether it was settled is unknown.`,
		Example: `  mcpreplay resolve order-1842 --principal alice --applied --result reply.json \
    --reason "invoice 77 is in the books" --ledger sqlite:issues.db`,
		Args: oneOperation,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := f.resolution(args[0])
			if err != nil {
				return err
			}
			s, err := openToWrite(cmd.Context(), f.ledger)
			if err != nil {
				return err
			}
			defer s.Close()
			return resolve(cmd.Context(), e, s, r, f.asJSON)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.ledger, "ledger", "", "the ledger: `sqlite:PATH`")
	flags.StringVar(&f.principal, "principal", "", "`NAME` the operation belongs to")
	flags.BoolVar(&f.applied, "applied", false, "it was done")
	flags.BoolVar(&f.partial, "partial", false, "a part of it was done, and the rest was not")
	flags.BoolVar(&f.nothing, "not-applied", false, "it was not done")
	flags.StringVar(&f.result, "result", "", "`FILE` with the tool result that callers are given")
	flags.StringVar(&f.reason, "reason", "", "how you know, for the record: `TEXT`")
	flags.StringVar(&f.by, "by", "", "your `NAME` (default: the user of this system)")
	flags.BoolVar(&f.effectOver, "effect-over", false, "vouch that the effect can no longer happen")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("applied", "partial", "not-applied")
	cmd.MarkFlagsOneRequired("applied", "partial", "not-applied")
	return cmd
}

// resolution checks the command line, and reads the result.
func (f *resolveFlags) resolution(id string) (guard.Resolution, error) {
	r := guard.Resolution{
		Key: mcpreplay.Key{Principal: f.principal, ID: id}, Outcome: mcpreplay.StateNotApplied,
		EffectOver: f.effectOver, Reason: f.reason,
	}
	switch {
	case f.applied:
		r.Outcome = mcpreplay.StateApplied
	case f.partial:
		r.Outcome = mcpreplay.StatePartial
	}
	if f.principal == "" {
		return r, misused("name it with --principal NAME: mcpreplay status tells whose the operation is", "no principal given")
	}
	var err error
	if r.Actor, err = operator(f.by); err != nil {
		return r, err
	}
	if f.result != "" {
		if r.Result, err = readResult(f.result); err != nil {
			return r, misused("--result names a file with one whole tool result, as JSON", "read the result: %w", err)
		}
	}
	if err := r.Validate(); err != nil {
		return r, misused("see mcpreplay resolve --help", "%w", err)
	}
	return r, nil
}

// readResult reads a file, and one byte more of it than can be stored.
func readResult(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 1<<20+1))
	if err == nil && text == nil {
		text = []byte{}
	}
	return text, err
}

// operator is who acts: by, or else the user that this process runs as.
func operator(by string) (string, error) {
	if by == "" {
		if u, err := user.Current(); err == nil {
			by = u.Username
		}
	}
	if err := mcpreplay.ValidatePrincipal(by); err != nil {
		return "", misused("name yourself with --by NAME", "who you are: %w", err)
	}
	return by, nil
}

func resolve(ctx context.Context, e *env, s mcpreplay.Store, r guard.Resolution, asJSON bool) error {
	bounded, cancel := context.WithTimeout(ctx, fenceWait)
	defer cancel()
	_, changed, err := guard.Resolve(bounded, s, r)
	if err != nil {
		return resolveError(err)
	}
	v, err := readStatus(ctx, s, r.Key.ID, r.Key.Principal)
	if err != nil {
		return failed(err, "it is settled: ask again with mcpreplay status")
	}
	if !changed {
		fmt.Fprintf(e.stderr, "it was %s before: nothing changed\n", r.Outcome)
	}
	out := resolveView{Changed: changed, statusView: *v}
	return e.reply(asJSON, out, v.print)
}

// resolveError ends the command with what was wrong, and what to do about it.
func resolveError(err error) error {
	var refused *guard.ResolveError
	switch {
	case errors.Is(err, mcpreplay.ErrUnknown):
		return &commandError{code: exitUnknown, err: fmt.Errorf("whether it was settled is unknown: %w", err), hint: "resolve it again: that is harmless"}
	case !errors.As(err, &refused):
		return failed(fmt.Errorf("nothing was settled: %w", err), "")
	case refused.Reason == guard.ResolveResult:
		return misused("give one whole tool result, as JSON: at least its content", "%w", err)
	}
	hint := map[guard.ResolveReason]string{
		guard.ResolveAbsent:    "mcpreplay status tells whose it is; what was never recorded is made impossible by mcpreplay fence",
		guard.ResolveUnclaimed: "make it impossible with mcpreplay fence, or let its caller send it again",
		guard.ResolveLive:      "ask with mcpreplay status once its owner is done, or has stopped and its lease is over",
		guard.ResolveDone:      "settle it as --partial: what is done stays told",
		guard.ResolveSettled:   "an outcome is for good: mcpreplay status tells who settled it, and why",
		guard.ResolveEarly:     "once you have made sure that nothing of it can still happen, say so with --effect-over",
	}[refused.Reason]
	if refused.Wait > 0 {
		hint = fmt.Sprintf("wait %v; or %s", refused.Wait.Round(time.Second), hint)
	}
	return failed(fmt.Errorf("%w: nothing was settled", err), hint)
}
