package main

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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
	os.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	os.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	os.Exit(m.Run())
}

// source is what the archive of most tests is made of.
var source = map[string]string{
	"README.md":     "hello\n",
	"cmd/run.sh":    "#!/bin/sh\n",
	"docs/a/b.md":   "deep\n",
	"docs/empty.md": "",
}

// build archives files and returns the zip file.
func build(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	for path, text := range files {
		mode := os.FileMode(0o644)
		if strings.HasSuffix(path, ".sh") {
			mode = 0o755
		}
		write(t, filepath.Join(dir, path), text, mode)
	}
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"add", "--all"},
		{"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "x"},
	} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	out := filepath.Join(t.TempDir(), "out.zip")
	if _, err := archive.Build(t.Context(), dir, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// unpack unpacks a zip file with modes, and returns its one directory.
func unpack(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, f.Name), string(text), f.Mode())
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || !entries[0].IsDir() {
		t.Fatalf("%v %v", entries, err)
	}
	return filepath.Join(dir, entries[0].Name())
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

type ran struct {
	code           int
	stdout, stderr string
}

func command(args ...string) ran {
	var stdout, stderr bytes.Buffer
	code := run(args, &stdout, &stderr)
	return ran{code, stdout.String(), stderr.String()}
}

var report = regexp.MustCompile(`^4 files verified, manifest sha256 ([0-9a-f]{64})\n$`)

func TestVerifyAcceptsWhatWasBuilt(t *testing.T) {
	t.Parallel()
	dir := unpack(t, build(t, source))
	got := command("--root", dir)
	found := report.FindStringSubmatch(got.stdout)
	if got.code != exitFine || got.stderr != "" || found == nil {
		t.Fatalf("%+v", got)
	}
	for _, sum := range []string{found[1], strings.ToUpper(found[1])} {
		if got := command("-root", dir, "-manifest-sha256", sum); got.code != exitFine {
			t.Errorf("%+v", got)
		}
	}
	got = command("--root", dir, "--manifest-sha256", strings.Repeat("0", 64))
	want := "archive verification failed: ARCHIVE-MANIFEST.json: it is not the manifest that was published: its SHA-256 is " + found[1] + "\n"
	if got.code != exitFailed || got.stdout != "" || got.stderr != want {
		t.Errorf("%+v", got)
	}
}

func TestVerifyRefusesMisuse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"x"}, {"--nosuch"}, {"--root", filepath.Join(dir, "missing")}, {"--root", ""},
		{"--root", dir, "--manifest-sha256", ""}, {"--root", dir, "--manifest-sha256", "ab"},
		{"--root", dir, "--manifest-sha256", strings.Repeat("g", 64)},
	} {
		if got := command(args...); got.code != exitMisused || got.stdout != "" || got.stderr == "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := command("-help"); got.code != exitFine || !strings.Contains(got.stderr, "-manifest-sha256 HEX") {
		t.Errorf("%+v", got)
	}
}

// unpacked is an archive to spoil.
type unpacked struct {
	t   *testing.T
	dir string
}

func (u unpacked) at(path string) string { return filepath.Join(u.dir, filepath.FromSlash(path)) }

func (u unpacked) must(err error) {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
}

// edit changes one place of the manifest.
func (u unpacked) edit(old, new string) {
	u.t.Helper()
	text, err := os.ReadFile(u.at(manifest.Name))
	u.must(err)
	changed := strings.Replace(string(text), old, new, 1)
	if changed == string(text) {
		u.t.Fatalf("%q is not in the manifest", old)
	}
	u.must(os.WriteFile(u.at(manifest.Name), []byte(changed), 0o644))
}

// Each case spoils one thing of a good archive. The rules of the manifest alone
// have more cases beside its parser.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	file := build(t, source)
	link := func(to, path string) func(unpacked) {
		return func(u unpacked) {
			u.must(os.RemoveAll(u.at(path)))
			u.must(os.Symlink(to, u.at(path)))
		}
	}
	edit := func(old, new string) func(unpacked) { return func(u unpacked) { u.edit(old, new) } }
	add := func(path, text string) func(unpacked) {
		return func(u unpacked) { write(u.t, u.at(path), text, 0o644) }
	}
	mkdir := func(path string) func(unpacked) {
		return func(u unpacked) { u.must(os.MkdirAll(u.at(path), 0o755)) }
	}
	remove := func(path string) func(unpacked) { return func(u unpacked) { u.must(os.RemoveAll(u.at(path))) } }
	chmod := func(path string, mode os.FileMode) func(unpacked) {
		return func(u unpacked) { u.must(os.Chmod(u.at(path), mode)) }
	}
	truncate := func(path string, size int64) func(unpacked) {
		return func(u unpacked) { u.must(os.Truncate(u.at(path), size)) }
	}
	pipe := func(path string) func(unpacked) {
		return func(u unpacked) {
			u.must(os.RemoveAll(u.at(path)))
			u.must(exec.Command("mkfifo", u.at(path)).Run())
		}
	}
	both := func(all ...func(unpacked)) func(unpacked) {
		return func(u unpacked) {
			for _, spoil := range all {
				spoil(u)
			}
		}
	}
	swap := func(path, text string) func(unpacked) { return both(remove(path), add(path, text)) }

	tests := []struct {
		name, want string
		spoil      func(unpacked)
	}{
		{"manifest missing", "ARCHIVE-MANIFEST.json: missing or linked manifest", remove(manifest.Name)},
		{"manifest linked", "ARCHIVE-MANIFEST.json: missing or linked manifest", func(u unpacked) {
			u.must(os.Rename(u.at(manifest.Name), u.at("m.json")))
			u.must(os.Symlink("m.json", u.at(manifest.Name)))
		}},
		{"manifest is a directory", "ARCHIVE-MANIFEST.json: missing or linked manifest", both(remove(manifest.Name), mkdir(manifest.Name))},
		{"manifest is a pipe", "ARCHIVE-MANIFEST.json: missing or linked manifest", pipe(manifest.Name)},
		{"manifest without an end", "ARCHIVE-MANIFEST.json: manifest too large", truncate(manifest.Name, 1<<40)},
		{"manifest empty", "ARCHIVE-MANIFEST.json: invalid JSON: EOF", truncate(manifest.Name, 0)},
		{"manifest mode", "ARCHIVE-MANIFEST.json: manifest mode mismatch: it is 0600, and must be 0644", chmod(manifest.Name, 0o600)},
		{"duplicate member", `ARCHIVE-MANIFEST.json: duplicate JSON member "fileCount"`, edit(`"fileCount": 4`, `"fileCount": 4, "fileCount": 4`)},
		{"unknown member", `ARCHIVE-MANIFEST.json: the manifest: unknown member "note"`, edit(`"fileCount"`, `"note": "", "fileCount"`)},
		{"unknown member of an entry", `ARCHIVE-MANIFEST.json: entry 0: unknown member "note"`, edit(`"path"`, `"note": "", "path"`)},
		{"trailing data", "ARCHIVE-MANIFEST.json: trailing data", edit("\n}\n", "\n}\n{}\n")},
		{"another format", "ARCHIVE-MANIFEST.json: unsupported manifest format", edit("archive-v1", "archive-v9")},
		{"bad commit", "ARCHIVE-MANIFEST.json: invalid source commit", edit(`"sourceCommit": "`, `"sourceCommit": "0`)},
		{"count", "ARCHIVE-MANIFEST.json: file count mismatch: fileCount is 5, and there are 4 entries", edit(`"fileCount": 4`, `"fileCount": 5`)},
		{"entry of another type", "ARCHIVE-MANIFEST.json: entry 0 is no object", both(edit(`"entries": [`, `"entries": [7,`), edit(`"fileCount": 4`, `"fileCount": 5`))},
		{"unsafe path", `ARCHIVE-MANIFEST.json: "../README.md": unsafe path`, edit(`"README.md"`, `"../README.md"`)},
		{"absolute path", `ARCHIVE-MANIFEST.json: "/etc/passwd": unsafe path`, edit(`"README.md"`, `"/etc/passwd"`)},
		{"reserved path", `ARCHIVE-MANIFEST.json: ".git/config": reserved path`, edit(`"README.md"`, `".git/config"`)},
		{"path of the manifest", `ARCHIVE-MANIFEST.json: "ARCHIVE-MANIFEST.json": reserved path`, edit(`"README.md"`, `"ARCHIVE-MANIFEST.json"`)},
		{"duplicate path", `ARCHIVE-MANIFEST.json: "docs/a/b.md": duplicate path`, edit("docs/empty.md", "docs/a/b.md")},
		{"case collision", `ARCHIVE-MANIFEST.json: "docs/A": case collision with "docs/a"`, edit("docs/empty.md", "docs/A/b.md")},
		{"unsupported mode", `ARCHIVE-MANIFEST.json: "README.md": unsupported mode "120000"`, edit("100644", "120000")},
		{"bad sha256", `ARCHIVE-MANIFEST.json: "README.md": invalid sha256`, edit(`"sha256": "`, `"sha256": "x`)},
		{"bad gitBlobSha1", `ARCHIVE-MANIFEST.json: "README.md": invalid gitBlobSha1`, edit(`"gitBlobSha1": "`, `"gitBlobSha1": "x`)},

		{".git directory", `".git": .git is present`, mkdir(".git")},
		{".git file", `"docs/.git": .git is present`, add("docs/.git", "gitdir: x")},
		{".git in capitals", `"docs/.GIT": .git is present`, mkdir("docs/.GIT")},
		{".git link", `".git": .git is present`, link("/", ".git")},
		{"extra link", `"extra": it is a link`, link("README.md", "extra")},
		{"link that leads nowhere", `"extra": it is a link`, link("nowhere", "extra")},
		{"file is a link", `"README.md": it is a link`, both(add("docs/copy", source["README.md"]), link("docs/copy", "README.md"))},
		{"directory is a link", `"docs": it is a link`, func(u unpacked) {
			moved := filepath.Join(u.t.TempDir(), "docs")
			u.must(os.Rename(u.at("docs"), moved))
			u.must(os.Symlink(moved, u.at("docs")))
		}},
		{"pipe", `"docs/pipe": it is a special file`, pipe("docs/pipe")},
		{"file is a pipe", `"README.md": it is a special file`, pipe("README.md")},

		{"extra empty directory", `directory inventory mismatch: missing: none; extra: ["docs/new"]`, mkdir("docs/new")},
		{"extra directory with files", `directory inventory mismatch: missing: none; extra: ["new"]`, add("new/dir/file", "")},
		{"missing directory", `directory inventory mismatch: missing: ["docs/a"]; extra: none`, remove("docs/a")},
		{"directory in other case", `directory inventory mismatch: missing: ["cmd"]; extra: ["CMD"]`, func(u unpacked) { u.must(os.Rename(u.at("cmd"), u.at("CMD"))) }},
		{"directory is a file", `directory inventory mismatch: missing: ["docs/a"]; extra: none`, swap("docs/a", "")},
		{"file is a directory", `directory inventory mismatch: missing: none; extra: ["README.md"]`, both(remove("README.md"), mkdir("README.md"))},
		{"extra file", `file inventory mismatch: missing: none; extra: ["docs/extra.md"]`, add("docs/extra.md", "")},
		{"extra file in other case", `file inventory mismatch: missing: none; extra: ["readme.md"]`, add("readme.md", "")},
		{"extra file with a bad name", `file inventory mismatch: missing: none; extra: ["\x1b[2J"]`, add("\x1b[2J", "")},
		{"manifest in a directory", `file inventory mismatch: missing: none; extra: ["docs/ARCHIVE-MANIFEST.json"]`, add("docs/ARCHIVE-MANIFEST.json", "")},
		{"missing file", `file inventory mismatch: missing: ["docs/empty.md"]; extra: none`, remove("docs/empty.md")},
		{"renamed file", `file inventory mismatch: missing: ["docs/empty.md"]; extra: ["docs/void.md"]`, func(u unpacked) { u.must(os.Rename(u.at("docs/empty.md"), u.at("docs/void.md"))) }},

		{"mode for the owner alone", `"README.md": mode mismatch: it is 0600, and must be 0644`, chmod("README.md", 0o600)},
		{"mode for the group", `"README.md": mode mismatch: it is 0664, and must be 0644`, chmod("README.md", 0o664)},
		{"executable", `"README.md": mode mismatch: it is 0755, and must be 0644`, chmod("README.md", 0o755)},
		{"not executable", `"cmd/run.sh": mode mismatch: it is 0644, and must be 0755`, chmod("cmd/run.sh", 0o644)},
		{"set user id", `"cmd/run.sh": mode mismatch: it is 4755, and must be 0755`, chmod("cmd/run.sh", 0o755|os.ModeSetuid)},
		{"mode of the manifest's entry", `"README.md": mode mismatch: it is 0644, and must be 0755`, edit("100644", "100755")},
		{"longer", `"README.md": size mismatch: it has 7 bytes, and must have 6`, add("README.md", "hello\n\n")},
		{"shorter", `"README.md": size mismatch: it has 0 bytes, and must have 6`, truncate("README.md", 0)},
		{"without an end", `"README.md": size mismatch: it has 1099511627776 bytes, and must have 6`, truncate("README.md", 1<<40)},
		{"size that is a lie", `"README.md": size mismatch: it has 6 bytes, and must have 268435456`, edit(`"size": 6`, fmt.Sprintf(`"size": %d`, manifest.MaxFileSize))},
		{"other bytes", `"README.md": SHA-256 mismatch: it is `, add("README.md", "hellO\n")},
		{"other line end", `"README.md": size mismatch`, add("README.md", "hello\r\n")},
		{"other SHA-256", `"README.md": SHA-256 mismatch: it is `, func(u unpacked) {
			u.edit("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03", strings.Repeat("0", 64))
		}},
		{"other git blob", `"README.md": git blob mismatch: it is ce013625030ba8dba906f756967f9e9ca394464a, and must be 0000`, func(u unpacked) {
			u.edit("ce013625030ba8dba906f756967f9e9ca394464a", strings.Repeat("0", 40))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := unpacked{t: t, dir: unpack(t, file)}
			tt.spoil(u)
			got := command("--root", u.dir)
			if got.code != exitFailed || got.stdout != "" || !strings.HasPrefix(got.stderr, "archive verification failed: "+tt.want) || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("got %+v\nwant %s", got, tt.want)
			}
		})
	}
}

// A receiver runs the verifier out of the archive, without the modules that the rest
// of it needs and without a network.
func TestVerifyRunsInAnUnpackedArchiveOffline(t *testing.T) {
	t.Parallel()
	module := filepath.Join("..", "..")
	files := map[string]string{}
	for _, pattern := range []string{"go.mod", "go.sum", "doc.go", "cmd/verifyarchive/*.go", "internal/archive/manifest/*.go"} {
		found, err := filepath.Glob(filepath.Join(module, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v %v", pattern, found, err)
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			path, err := filepath.Rel(module, name)
			if err != nil {
				t.Fatal(err)
			}
			files[filepath.ToSlash(path)] = string(text)
		}
	}
	cmd := exec.Command("go", "run", "./cmd/verifyarchive")
	cmd.Dir = unpack(t, build(t, files))
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=", "GOTOOLCHAIN=local", "GOWORK=off", "GOMODCACHE="+t.TempDir())
	out, err := cmd.CombinedOutput()
	want := fmt.Sprintf("%d files verified, manifest sha256 ", len(files))
	if err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%v: got %s, want %s", err, out, want)
	}
	if again := command("--root", cmd.Dir); again.code != exitFine {
		t.Errorf("running it changed the tree: %+v", again)
	}
}
