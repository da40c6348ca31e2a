package archive

import (
	"fmt"
	"slices"
	"strings"

	"mcpreplay/internal/archive/manifest"
)

// withheld are the names, in lower case, of what holds secrets or was built. They
// may stand in no part of a path: a file that was committed by mistake must not
// be published by a release.
var withheld = []string{
	".git", ".secrets", "credentials", "node_modules", ".venv", "__pycache__", ".pytest_cache", "dist", "build",
	".npmrc", ".pypirc", ".netrc", ".git-credentials", ".ssh", ".aws", ".gnupg", "id_rsa", "id_ed25519",
}

var withheldEndings = []string{".pem", ".p12", ".pfx", ".key"}

// check refuses files that must not be in an archive.
func check(files []tracked) error {
	paths := make([]string, 0, len(files))
	for _, f := range files {
		if _, ok := manifest.FileMode(f.mode); !ok {
			return fmt.Errorf("%w: %+q: mode %s: only regular files are archived, no links and no submodules", ErrRefused, f.path, f.mode)
		}
		if part := withheldPart(f.path); part != "" {
			return fmt.Errorf("%w: %+q: %+q is the name of a secret or of something built", ErrRefused, f.path, part)
		}
		paths = append(paths, f.path)
	}
	if err := manifest.CheckPaths(paths); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// withheldPart is the part of path for which it must not be published, or "".
func withheldPart(path string) string {
	for part := range strings.SplitSeq(path, "/") {
		lower := strings.ToLower(part)
		if slices.Contains(withheld, lower) || strings.HasPrefix(lower, ".env") ||
			slices.ContainsFunc(withheldEndings, func(end string) bool { return strings.HasSuffix(lower, end) }) {
			return part
		}
	}
	return ""
}
