//go:build !linux && !darwin

package tunnel

// setNotSentLowat does nothing: this OS has no such option.
func setNotSentLowat(uintptr, int) {}
