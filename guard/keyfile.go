package guard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"mcpreplay"
)

// KeyFile reads a key ring from a file: one secret a line in hexadecimal, the
// first of which seals while all of them open. If there is no file, one with a
// fresh random secret is created that only its owner may read. Two processes
// that create it at once end with the same keys. A file that others may read is
// refused.
func KeyFile(path string) (*mcpreplay.Keyring, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = createKeyFile(path)
	}
	if err == nil {
		err = private(path)
	}
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	ring, err := mcpreplay.ParseKeyring(text)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return ring, nil
}

// createKeyFile writes the whole file aside and links it into place, so that
// nobody ever reads half of it and the first of two creators wins.
func createKeyFile(path string) ([]byte, error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	aside, err := os.CreateTemp(filepath.Dir(path), ".keys-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(aside.Name())
	_, err = aside.WriteString(mcpreplay.FormatKey(secret) + "\n")
	if err == nil {
		err = aside.Sync()
	}
	if err := errors.Join(err, aside.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(aside.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	// The name must survive a power cut as well: a second secret in its place
	// would make every record of the first one incomparable.
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// private refuses a file that its group or others may use. Windows has no such
// bits to look at.
func private(path string) error {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("%s may be used by others (mode %#o); make it yours alone with chmod 600", path, mode)
	}
	return nil
}

func syncDir(path string) error {
	if runtime.GOOS == "windows" { // directories cannot be synced there
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
