//go:build unix && !linux

package pgtest

import (
	"os/exec"
	"syscall"
)

// attributes give a process a group of its own.
func attributes(c *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: c, Setpgid: true}
}

func start(cmd *exec.Cmd) error { return cmd.Start() }
