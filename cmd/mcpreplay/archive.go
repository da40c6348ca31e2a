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

	"mcpreplay/internal/archive"

	"github.com/spf13/cobra"
)

func newArchive(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Make the archive of a release",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newArchiveBuild(e))
	return cmd
}

func newArchiveBuild(e *env) *cobra.Command {
	var repo string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "build OUT.zip",
		Short: "Archive the commit that is checked out, with a manifest",
		Long: `Writes a zip file with every file of the commit and ARCHIVE-MANIFEST.json, which
names the commit and each file's mode, size and hashes. The same commit gives the
same bytes. The work tree must be clean, before and after; what goes in is read from
the objects of git. Needs the program git.

Links, submodules, names that are not the same on every system, and names of secrets
or of what was built are refused. OUT.zip must not exist and must not lie in the
repository.

Publish the SHA-256 of the archive elsewhere: nothing in it can vouch for it.`,
		Example: `  mcpreplay archive build ../mcpreplay-v1.2.3.zip`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return misused("see "+cmd.CommandPath()+" --help", "name one file to write")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			s, err := buildArchive(ctx, repo, args[0])
			if err != nil {
				return err
			}
			err = e.reply(asJSON, s, func(w io.Writer) error { return printArchive(w, s) })
			if err != nil {
				return err
			}
			fmt.Fprintln(e.stderr, "Publish the SHA-256 of the archive outside the archive: nothing in it can vouch for it.")
			return nil
		},
	}
	cmd.Flags().StringVar(&repo, "repo", ".", "archive the work tree that `DIR` is in")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func buildArchive(ctx context.Context, repo, out string) (*archive.Summary, error) {
	if fi, err := os.Stat(repo); err != nil || !fi.IsDir() {
		return nil, misused("name a directory of a git work tree with --repo", "%q is no directory", repo)
	}
	s, err := archive.Build(ctx, repo, out)
	if err != nil {
		return nil, failed(err, archiveHint(err))
	}
	return s, nil
}

func archiveHint(err error) string {
	switch {
	case errors.Is(err, archive.ErrNotClean):
		return "commit it, or take it away; what git ignores does not matter"
	case errors.Is(err, archive.ErrExists):
		return "name a file that does not exist"
	case errors.Is(err, archive.ErrInside):
		return "name a file outside the repository"
	case errors.Is(err, archive.ErrRefused):
		return "see mcpreplay archive build --help for what an archive cannot hold"
	case errors.Is(err, exec.ErrNotFound):
		return "install git"
	}
	return ""
}

func printArchive(w io.Writer, s *archive.Summary) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "source commit\t%s\n", s.SourceCommit)
	fmt.Fprintf(t, "files\t%d\n", s.FileCount)
	fmt.Fprintf(t, "manifest sha256\t%s\n", s.ManifestSHA256)
	fmt.Fprintf(t, "archive sha256\t%s\n", s.ArchiveSHA256)
	fmt.Fprintf(t, "archive\t%s\n", plain(s.Path))
	return t.Flush()
}
