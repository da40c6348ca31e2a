package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"mcpreplay"
	"mcpreplay/internal/vectors"

	"github.com/spf13/cobra"
)

// maxPack bounds what is read of a pack. The parser has the smaller bound.
const maxPack = 2 * mcpreplay.DefaultJSONBytes

// vectorFlags are the flags of lab vectors.
type vectorFlags struct {
	pack   string
	limit  time.Duration
	asJSON bool
}

func newLabVectors(e *env) *cobra.Command {
	var f vectorFlags
	cmd := &cobra.Command{
		Use:   "vectors [-- COMMAND [ARG...]]",
		Short: "Run the portable vectors against this or another implementation",
		Long: `Asks an implementation what is to be done with seven requests that follow an
accepted one, and holds its answers against what is expected: replay, conflict,
reject, status_only or stop_unknown.

Without a command it asks this implementation. With one it starts the command for
each vector, writes one line to its input and reads one line of its output:

  {"version":1,"vector":123,"keyHex":"...","base":{...},"candidate":{...}}
  {"vector":123,"classification":"conflict"}

After a lost reply the question has "transport", "scope" and "observation" as
well. The command runs without a shell, in this directory. What is no such answer
counts as invalid.

Exit code 0 says that every vector is as expected, 1 that one is not.`,
		Example: `  mcpreplay lab vectors
  mcpreplay lab vectors -- node implementation.js`,
		Args: func(cmd *cobra.Command, args []string) error { return f.check(cmd, args) },
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), e, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.pack, "pack", "", "take the vectors from `FILE` (default: those in this program)")
	flags.DurationVar(&f.limit, "timeout", 10*time.Second, "how long the command may take for one vector")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

// check refuses what cannot be meant. An argument before the two dashes may be a
// misspelt flag, so it is no command.
func (f *vectorFlags) check(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) > 0 || dash > 0:
		return misused("write mcpreplay lab vectors -- COMMAND [ARG...]", "%q is not behind --", args[0])
	case dash == 0 && len(args) == 0:
		return misused("write mcpreplay lab vectors -- COMMAND [ARG...]", "there is no command behind --")
	case dash == 0 && args[0] == "":
		return misused("write mcpreplay lab vectors -- COMMAND [ARG...]", "the command is empty")
	case dash < 0 && cmd.Flags().Changed("timeout"):
		return misused("name a command behind --, or leave it out", "--timeout without a command")
	case f.limit <= 0:
		return misused("give a duration such as 30s", "--timeout is not above zero")
	case cmd.Flags().Changed("pack") && f.pack == "":
		return misused("name a file, or leave it out", "--pack is empty")
	}
	return nil
}

func (f *vectorFlags) run(ctx context.Context, e *env, command []string) error {
	pack, err := f.readPack()
	if err != nil {
		return err
	}
	classify := vectors.Classify
	if len(command) > 0 {
		if _, err := exec.LookPath(command[0]); err != nil {
			return misused("name a program that is in PATH, or its path", "%w", err)
		}
		// The command is not in the foreground group of the terminal.
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
		classify = (&vectors.Foreign{Command: command, Limit: f.limit, Stderr: e.stderr}).Classify
	}
	results, err := pack.Check(ctx, classify, func(name string, reason error) {
		fmt.Fprintf(e.stderr, "mcpreplay lab vectors: %s is invalid: %v\n", plain(name), reason)
	})
	if err != nil {
		return failed(err, "")
	}
	err = e.reply(f.asJSON, results, func(w io.Writer) error { return printVectors(w, results) })
	if err != nil {
		return err
	}
	wrong := 0
	for _, r := range results {
		if !r.OK() {
			wrong++
		}
	}
	if wrong > 0 {
		return failed(fmt.Errorf("%d of %s not as expected", wrong, count(len(results), "vector")),
			"internal/vectors/README.md says what each vector is about")
	}
	return nil
}

func (f *vectorFlags) readPack() (*vectors.Pack, error) {
	if f.pack == "" {
		pack, err := vectors.PortablePack()
		if err != nil {
			return nil, failed(err, "")
		}
		return pack, nil
	}
	file, err := os.Open(f.pack)
	if err != nil {
		return nil, misused("name a pack of vectors with --pack", "%w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxPack))
	if err != nil {
		return nil, misused("name a pack of vectors with --pack", "%w", err)
	}
	pack, err := vectors.ParsePack(text)
	if err != nil {
		hint := "internal/vectors/README.md has the format of a pack"
		if errors.Is(err, vectors.ErrVectorVersion) {
			hint = "use a newer mcpreplay, or a pack of version 1"
		}
		return nil, failed(fmt.Errorf("%s: %w", f.pack, err), hint)
	}
	return pack, nil
}

// printVectors shows the results to a person.
func printVectors(w io.Writer, results []vectors.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "name\texpected\tactual\tok")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", plain(r.Name), r.Expected, r.Actual, map[bool]string{true: "yes", false: "NO"}[r.OK()])
	}
	return t.Flush()
}
