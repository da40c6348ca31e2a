package pgtest

import (
	"os/exec"
	"runtime"
	"syscall"
)

// attributes give a process a group of its own, and its end with this process: the
// server ends its own processes when it ends.
func attributes(c *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: c, Setpgid: true, Pdeathsig: syscall.SIGINT}
}

// start starts cmd from a thread that lives as long as this process: the signal is
// for the end of the thread.
func start(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- cmd.Start()
		select {}
	}()
	return <-started
}
