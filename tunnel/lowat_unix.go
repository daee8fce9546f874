//go:build linux || darwin

package tunnel

import "golang.org/x/sys/unix"

// setNotSentLowat bounds what may wait unsent in the kernel. It is an
// improvement only, so an old kernel without it is no error.
func setNotSentLowat(fd uintptr, n int) {
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, n)
}
