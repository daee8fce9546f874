//go:build !windows

package cli

import "os"

// escapes says whether the terminal understands escape sequences; here all do but
// the one that is called dumb.
func escapes(*os.File) bool { return true }
