//go:build !linux

package opencodebin

import "os/exec"

// bind can do nothing here: a server ends with its test, but not if that is killed.
func bind(*exec.Cmd) {}
