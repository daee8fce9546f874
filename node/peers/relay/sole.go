package relay

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Two nodes of one hub may share a machine and its registry. If both published the agents
// of other machines, they would share the spools of those, and what one carries the other
// would carry, too. So one node of a registry carries for a hub. Which one is said in a
// file beside the registry, for ever while that node is started now and then; the other
// shows nobody and nothing, unless it is given a registry of its own.

const (
	// SoleAge is how long a node that is not started keeps its place: as long as a message
	// may await its end, so that nothing is carried twice.
	SoleAge = GiveUp
	// soleTouch is how often it says that it is there.
	soleTouch = 10 * time.Minute
	// soleTorn is how old a file is that nobody will finish to write.
	soleTorn = time.Minute
)

// carrier is what the file says.
type carrier struct {
	Node string `json:"node"`
}

// Sole returns the path of the file that says which node carries between a registry and a
// hub.
func Sole(storageDir, hubID string) string {
	return filepath.Join(storageDir, "mesh-"+hubID+".json")
}

// sole reports whether this node is the one that carries, and takes the place if it is
// free. Call it only when there is something to carry: the file is made then.
func (r *Relay) sole() (bool, error) {
	path := r.cfg.Sole
	if path == "" {
		return true, nil
	}
	now := r.cfg.Now()
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r.takePlace(path)
	case err != nil:
		return false, err
	}
	at, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	var c carrier
	torn := json.Unmarshal(data, &c) != nil
	switch age := now.Sub(at.ModTime()); {
	case c.Node == r.cfg.Node:
		if age > soleTouch {
			err = os.Chtimes(path, now, now)
		}
		return err == nil, err
	case torn && age <= soleTorn:
		return false, nil // it is being written
	case !torn && age <= SoleAge:
		r.once("sole", "peers: another node of this machine carries messages between machines for this registry; "+
			"--peers-dir gives this node a registry of its own, and if that node is gone for good, remove the file", "carrier", c.Node, "file", path)
		return false, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return r.takePlace(path)
}

// takePlace makes the file, unless another node is faster.
func (r *Relay) takePlace(path string) (bool, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return false, nil // looked at again at the next pass
	}
	if err != nil {
		return false, err
	}
	data, err := json.Marshal(carrier{r.cfg.Node})
	if err == nil {
		_, err = f.Write(append(data, '\n'))
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		_ = os.Remove(path)
	}
	return err == nil, err
}
