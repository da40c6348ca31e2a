package guard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"mcpreplay"
)

// maxKeyFile is far more than any key file has.
const maxKeyFile = 1 << 20

// KeyFile reads the rings of a key file (see mcpreplay.KeyFile for its form). If there
// is no file, one with a fresh random secret is created that only its owner may read.
// Two processes that create it at once end with the same keys. A file that others may
// read is refused. A server reads it once: after it was changed, restart it.
func KeyFile(path string) (*mcpreplay.Keyring, error) {
	keys, err := ReadKeyFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = createKeyFile(path); err == nil {
			keys, err = ReadKeyFile(path)
		}
	}
	if err != nil {
		return nil, err
	}
	ring, err := keys.Keyring()
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return ring, nil
}

// ReadKeyFile reads a key file that exists.
func ReadKeyFile(path string) (mcpreplay.KeyFile, error) {
	if err := private(path); err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = errors.New("it is too large to be a key file")
	}
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	keys, err := mcpreplay.ParseKeyFile(text)
	if err != nil {
		return nil, fmt.Errorf("key file %s: %w", path, err)
	}
	return keys, nil
}

// RewriteKeyFile changes a key file, or makes one: change gets nil then. Whoever reads
// it meanwhile gets the old one or the new one, whole, and so does whoever comes after a
// crash. Two who change it at once take turns.
func RewriteKeyFile(path string, change func(mcpreplay.KeyFile) (mcpreplay.KeyFile, error)) (mcpreplay.KeyFile, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // a link stays one
	}
	unlock, err := lockKeyFile(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer unlock()
	keys, err := ReadKeyFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if keys, err = change(keys); err != nil {
		return nil, err
	}
	if _, err := keys.Keyring(); err != nil {
		return nil, err
	}
	aside, err := writeAside(path, keys.Format())
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if err := errors.Join(os.Rename(aside, path), syncDir(filepath.Dir(path))); err != nil {
		return nil, errors.Join(fmt.Errorf("key file: %w", err), os.Remove(aside))
	}
	return keys, nil
}

// writeAside writes a whole file beside path, for its owner only, and syncs it.
func writeAside(path string, text []byte) (string, error) {
	aside, err := os.CreateTemp(filepath.Dir(path), ".keys-*") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = aside.Write(text)
	if err == nil {
		err = aside.Sync()
	}
	if err := errors.Join(err, aside.Close()); err != nil {
		return "", errors.Join(err, os.Remove(aside.Name()))
	}
	return aside.Name(), nil
}

// createKeyFile links the whole file into place, so that nobody ever reads half of it
// and the first of two creators wins.
func createKeyFile(path string) error {
	secret := make([]byte, mcpreplay.MinSecretLength)
	rand.Read(secret) // never fails: it ends the process instead
	aside, err := writeAside(path, []byte(mcpreplay.FormatKey(secret)+"\n"))
	if err != nil {
		return err
	}
	defer os.Remove(aside)
	if err := os.Link(aside, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// The name must survive a power cut as well: a second secret in its place
	// would make every record of the first one incomparable.
	return syncDir(filepath.Dir(path))
}

// private refuses a file that its group or others may use. Windows has no such
// bits to look at.
func private(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
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
