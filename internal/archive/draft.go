package archive

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// checkPlace refuses an archive where something is, or inside one of the
// directories.
func checkPlace(out string, directories ...string) error {
	if _, err := os.Lstat(out); err == nil {
		return fmt.Errorf("%s: %w", out, ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at the place of the archive: %w", err)
	}
	// Resolved first: the parent of a link is not the parent of where it leads.
	at, err := filepath.Abs(filepath.Dir(out))
	if err == nil {
		at, err = filepath.EvalSymlinks(at)
	}
	if err != nil {
		return fmt.Errorf("look at the place of the archive: %w", err)
	}
	for {
		here, err := os.Stat(at)
		if err != nil {
			return fmt.Errorf("look at the place of the archive: %w", err)
		}
		for _, dir := range directories {
			there, err := os.Stat(dir)
			if err != nil {
				return fmt.Errorf("look at the repository: %w", err)
			}
			if os.SameFile(here, there) {
				return fmt.Errorf("%s: %w %s", out, ErrInside, dir)
			}
		}
		parent := filepath.Dir(at)
		if parent == at {
			return nil
		}
		at = parent
	}
}

// draft is an archive that is being written, beside its place.
type draft struct {
	*os.File
	out string
}

func newDraft(out string) (*draft, error) {
	f, err := os.OpenFile(out+"."+rand.Text()[:8]+".tmp", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, fmt.Errorf("create the archive: %w", err)
	}
	return &draft{File: f, out: out}, nil
}

// publish gives the draft its name, at once and whole. A link, and not a rename,
// because a rename replaces what has appeared there meanwhile.
func (d *draft) publish() error {
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	err := os.Link(d.Name(), d.out)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", d.out, ErrExists)
	}
	if err != nil {
		return fmt.Errorf("name the archive: %w", err)
	}
	return nil
}

// discard removes the name of the draft; the archive keeps its own.
func (d *draft) discard() {
	_ = d.Close()
	_ = os.Remove(d.Name())
}
