package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// entry is one line of the inventory.
type entry struct {
	digest string
	size   int64
	name   string
}

func (e entry) String() string { return fmt.Sprintf("%s %d %s", e.digest, e.size, e.name) }

func enter(root *os.Root, name string) (entry, error) {
	f, err := openFile(root, name)
	if err != nil {
		return entry{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return entry{hex.EncodeToString(h.Sum(nil)), n, name}, err
}

func parseInventory(text []byte) ([]entry, error) {
	var entries []entry
	err := lines(bytes.NewReader(text), func(n int, line []byte) error {
		parts := strings.SplitN(string(line), " ", 3)
		if len(parts) != 3 {
			return fmt.Errorf("line %d: it is not a digest, a size and a name", n)
		}
		size, err := strconv.ParseInt(parts[1], 10, 64)
		e := entry{parts[0], size, parts[2]}
		if sum, errSum := hex.DecodeString(e.digest); err != nil || errSum != nil || len(sum) != sha256.Size || e.String() != string(line) || !fs.ValidPath(e.name) {
			return fmt.Errorf("line %d: it is not a digest, a size and a name", n)
		}
		if k := len(entries); k > 0 && entries[k-1].name >= e.name {
			return fmt.Errorf("line %d: %s is not in its place", n, e.name)
		}
		entries = append(entries, e)
		return nil
	})
	return entries, err
}

// openFile opens a file for reading. What was put in its place since it was listed
// is not followed and not waited for.
func openFile(root *os.Root, name string) (io.ReadCloser, error) {
	listed, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	is, err := f.Stat()
	if err == nil && (!is.Mode().IsRegular() || !os.SameFile(listed, is) || is.Size() > maxFile) {
		err = errors.New("it is not the file that was listed")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(f, maxFile), f}, nil
}

// walk lists the files of an attempt, sorted. Anything that is neither a file nor
// a directory that an attempt has is an error that names it.
func walk(root *os.Root) ([]string, error) {
	var names []string
	err := fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		depth := strings.Count(name, "/")
		switch {
		case d.Type().IsRegular():
			info, err := d.Info()
			if err != nil {
				return err
			}
			if info.Size() > maxFile {
				return &FileError{name, fmt.Errorf("it has %d bytes, more than any file of an attempt", info.Size())}
			}
			if names = append(names, name); len(names) > maxFiles {
				return &FileError{name, fmt.Errorf("there are more than %d files", maxFiles)}
			}
		case !d.IsDir():
			return &FileError{name, errors.New("it is no regular file; links are not followed")}
		case name != "." && name != cellsDir && (path.Dir(name) != cellsDir || depth != 1):
			return &FileError{name, errors.New("no attempt has this directory")}
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// dirFiles are the files of a directory.
type dirFiles string

func (d dirFiles) Names() ([]string, error) {
	list, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, nil
}

func (d dirFiles) Open(name string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(d), name))
}

// What an attempt may have: more than any has.
const (
	maxFile  = 256 << 20 // bytes of a file
	maxFiles = 10_000
)
