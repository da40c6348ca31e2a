package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"runtime/debug"
)

// Provenance says what ran. It names no host, no user and no path.
type Provenance struct {
	Commit    string   `json:"commit"`  // "" if it is not known
	Dirty     *bool    `json:"dirty"`   // null if it is not known
	Program   string   `json:"program"` // SHA-256 of the server's binary
	GoVersion string   `json:"goVersion"`
	Platform  string   `json:"platform"`
	Modules   []Module `json:"modules"`
}

// Module is one dependency that was built in.
type Module struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Sum     string `json:"sum"`
}

// Describe is the provenance of the running program, and of the binary at exe. A
// build that is not stamped with its commit may be given one.
func Describe(exe, commit string, dirty *bool) (Provenance, error) {
	f, err := os.Open(exe)
	if err != nil {
		return Provenance{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return Provenance{}, err
	}
	p := Provenance{
		Commit: commit, Dirty: dirty, Program: hex.EncodeToString(h.Sum(nil)),
		GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Modules: []Module{},
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return p, nil
	}
	for _, m := range info.Deps {
		p.Modules = append(p.Modules, Module{m.Path, m.Version, m.Sum})
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			p.Commit = s.Value
		case "vcs.modified":
			modified := s.Value == "true"
			p.Dirty = &modified
		}
	}
	return p, nil
}
