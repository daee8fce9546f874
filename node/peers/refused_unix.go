//go:build !windows

package peers

import "syscall"

const errRefused = syscall.ECONNREFUSED
