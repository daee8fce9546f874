package bolt

import (
	"errors"
	"fmt"

	"opencode-mesh/store"
	"opencode-mesh/store/boltdb"
)

// errForgotten is both: the task is not there, and it is known that it was.
var errForgotten = fmt.Errorf("%w (%w)", store.ErrForgotten, store.ErrNotFound)

// refusal is a verdict on a change that was not made. To the engine it is no
// error: nothing was written, so the commit that others share goes on.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }

// refuse ends a transaction function with err. Only before its first change.
func refuse(err error) error { return &refusal{err} }

// faults maps the engine's errors to the store's.
var faults = []struct{ engine, store error }{
	{boltdb.ErrFull, store.ErrFull},
	{boltdb.ErrReadOnly, store.ErrReadOnly},
	{boltdb.ErrBusy, store.ErrBusy},
	{boltdb.ErrFailed, store.ErrFailed},
	{boltdb.ErrClosed, store.ErrClosed},
}

// fault makes an engine's error one of the store's that carries its detail.
func fault(err error) error {
	for _, f := range faults {
		if errors.Is(err, f.engine) {
			return fmt.Errorf("%w: %w", f.store, err)
		}
	}
	return err
}
