package memory

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/blevesearch/bleve/v2/index/scorch"
	index "github.com/blevesearch/bleve_index_api"
)

// Bounds of waiting for a disk.
const (
	// commitLimit is how long a commit may take; then it has failed.
	commitLimit = time.Minute
	// closeLimit is how long Close waits for what is under way, and then for the engine.
	closeLimit = 5 * time.Second
	// enginePause is how long the engine's own work rests after it failed.
	enginePause = 250 * time.Millisecond
)

// errStuck is the error of a disk that does not answer.
var errStuck = errors.New("the disk does not answer")

// pausing is the name of what the engine calls after its own work failed, such as the
// merging of files on a full disk. It would try again at once, with a whole core.
var pausing = func() string {
	const name = "opencode-mesh: pause"
	scorch.RegistryAsyncErrorCallbacks[name] = func(error, string) { time.Sleep(enginePause) }
	return name
}()

// write gives the engine a batch and waits for the disk, for so long. The engine itself
// waits without an end, even for a disk that never answers.
func (x *Index) write(e index.Index, b *index.Batch) error {
	done := make(chan error, 1)
	go func() { done <- guarded(func() error { return e.Batch(b) }) }()
	timer := time.NewTimer(x.cfg.commitLimit)
	defer timer.Stop()
	quit := x.quit
	for {
		select {
		case err := <-done:
			return err
		case <-quit: // Close waits
			quit = nil
			timer.Reset(min(x.cfg.closeLimit, x.cfg.commitLimit))
		case <-timer.C:
			return fmt.Errorf("%w: it took longer than %v to keep %d items", errStuck, x.cfg.commitLimit, len(b.IndexOps))
		}
	}
}

// suspend makes an index read-only after a commit that failed: the engine would try the same
// again and again without a pause. What is on disk can still be asked. The next commit
// resumes. Called with the turn of change.
func (x *Index) suspend(cause error) {
	broken, err := x.engines.put(none{})
	if err != nil {
		return // it is being closed
	}
	x.cfg.Log.Warn("the memory takes nothing in until it is looked again; it can be asked", "err", cause)
	x.failed = true
	if err = broken.shut(x.cfg.closeLimit); err == nil {
		err = x.start(func() (index.Index, error) {
			return startEngine(filepath.Join(x.cfg.Path, engineDir), x.queue, true)
		})
	}
	if err != nil {
		x.cfg.Log.Warn("the memory cannot be asked until it is looked again", "err", err)
	}
}

// resume opens an index for writing that was suspended. Called with the turn of change.
func (x *Index) resume() error {
	if !x.failed {
		return nil
	}
	before, err := x.engines.put(none{})
	if err != nil {
		return err
	}
	if err := before.shut(x.cfg.closeLimit); err != nil {
		return err
	}
	if err := x.start(func() (index.Index, error) { return openOrRemake(x.cfg, x.queue) }); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	x.failed = false
	return nil
}

// start makes an engine the one that is used. If the index was closed meanwhile, the engine
// is, too.
func (x *Index) start(open func() (index.Index, error)) error {
	return guarded(func() error {
		e, err := open()
		if err != nil {
			return err
		}
		if _, err = x.engines.put(e); err != nil {
			return errors.Join(err, e.Close())
		}
		return nil
	})
}
