package cli

import (
	"os"

	"golang.org/x/sys/windows"
)

// escapes makes the console understand escape sequences and says whether it does.
func escapes(f *os.File) bool {
	console := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(console, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
