//go:build unix

package proc

import "errors"

// ended says that a process of here has ended.
func ended(id ID) bool {
	st, err := inspect(id.PID)
	return errors.Is(err, ErrGone) || err == nil && (st.zombie || st.start != id.Start)
}
