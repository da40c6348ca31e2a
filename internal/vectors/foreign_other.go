//go:build !unix

package vectors

import "os/exec"

// endTogether leaves the descendants of a command alone: there is no way here to
// end them that every system has.
func endTogether(*exec.Cmd) {}

func endAll(cmd *exec.Cmd) error { return cmd.Process.Kill() }
