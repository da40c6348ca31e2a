package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"mcpreplay/internal/lab"

	"github.com/spf13/cobra"
)

func newDemo(e *env) *cobra.Command {
	var dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Lose the reply of a real tool call, and recover it",
		Long: `Start a guarded MCP server over stdio, call a tool that asks a question, and let
the server die between its commit and its reply. Then start it again, recover the
result by asking for the status alone, and show that an exact repeat is answered
with the stored result. The raw transcripts of both processes and the database
stay in the output directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			where, err := outputDir(dir)
			if err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return failed(err, "run the installed binary")
			}
			story := io.Writer(e.stdout)
			if asJSON {
				story = e.stderr
			}
			summary, err := (&lab.Demo{Exe: exe, Dir: where, Story: story, Stderr: e.stderr}).Run(cmd.Context())
			if errors.Is(err, fs.ErrExist) {
				return failed(fmt.Errorf("%s exists", where), "name a directory that does not exist with --output-dir")
			}
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return failed(err, "name a new directory in one that exists with --output-dir")
			}
			if err != nil {
				return failed(err, fmt.Sprintf("the transcripts in %s show what happened", where))
			}
			text, err := json.MarshalIndent(summary, "", "  ")
			if err == nil {
				if !asJSON {
					fmt.Fprintln(e.stdout)
				}
				_, err = fmt.Fprintf(e.stdout, "%s\n", text)
			}
			if err != nil {
				return failed(err, "")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "output-dir", "", "new directory for transcripts and database (default: one in the temporary directory)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the summary alone on standard output")
	return cmd
}

// outputDir is the directory the demo makes: the one named, or one below a fresh
// temporary directory.
func outputDir(dir string) (string, error) {
	if dir == "" {
		parent, err := os.MkdirTemp("", "mcpreplay-demo-")
		if err != nil {
			return "", failed(err, "name a directory with --output-dir")
		}
		return filepath.Join(parent, "case-03"), nil
	}
	where, err := filepath.Abs(dir)
	if err != nil {
		return "", failed(err, "name a directory with --output-dir")
	}
	return where, nil
}
