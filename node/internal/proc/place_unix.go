//go:build !windows

package proc

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Place names the very file at path, which a copy of it does not share; "" when
// that cannot be told.
func Place(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
