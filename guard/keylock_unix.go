//go:build unix

package guard

import (
	"errors"
	"os"
	"syscall"
)

// lockKeyFile waits until nobody else changes the key file. The lock is on a file
// beside it, which stays: the key file itself is replaced. It ends with the process.
func lockKeyFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}
