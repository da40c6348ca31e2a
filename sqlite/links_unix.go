//go:build unix

package sqlite

import (
	"io/fs"
	"syscall"
)

// links is how many names a file has.
func links(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}
