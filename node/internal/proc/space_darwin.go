package proc

import "golang.org/x/sys/unix"

// space is the boot.
func space() string {
	boot, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return boot
}
