package engine

import "time"

// Engine applies the rules. The zero value is ready.
type Engine struct {
	Now func() time.Time // nil is time.Now
}

// now is the time in milliseconds, as the file has it.
func (e Engine) now() int64 {
	if e.Now != nil {
		return e.Now().UnixMilli()
	}
	return time.Now().UnixMilli()
}
