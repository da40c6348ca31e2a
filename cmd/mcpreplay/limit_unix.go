//go:build linux || darwin

package main

import (
	"errors"
	"syscall"
)

// limitFileSize makes every write beyond n bytes of a file fail, in this process.
// The signal that comes with it does nothing in a Go program.
func limitFileSize(n int64) error {
	if n < 0 {
		return errors.New("it is below zero")
	}
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(n), Max: uint64(n)})
}
