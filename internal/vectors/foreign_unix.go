//go:build unix

package vectors

import (
	"os/exec"
	"syscall"
)

// endTogether makes the end of a command that is late the end of its descendants,
// too: of one that is started by another, as by "go run", the first would end alone.
func endTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return endAll(cmd) }
}

func endAll(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
