package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"mcpreplay/internal/archive/manifest"
)

func entry(path string) manifest.Entry {
	return manifest.Entry{Path: path, Mode: "100644", Size: 3, SHA256: strings.Repeat("ab", 32), GitBlobSHA1: strings.Repeat("cd", 20)}
}

func encode(t *testing.T, paths ...string) string {
	t.Helper()
	m := manifest.Manifest{Format: manifest.Format, SourceCommit: strings.Repeat("0f", 20), FileCount: len(paths), Entries: []manifest.Entry{}}
	for _, path := range paths {
		m.Entries = append(m.Entries, entry(path))
	}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestParseReadsWhatEncodeWrites(t *testing.T) {
	t.Parallel()
	for _, paths := range [][]string{{}, {"a"}, {"A&B", "b/c", "b/d/e", "b<c>"}} {
		text := encode(t, paths...)
		m, err := manifest.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		again, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if string(again) != text {
			t.Errorf("got %s, want %s", again, text)
		}
	}
}

// Each case changes one thing of a good manifest.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	good := encode(t, "a.txt", "b/c.sh")
	swap := func(old, new string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("%q is not in the manifest", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	sha256, sha1, commit := strings.Repeat("ab", 32), strings.Repeat("cd", 20), strings.Repeat("0f", 20)
	tests := []struct{ name, text, want string }{
		{"empty", "", "invalid JSON: EOF"},
		{"syntax", swap(`{`, `{,`), "invalid JSON: "},
		{"byte order mark", "\ufeff" + good, "invalid JSON: "},
		{"not UTF-8", swap("a.txt", "a\xff"), "invalid JSON: it is not UTF-8"},
		{"trailing value", good + "{}", "trailing data"},
		{"trailing garbage", good + "\x00", "trailing data"},
		{"deep", strings.Repeat("[", 50) + strings.Repeat("]", 50), "nested too deeply"},
		{"duplicate member", swap(`"format"`, `"format": "x", "format"`), `duplicate JSON member "format"`},
		{"duplicate member by escape", swap(`"format"`, `"\u0066ormat": "x", "format"`), `duplicate JSON member "format"`},
		{"duplicate member of an entry", swap(`"mode"`, `"mode": "100755", "mode"`), `duplicate JSON member "mode"`},
		{"array", "[]", "the manifest is no object"},
		{"unknown member", swap(`"format"`, `"extra": 1, "format"`), `the manifest: unknown member "extra"`},
		{"member in another case", swap(`"format"`, `"Format"`), `the manifest: unknown member "Format"`},
		{"missing member", swap(`"sourceCommit": "`+commit+`",`, ``), `the manifest: missing member "sourceCommit"`},
		{"another format", swap("archive-v1", "archive-v2"), "unsupported manifest format"},
		{"format is no string", swap(`"mcpreplay-archive-v1"`, `1`), "unsupported manifest format"},
		{"commit too short", swap(commit, commit[1:]), "invalid source commit"},
		{"commit in upper case", swap(commit, strings.ToUpper(commit)), "invalid source commit"},
		{"commit is null", swap(`"`+commit+`"`, `null`), "invalid source commit"},
		{"entries is no array", swap(`"entries": [`, `"entries": {}, "x": [`), `unknown member "x"`},
		{"entries is null", `{"format":"mcpreplay-archive-v1","sourceCommit":"` + commit + `","fileCount":0,"entries":null}`, "entries is no array"},
		{"count too low", swap(`"fileCount": 2`, `"fileCount": 1`), "file count mismatch: fileCount is 1, and there are 2 entries"},
		{"count is a fraction", swap(`"fileCount": 2`, `"fileCount": 2.0`), "file count mismatch: fileCount is no natural number"},
		{"count is a string", swap(`"fileCount": 2`, `"fileCount": "2"`), "file count mismatch"},
		{"count is true", swap(`"fileCount": 2`, `"fileCount": true`), "file count mismatch"},
		{"count beyond an integer", swap(`"fileCount": 2`, `"fileCount": 99999999999999999999`), "file count mismatch"},
		{"entry is a string", swap(`"entries": [`, `"entries": ["x",`), "file count mismatch"},
		{"entry is null", strings.Replace(swap(`"entries": [`, `"entries": [null,`), `"fileCount": 2`, `"fileCount": 3`, 1), "entry 0 is no object"},
		{"entry has an unknown member", swap(`"mode"`, `"owner": "root", "mode"`), `entry 0: unknown member "owner"`},
		{"entry lacks a member", swap(`"size": 3,`, ``), `entry 0: missing member "size"`},
		{"path is a number", swap(`"a.txt"`, `1`), "entry 0: unsafe path: it is no string"},
		{"path leaves the tree", swap("a.txt", "../a.txt"), `"../a.txt": unsafe path`},
		{"path with a newline", swap("a.txt", `a\n.txt`), `"a\n.txt": unsafe path`},
		{"lone surrogate", swap("a.txt", `a\ud800`), `unsafe path`},
		{"manifest itself", swap("a.txt", manifest.Name), `"ARCHIVE-MANIFEST.json": reserved path`},
		{"git directory", swap("a.txt", ".git/config"), `".git/config": reserved path`},
		{"duplicate path", swap("b/c.sh", "a.txt"), `"a.txt": duplicate path`},
		{"case collision", swap("b/c.sh", "A.txt"), `"A.txt": case collision with "a.txt"`},
		{"not sorted", swap("a.txt", "c.txt"), `"b/c.sh": the entries are not sorted by path`},
		{"mode of a link", swap("100644", "120000"), `"a.txt": unsupported mode "120000"`},
		{"mode of a group", swap("100644", "100664"), `"a.txt": unsupported mode "100664"`},
		{"mode is a number", swap(`"100644"`, `100644`), `"a.txt": unsupported mode that is no string`},
		{"negative size", swap(`"size": 3`, `"size": -3`), `"a.txt": invalid size`},
		{"size is a fraction", swap(`"size": 3`, `"size": 3e0`), `"a.txt": invalid size`},
		{"size above the limit", swap(`"size": 3`, fmt.Sprintf(`"size": %d`, manifest.MaxFileSize+1)), `"a.txt": invalid size`},
		{"short sha256", swap(sha256, sha256[1:]), `"a.txt": invalid sha256`},
		{"sha256 in upper case", swap(sha256, strings.ToUpper(sha256)), `"a.txt": invalid sha256`},
		{"sha256 with a newline", swap(sha256, sha256[1:]+`\n`), `"a.txt": invalid sha256`},
		{"gitBlobSha1 is no hexadecimal", swap(sha1, "g"+sha1[1:]), `"a.txt": invalid gitBlobSha1`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := manifest.Parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCheckPathRefuses(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", `a\b`, `C:a`, "a:b", "a\x00", "a\n", "a\x7f", "ä", "a\xff",
		"a./b", "a ", "b /c", "...", ".git", "a/.GIT/b", ".Git", "archive-manifest.JSON", manifest.Name + "/a", strings.Repeat("a", 256), strings.Repeat("\xff", 1<<20),
	} {
		if err := manifest.CheckPath(path); err == nil {
			t.Errorf("%q is let through", path)
		}
	}
	for _, path := range []string{"a", "a b/c", ".gitignore", "a/" + manifest.Name, "..a", "a~1", "-", "$HOME", strings.Repeat("a", 255)} {
		if err := manifest.CheckPath(path); err != nil {
			t.Error(err)
		}
	}
}

func TestCheckPathsRefusesWhatCollides(t *testing.T) {
	t.Parallel()
	tests := []struct {
		want  string
		paths []string
	}{
		{`"docs": case collision with "Docs"`, []string{"Docs/a", "docs/b"}},
		{`"x": case collision with "X"`, []string{"X", "x/a"}},
		{`"a": it is a file and a directory`, []string{"a", "a/b"}},
		{`"a": it is a file and a directory`, []string{"a/b", "a"}},
		{`"a/b": duplicate path`, []string{"a/b", "a/c", "a/b"}},
		{`"a": the entries are not sorted by path`, []string{"b", "a"}},
	}
	for _, tt := range tests {
		if err := manifest.CheckPaths(tt.paths); err == nil || err.Error() != tt.want {
			t.Errorf("%q: got %v, want %s", tt.paths, err, tt.want)
		}
	}
	if err := manifest.CheckPaths([]string{"a", "a-b", "a.b/c", "ab/c", "ab/d"}); err != nil {
		t.Error(err)
	}
}

// What is accepted has one meaning: it is what Encode writes, but for white space,
// the order of members and escapes.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"format":"mcpreplay-archive-v1","sourceCommit":"` + strings.Repeat("0f", 20) + `","fileCount":0,"entries":[]}`))
	f.Add([]byte(`{"format":"mcpreplay-archive-v1","sourceCommit":"` + strings.Repeat("0f", 20) + `","fileCount":1,"entries":[{"path":"a","mode":"100644","size":0,"sha256":"` + strings.Repeat("ab", 32) + `","gitBlobSha1":"` + strings.Repeat("cd", 20) + `"}]}`))
	f.Add([]byte(`[[[[{}]]]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := manifest.Parse(data)
		if err != nil {
			return
		}
		text, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := manifest.Parse(text); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	})
}
