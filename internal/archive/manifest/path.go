package manifest

import (
	"fmt"
	"strings"
)

// maxPath is how many bytes a path may have. It also bounds the directories that a
// manifest can name.
const maxPath = 255

// CheckPath reports why a path must not be in an archive. Only printable ASCII is
// let through: then one name has one spelling on every system, without tables of
// Unicode. What Windows reads in another way than other systems is refused too.
func CheckPath(path string) error {
	unsafe := func(why string) error { return fmt.Errorf("%+q: unsafe path: %s", path, why) }
	if path == "" {
		return unsafe("it is empty")
	}
	if len(path) > maxPath {
		return fmt.Errorf("%+q...: unsafe path: it has more than %d bytes", path[:40], maxPath)
	}
	for _, c := range []byte(path) {
		switch {
		case c < ' ' || c > '~':
			return unsafe("it is not printable ASCII")
		case c == '\\' || c == ':':
			return unsafe(fmt.Sprintf("it has a %q", c))
		}
	}
	if path[0] == '/' {
		return unsafe("it is absolute")
	}
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "" || part == "." || part == "..":
			return unsafe(fmt.Sprintf("it has a part %q", part))
		case strings.HasSuffix(part, ".") || strings.HasSuffix(part, " "):
			return unsafe("a part of it ends in a dot or a space")
		case strings.EqualFold(part, ".git"):
			return fmt.Errorf("%+q: reserved path: it belongs to git", path)
		}
	}
	if top, _, _ := strings.Cut(path, "/"); strings.EqualFold(top, Name) {
		return fmt.Errorf("%+q: reserved path: it is that of the manifest", path)
	}
	return nil
}

// CheckPaths holds the paths of an archive against CheckPath and each other: they
// must be sorted, and must not collide where upper and lower case are the same.
func CheckPaths(paths []string) error {
	tree := tree{}
	previous := ""
	for _, path := range paths {
		if err := CheckPath(path); err != nil {
			return err
		}
		if err := tree.add(path); err != nil {
			return err
		}
		if path < previous {
			return fmt.Errorf("%+q: the entries are not sorted by path", path)
		}
		previous = path
	}
	return nil
}

// tree is every file and directory, by its path in lower case.
type tree map[string]node

type node struct {
	path string
	file bool
}

func (t tree) add(path string) error {
	lower := strings.ToLower(path) // of the same length: it is ASCII
	for i := range len(path) + 1 {
		if i < len(path) && path[i] != '/' {
			continue
		}
		n := node{path: path[:i], file: i == len(path)}
		before, known := t[lower[:i]]
		switch {
		case !known:
			t[lower[:i]] = n
		case before.path != n.path:
			return fmt.Errorf("%+q: case collision with %+q", n.path, before.path)
		case before.file && n.file:
			return fmt.Errorf("%+q: duplicate path", n.path)
		case before.file || n.file:
			return fmt.Errorf("%+q: it is a file and a directory", n.path)
		}
	}
	return nil
}
