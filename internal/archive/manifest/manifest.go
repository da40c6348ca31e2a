// Package manifest is what the builder of a release archive and its verifier agree
// on: the shape of the manifest, and which paths an archive may hold. It needs the
// standard library alone, so that an archive can be verified without downloading
// anything.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
)

// Name is where the manifest lies in the root of an archive.
const Name = "ARCHIVE-MANIFEST.json"

// Format names the one shape of a manifest there is.
const Format = "mcpreplay-archive-v1"

// What an archive holds is bounded, so that reading one is.
const (
	MaxSize     = 4 << 20   // bytes of the manifest
	MaxFileSize = 256 << 20 // bytes of a file
)

// Manifest says what an archive holds. Its members are a contract: docs/cli.md.
type Manifest struct {
	Format       string  `json:"format"`
	SourceCommit string  `json:"sourceCommit"`
	FileCount    int     `json:"fileCount"`
	Entries      []Entry `json:"entries"`
}

// Entry is one file.
type Entry struct {
	Path        string `json:"path"`
	Mode        string `json:"mode"` // as in the commit: 100644 or 100755
	Size        int64  `json:"size"`
	SHA256      string `json:"sha256"`
	GitBlobSHA1 string `json:"gitBlobSha1"`
}

// modes are those of the files that an archive may hold, as git writes them.
var modes = map[string]fs.FileMode{"100644": 0o644, "100755": 0o755}

// FileMode is a mode of git as the mode of a regular file. It reports false for
// links, submodules and whatever else is not archived.
func FileMode(mode string) (fs.FileMode, bool) {
	m, ok := modes[mode]
	return m, ok
}

// Encode is the manifest as it lies in an archive. The same manifest is always the
// same bytes.
func (m *Manifest) Encode() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(m)
	return b.Bytes(), err
}

// Parse reads a manifest and holds it against every rule that needs no files. The
// error names the rule, and the path if there is one.
func Parse(data []byte) (*Manifest, error) {
	value, err := parseJSON(data)
	if err != nil {
		return nil, err
	}
	top, err := object(value, "the manifest", "format", "sourceCommit", "fileCount", "entries")
	if err != nil {
		return nil, err
	}
	m := &Manifest{}
	if m.Format, _ = top["format"].(string); m.Format != Format {
		return nil, fmt.Errorf("unsupported manifest format: it must be %q", Format)
	}
	if m.SourceCommit, _ = top["sourceCommit"].(string); !digits(m.SourceCommit, 40) {
		return nil, errors.New("invalid source commit: it must be 40 hexadecimal digits in lower case")
	}
	list, ok := top["entries"].([]any)
	if !ok {
		return nil, errors.New("entries is no array")
	}
	count, ok := integer(top["fileCount"])
	if !ok {
		return nil, errors.New("file count mismatch: fileCount is no natural number")
	}
	if count != int64(len(list)) {
		return nil, fmt.Errorf("file count mismatch: fileCount is %d, and there are %d entries", count, len(list))
	}
	m.FileCount = len(list)
	m.Entries = make([]Entry, 0, len(list))
	paths := make([]string, 0, len(list))
	for i, value := range list {
		e, err := parseEntry(value, i)
		if err != nil {
			return nil, err
		}
		m.Entries = append(m.Entries, e)
		paths = append(paths, e.Path)
	}
	return m, CheckPaths(paths)
}

func parseEntry(value any, i int) (e Entry, err error) {
	o, err := object(value, "entry "+strconv.Itoa(i), "path", "mode", "size", "sha256", "gitBlobSha1")
	if err != nil {
		return e, err
	}
	var ok bool
	if e.Path, ok = o["path"].(string); !ok {
		return e, fmt.Errorf("entry %d: unsafe path: it is no string", i)
	}
	if err := CheckPath(e.Path); err != nil {
		return e, err
	}
	if e.Mode, _ = o["mode"].(string); modes[e.Mode] == 0 {
		return e, fmt.Errorf("%q: unsupported mode %v: only 100644 and 100755 are", e.Path, quote(o["mode"]))
	}
	if e.Size, ok = integer(o["size"]); !ok || e.Size > MaxFileSize {
		return e, fmt.Errorf("%q: invalid size: it must be an integer from 0 to %d", e.Path, MaxFileSize)
	}
	if e.SHA256, _ = o["sha256"].(string); !digits(e.SHA256, 64) {
		return e, fmt.Errorf("%q: invalid sha256: it must be 64 hexadecimal digits in lower case", e.Path)
	}
	if e.GitBlobSHA1, _ = o["gitBlobSha1"].(string); !digits(e.GitBlobSHA1, 40) {
		return e, fmt.Errorf("%q: invalid gitBlobSha1: it must be 40 hexadecimal digits in lower case", e.Path)
	}
	return e, nil
}

var lowerHex = regexp.MustCompile(`^[0-9a-f]*$`)

// digits reports whether s is n hexadecimal digits in lower case.
func digits(s string, n int) bool { return len(s) == n && lowerHex.MatchString(s) }

// quote is a JSON value from outside as it may go into a message.
func quote(v any) string {
	if s, ok := v.(string); ok {
		return strconv.Quote(s)
	}
	return "that is no string"
}
