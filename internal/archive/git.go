package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// repository is a work tree with its git directory.
type repository struct {
	top    string // of the work tree
	common string // git directory, shared by all work trees of the repository
	env    []string
}

// openRepository finds the repository that dir is in. Object names must be SHA-1:
// they are what a manifest records.
func openRepository(ctx context.Context, dir string) (*repository, error) {
	r := &repository{top: dir, env: environment(os.Environ())}
	line := func(args ...string) (string, error) {
		out, err := r.git(ctx, args...)
		return strings.TrimSuffix(string(out), "\n"), err
	}
	top, err := line("rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	r.top = filepath.FromSlash(top)
	if r.common, err = line("rev-parse", "--path-format=absolute", "--git-common-dir"); err != nil {
		return nil, err
	}
	format, err := line("rev-parse", "--show-object-format")
	if err != nil {
		return nil, err
	}
	if format != "sha1" {
		return nil, fmt.Errorf("%w: the objects of the repository are named by %s: only sha1 is supported", ErrRefused, format)
	}
	return r, nil
}

// environment is what git is run with. Variables that point it to another
// repository, index or object store are left out, as GIT_DIR of a hook is; where
// its configuration is found is left as it is. Replacement objects would put other
// bytes into the archive than the commit names.
func environment(from []string) []string {
	env := slices.DeleteFunc(slices.Clone(from), func(s string) bool {
		return strings.HasPrefix(s, "GIT_") && !strings.HasPrefix(s, "GIT_CONFIG_") && !strings.HasPrefix(s, "GIT_EXEC_PATH=")
	})
	return append(env, "GIT_NO_REPLACE_OBJECTS=1", "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
}

func (r *repository) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.top, "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false"}, args...)...)
	cmd.Env = r.env
	return cmd
}

// git runs git and returns what it prints.
func (r *repository) git(ctx context.Context, args ...string) ([]byte, error) {
	out, err := r.command(ctx, args...).Output()
	if err == nil {
		return out, nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		said, _, _ := strings.Cut(string(exit.Stderr), "\n")
		return nil, fmt.Errorf("git %s: %+q: %w", args[0], said, err)
	}
	return nil, fmt.Errorf("git %s: %w", args[0], err)
}

// cleanCommit is the commit that is checked out. The work tree must be that commit:
// nothing changed, nothing staged, and no file that is neither tracked nor ignored.
func (r *repository) cleanCommit(ctx context.Context) (string, error) {
	commit, err := r.git(ctx, "rev-parse", "--verify", "HEAD^{commit}")
	if err != nil {
		return "", err
	}
	status, err := r.git(ctx, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none", "--no-renames")
	if err != nil {
		return "", err
	}
	if changes := records(status); len(changes) > 0 {
		return "", fmt.Errorf("%w: %s", ErrNotClean, some(changes))
	}
	// What git was told to take for unchanged does not appear in the status.
	index, err := r.git(ctx, "ls-files", "-v", "-z")
	if err != nil {
		return "", err
	}
	hidden := slices.DeleteFunc(records(index), func(s string) bool { return strings.HasPrefix(s, "H ") })
	if len(hidden) > 0 {
		return "", fmt.Errorf("%w: git is told not to look at %s", ErrNotClean, some(hidden))
	}
	return strings.TrimSuffix(string(commit), "\n"), nil
}

// tracked is a file of a commit.
type tracked struct {
	mode string
	blob string
	path string
}

// files are what the commit tracks, sorted by path.
func (r *repository) files(ctx context.Context, commit string) ([]tracked, error) {
	out, err := r.git(ctx, "ls-tree", "-r", "-z", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	var files []tracked
	for _, record := range records(out) {
		meta, path, ok := strings.Cut(record, "\t")
		fields := strings.Fields(meta) // mode, type, object
		if !ok || len(fields) != 3 {
			return nil, fmt.Errorf("git ls-tree: cannot read %+q", record)
		}
		files = append(files, tracked{mode: fields[0], blob: fields[2], path: path})
	}
	slices.SortFunc(files, func(a, b tracked) int { return strings.Compare(a.path, b.path) })
	return files, nil
}

// records are the parts of what git prints with -z.
func records(out []byte) []string {
	if len(out) == 0 {
		return nil
	}
	return strings.Split(string(bytes.TrimSuffix(out, []byte{0})), "\x00")
}

// some is the first of many things, quoted.
func some(all []string) string {
	const shown = 3
	var quoted []string
	for _, s := range all[:min(shown, len(all))] {
		quoted = append(quoted, fmt.Sprintf("%+q", s))
	}
	text := strings.Join(quoted, ", ")
	if len(all) > shown {
		text += fmt.Sprintf(" and %d more", len(all)-shown)
	}
	return text
}
