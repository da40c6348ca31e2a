// Command mcpreplay shows, serves and inspects guarded MCP operations.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes. Injected faults exit with codes of their own, from 70.
const (
	exitFine    = 0
	exitFailed  = 1 // failed or refused
	exitMisused = 2
	exitUnknown = 3 // the outcome is unknown
)

// env is what a command may touch of the process, so that tests run it whole.
type env struct {
	stdin  io.Reader
	stdout io.Writer // the answer
	stderr io.Writer // the conversation
	getenv func(string) string
}

func main() {
	// A reader that goes away must not end a command with the ledger open.
	signal.Ignore(syscall.SIGPIPE)
	e := &env{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv}
	os.Exit(run(context.Background(), e, os.Args[1:]))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, e *env, args []string) int {
	root := newRoot(e)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitFine
	}
	var failure *commandError
	if !errors.As(err, &failure) { // cobra's own: a flag or an argument is wrong
		failure = &commandError{code: exitMisused, err: err, hint: fmt.Sprintf("see %s --help", cmd.CommandPath())}
	}
	if failure.err != nil {
		fmt.Fprintf(e.stderr, "%s: error: %v\n", cmd.CommandPath(), failure.err)
	}
	if failure.hint != "" {
		fmt.Fprintf(e.stderr, "%s: hint: %s\n", cmd.CommandPath(), failure.hint)
	}
	return failure.code
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:           "mcpreplay",
		Short:         "Make a lost reply harmless: MCP tool calls that happen at most once",
		Version:       buildVersion(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newDemo(e),
		newServe(e),
		newStatus(e),
		newFence(e),
		newRecoverServer(e),
		newKeys(e),
		newResolve(e),
		newVerify(e),
		newSweep(e),
		newBackup(e),
		newRestore(e),
		newMigrate(e),
		newFingerprint(e),
		newArchive(e),
		newLab(e),
		newVersion(e),
	)
	return root
}

// commandError ends a command with an exit code and says what to do next. A nil
// err prints nothing: the answer on stdout says it all.
type commandError struct {
	code int
	err  error
	hint string
}

func (e *commandError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *commandError) Unwrap() error { return e.err }

func failed(err error, hint string) error {
	return &commandError{code: exitFailed, err: err, hint: hint}
}

func misused(hint, format string, args ...any) error {
	return &commandError{code: exitMisused, err: fmt.Errorf(format, args...), hint: hint}
}
