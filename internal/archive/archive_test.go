package archive_test

import (
	"archive/zip"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcpreplay/internal/archive"
	"mcpreplay/internal/archive/manifest"
)

// TestMain makes git the same everywhere: the tests need it, and nothing of what
// the machine has configured.
func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "GIT_") {
			os.Unsetenv(name)
		}
	}
	for _, v := range []string{
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z",
		"GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@example.com", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z",
	} {
		name, value, _ := strings.Cut(v, "=")
		os.Setenv(name, value)
	}
	os.Exit(m.Run())
}

// work is a scratch repository.
type work struct {
	t   *testing.T
	dir string
}

func newWork(t *testing.T, format string) work {
	t.Helper()
	w := work{t: t, dir: filepath.Join(t.TempDir(), "repo")}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w.git("init", "--quiet", "--initial-branch=main", "--object-format="+format)
	w.file("README.md", "hello\n", 0o644)
	w.file("cmd/run.sh", "#!/bin/sh\necho <&>\n", 0o755)
	w.file("empty", "", 0o644)
	w.file("Z/binary", "\x00\r\n\xff", 0o644)
	w.commit()
	return w
}

func (w work) git(args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = w.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (w work) commit() {
	w.t.Helper()
	w.git("add", "--all", "--force")
	w.git("commit", "--quiet", "--message", "x")
}

func (w work) file(path, text string, mode os.FileMode) {
	w.t.Helper()
	at := filepath.Join(w.dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644), os.Chmod(at, mode)); err != nil {
		w.t.Fatal(err)
	}
}

func (w work) build() ([]byte, *archive.Summary) {
	w.t.Helper()
	out := filepath.Join(w.t.TempDir(), "out.zip")
	s, err := archive.Build(w.t.Context(), w.dir, out)
	if err != nil {
		w.t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		w.t.Fatal(err)
	}
	return data, s
}

// refuses checks that Build fails for a reason, and leaves nothing behind.
func (w work) refuses(as error, want string) {
	w.t.Helper()
	dir := w.t.TempDir()
	_, err := archive.Build(w.t.Context(), w.dir, filepath.Join(dir, "out.zip"))
	if err == nil || as != nil && !errors.Is(err, as) || !strings.Contains(err.Error(), want) {
		w.t.Errorf("got %v, want %v with %q", err, as, want)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		w.t.Errorf("it left %v", left)
	}
}

func TestBuildArchivesWhatTheCommitHas(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	data, s := w.build()
	commit := w.git("rev-parse", "HEAD")
	if s.SourceCommit != commit || s.FileCount != 4 {
		t.Errorf("%+v", s)
	}
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	texts := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(f.Name, "mcpreplay-"+commit[:8]+"/")
		texts[name] = string(text)
		fmt.Fprintf(&got, "%s %s %s\n", f.Mode(), f.Modified.UTC().Format(time.RFC3339), name)
	}
	want := `-rw-r--r-- 1980-01-01T00:00:00Z README.md
-rw-r--r-- 1980-01-01T00:00:00Z Z/binary
-rwxr-xr-x 1980-01-01T00:00:00Z cmd/run.sh
-rw-r--r-- 1980-01-01T00:00:00Z empty
-rw-r--r-- 1980-01-01T00:00:00Z ARCHIVE-MANIFEST.json
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	m, err := manifest.Parse([]byte(texts[manifest.Name]))
	if err != nil {
		t.Fatal(err)
	}
	if m.SourceCommit != commit || texts["Z/binary"] != "\x00\r\n\xff" || texts["empty"] != "" {
		t.Errorf("%+v %q", m, texts)
	}
	for _, e := range m.Entries {
		if e.GitBlobSHA1 != w.git("rev-parse", "HEAD:"+e.Path) || e.Size != int64(len(texts[e.Path])) {
			t.Errorf("%+v", e)
		}
	}
}

// The compressor is Go's and may change with it; the manifest may not.
func TestBuildGivesAManifestThatIsKnownBeforehand(t *testing.T) {
	t.Parallel()
	_, s := newWork(t, "sha1").build()
	const want = "72cb5e03034df63a275f840a85dd95e5fc4811275723f84169e316967c86f53e"
	if s.ManifestSHA256 != want {
		t.Errorf("got %s for commit %s, want %s", s.ManifestSHA256, s.SourceCommit, want)
	}
}

func TestBuildGivesTheSameBytesForTheSameCommit(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	first, s := w.build()
	w.git("clone", "--quiet", "--no-hardlinks", w.dir, w.dir+"2")
	w.git("clone", "--quiet", "--bare", w.dir, w.dir+".git")
	w.git("worktree", "add", "--quiet", "--detach", w.dir+"3")
	w.git("-c", "core.autocrlf=true", "clone", "--quiet", "--config", "core.autocrlf=true", w.dir, w.dir+"4")
	w.git("gc", "--quiet") // packed objects are the same objects
	for _, dir := range []string{w.dir, w.dir + "2", w.dir + "3", w.dir + "4", filepath.Join(w.dir, "cmd")} {
		if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if strings.Contains(path, ".git") {
				return err
			}
			return errors.Join(err, os.Chtimes(path, time.Now(), time.Unix(1e9, 0)))
		}); err != nil {
			t.Fatal(err)
		}
		data, again := work{t: t, dir: dir}.build()
		if !bytes.Equal(data, first) || again.ArchiveSHA256 != s.ArchiveSHA256 {
			t.Errorf("%s: %+v, want %+v", dir, again, s)
		}
	}
}

func TestBuildRefusesAnUncleanWorkTree(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, want string
		spoil      func(work)
	}{
		{"changed", `" M README.md"`, func(w work) { w.file("README.md", "HELLO\n", 0o644) }},
		{"mode changed", `" M README.md"`, func(w work) { w.file("README.md", "hello\n", 0o755) }},
		{"removed", `" D empty"`, func(w work) { os.Remove(filepath.Join(w.dir, "empty")) }},
		{"staged", `"M  README.md"`, func(w work) { w.file("README.md", "HELLO\n", 0o644); w.git("add", "README.md") }},
		{"untracked", `"?? new/file"`, func(w work) { w.file("new/file", "", 0o644) }},
		{"untracked, and not to be shown", `"?? new"`, func(w work) { w.git("config", "status.showUntrackedFiles", "no"); w.file("new", "", 0o644) }},
		{"hidden change", `git is told not to look at "h README.md"`, func(w work) {
			w.git("update-index", "--assume-unchanged", "README.md")
			w.file("README.md", "HELLO\n", 0o644)
		}},
		{"skipped", `git is told not to look at "S README.md"`, func(w work) { w.git("update-index", "--skip-worktree", "README.md") }},
		{"many", `and 2 more`, func(w work) {
			for i := range 5 {
				w.file(fmt.Sprint(i), "", 0o644)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWork(t, "sha1")
			tt.spoil(w)
			w.refuses(archive.ErrNotClean, tt.want)
		})
	}
}

func TestBuildLetsIgnoredFilesBe(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	w.file(".gitignore", "*.db\n", 0o644)
	w.commit()
	w.file("x.db", "", 0o644)
	w.build()
}

func TestBuildRefusesWhatMustNotBeArchived(t *testing.T) {
	t.Parallel()
	add := func(path string) func(work) { return func(w work) { w.file(path, "x", 0o644); w.commit() } }
	tests := []struct {
		name, want string
		spoil      func(work)
	}{
		{"link", `"link": mode 120000`, func(w work) {
			if err := os.Symlink("README.md", filepath.Join(w.dir, "link")); err != nil {
				w.t.Fatal(err)
			}
			w.commit()
		}},
		{"submodule", `"sub": mode 160000`, func(w work) {
			w.git("update-index", "--add", "--cacheinfo", "160000,"+w.git("rev-parse", "HEAD")+",sub")
			w.git("commit", "--quiet", "--message", "x")
			if err := os.Mkdir(filepath.Join(w.dir, "sub"), 0o755); err != nil {
				w.t.Fatal(err)
			}
		}},
		{"other letters", `"gr\u00fcn": unsafe path: it is not printable ASCII`, add("gr\u00fcn")},
		{"newline", `"a\nb": unsafe path`, add("a\nb")},
		{"backslash", `unsafe path: it has a '\\'`, add(`a\b`)},
		{"colon", `unsafe path: it has a ':'`, add("a:b")},
		{"trailing dot", "ends in a dot or a space", add("a./b")},
		{"case collision", `"readme.MD": case collision with "README.md"`, add("readme.MD")},
		{"case collision of directories", `"z": case collision with "Z"`, add("z/other")},
		{"manifest", "it is that of the manifest", add("Archive-Manifest.json")},
	}
	for _, name := range []string{
		".secrets", "credentials", "node_modules", ".venv", "__pycache__", ".pytest_cache", "dist", "build", ".npmrc", ".pypirc",
		".netrc", ".git-credentials", ".ssh", ".aws", ".gnupg", "id_rsa", "id_ed25519", ".env", ".env.local", "x.pem", "x.p12", "x.pfx", "x.key",
	} {
		upper := strings.ToUpper(name)
		want := fmt.Sprintf("%q is the name of a secret or of something built", upper)
		tests = append(tests, struct {
			name, want string
			spoil      func(work)
		}{upper, want, add("sub/" + upper + "/file")})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWork(t, "sha1")
			tt.spoil(w)
			w.refuses(archive.ErrRefused, tt.want)
		})
	}
	t.Run("objects named by SHA-256", func(t *testing.T) {
		t.Parallel()
		newWork(t, "sha256").refuses(archive.ErrRefused, "only sha1 is supported")
	})
}

// Names that only look like what is withheld.
func TestBuildTakesOrdinaryNames(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	for _, path := range []string{"building", "x.keys", "key", "env", ".gitignore", "distance/id_rsa.md", "pem"} {
		w.file(path, "x", 0o644)
	}
	w.commit()
	w.build()
}

func TestBuildRefusesABadPlace(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	elsewhere := t.TempDir()
	for name, at := range map[string]string{"file": "", "link": "nowhere", "inward": filepath.Join(w.dir, "Z")} {
		path := filepath.Join(elsewhere, name)
		err := os.WriteFile(path, []byte("keep"), 0o644)
		if at != "" {
			err = errors.Join(os.Remove(path), os.Symlink(at, path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		out string
		as  error
	}{
		{filepath.Join(elsewhere, "file"), archive.ErrExists},
		{filepath.Join(elsewhere, "link"), archive.ErrExists},
		{elsewhere, archive.ErrExists},
		{filepath.Join(w.dir, "out.zip"), archive.ErrInside},
		{filepath.Join(w.dir, "cmd", "out.zip"), archive.ErrInside},
		{filepath.Join(w.dir, ".git", "out.zip"), archive.ErrInside},
		{filepath.Join(elsewhere, "inward", "out.zip"), archive.ErrInside},
		{filepath.Join(elsewhere, "missing", "out.zip"), os.ErrNotExist},
	}
	for _, tt := range tests {
		if _, err := archive.Build(t.Context(), w.dir, tt.out); !errors.Is(err, tt.as) {
			t.Errorf("%s: got %v, want %v", tt.out, err, tt.as)
		}
	}
	if text, err := os.ReadFile(filepath.Join(elsewhere, "file")); err != nil || string(text) != "keep" {
		t.Errorf("%q %v", text, err)
	}
	if left, _ := os.ReadDir(elsewhere); len(left) != 3 {
		t.Errorf("it left %v", left)
	}
}

// The git directory of a linked work tree lies outside of it.
func TestBuildRefusesAPlaceInTheGitDirectory(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	linked := w.dir + "2"
	w.git("worktree", "add", "--quiet", "--detach", linked)
	for _, dir := range []string{w.dir, linked} {
		if _, err := archive.Build(t.Context(), dir, filepath.Join(w.dir, ".git", "refs", "out.zip")); !errors.Is(err, archive.ErrInside) {
			t.Errorf("%s: got %v, want %v", dir, err, archive.ErrInside)
		}
	}
}

func TestBuildNeedsACommitAndARepository(t *testing.T) {
	t.Parallel()
	empty := work{t: t, dir: t.TempDir()}
	empty.git("init", "--quiet")
	empty.refuses(nil, "git rev-parse")
	work{t: t, dir: t.TempDir()}.refuses(nil, "not a git repository")
}

// A blob under another blob's name, which git itself does not notice here.
func TestBuildRefusesADamagedObject(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	blob := w.git("rev-parse", "HEAD:README.md")
	var b bytes.Buffer
	z := zlib.NewWriter(&b)
	fmt.Fprintf(z, "blob 6\x00HELLO\n")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(w.dir, ".git", "objects", blob[:2], blob[2:])
	if err := errors.Join(os.Remove(object), os.WriteFile(object, b.Bytes(), 0o444)); err != nil {
		t.Fatal(err)
	}
	w.refuses(nil, `archive "README.md": read blob `+blob+`: its bytes hash to `)
	if err := os.Remove(object); err != nil {
		t.Fatal(err)
	}
	w.refuses(nil, `archive "README.md": read blob `+blob+`: git says "`+blob+` missing"`)
}

// meanwhile puts a git in front of the real one that runs a script in the work tree
// when the first blobs are read.
func meanwhile(t *testing.T, script string) {
	t.Helper()
	real, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := "#!/bin/sh\nexport PATH='" + os.Getenv("PATH") + "'\ncase \"$*\" in *cat-file*) (cd \"$2\" && " + script + ") >&2 || exit 1;; esac\nexec '" + real + "' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "git"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
}

func TestBuildNoticesWhatChangesMeanwhile(t *testing.T) {
	t.Run("a file", func(t *testing.T) {
		w := newWork(t, "sha1")
		meanwhile(t, "echo >new")
		w.refuses(archive.ErrNotClean, `"?? new"`)
	})
	t.Run("the commit", func(t *testing.T) {
		w := newWork(t, "sha1")
		t.Setenv("EMAIL", "a@example.com")
		meanwhile(t, "git -c user.name=a commit --quiet --allow-empty --message later")
		w.refuses(archive.ErrNotClean, "it moved from commit")
	})
	t.Run("the place of the archive", func(t *testing.T) {
		w := newWork(t, "sha1")
		out := filepath.Join(t.TempDir(), "out.zip")
		meanwhile(t, "echo keep >'"+out+"'")
		if _, err := archive.Build(t.Context(), w.dir, out); !errors.Is(err, archive.ErrExists) {
			t.Errorf("got %v, want %v", err, archive.ErrExists)
		}
		if text, err := os.ReadFile(out); err != nil || string(text) != "keep\n" {
			t.Errorf("%q %v", text, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(out)); len(left) != 1 {
			t.Errorf("it left %v", left)
		}
	})
}

func TestBuildNeedsGit(t *testing.T) {
	w := newWork(t, "sha1")
	t.Setenv("PATH", t.TempDir())
	w.refuses(exec.ErrNotFound, "git rev-parse")
}

// A hook of another repository has these in its environment.
func TestBuildIgnoresWhereTheEnvironmentPoints(t *testing.T) {
	w, other := newWork(t, "sha1"), newWork(t, "sha1")
	other.file("other", "", 0o644)
	other.commit()
	_, want := w.build()
	t.Setenv("GIT_DIR", filepath.Join(other.dir, ".git"))
	t.Setenv("GIT_WORK_TREE", other.dir)
	t.Setenv("GIT_INDEX_FILE", filepath.Join(other.dir, ".git", "index"))
	if _, got := w.build(); got.SourceCommit != want.SourceCommit || got.ManifestSHA256 != want.ManifestSHA256 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Objects that git shows in the place of others are not what the commit names.
func TestBuildIgnoresReplacements(t *testing.T) {
	t.Parallel()
	w := newWork(t, "sha1")
	_, want := w.build()
	w.git("replace", w.git("rev-parse", "HEAD:README.md"), w.git("rev-parse", "HEAD:empty"))
	if _, got := w.build(); got.ManifestSHA256 != want.ManifestSHA256 {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
