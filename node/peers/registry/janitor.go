package registry

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"opencode-mesh/protocol/peers"
)

// clean removes the files of others that nobody has written for peers.JanitorAge and that
// are no entry, or one of a process that is gone. Own files, by name, are left alone
// whatever is in them.
//
// An entry with this process's id that is not its own is a predecessor's: in a container
// every start may get the same one. Of another process that has the same id, in another
// container, it would not be that old.
func (p *Publisher) clean(ctx context.Context, own map[string]bool) {
	reads := 0
	err := eachFile(ctx, p.dir, func(name string) bool {
		if own[name] {
			return true
		}
		path := filepath.Join(p.dir, name)
		info, err := os.Stat(path)
		if err != nil || p.now().Sub(info.ModTime()) <= peers.JanitorAge {
			return true
		}
		e, err := readFile(p.dir, name)
		unknown := errors.Is(err, peers.ErrJSON) || errors.Is(err, peers.ErrShape)
		if unknown || err == nil && (e.PID == p.pid || !exists(e.PID)) {
			if err := removeFile(path); err != nil {
				p.log.Debug("peers: a file that a dead process left in the registry stays", "file", path, "err", err)
			}
		}
		reads++
		return reads < MaxFiles
	})
	if err != nil && ctx.Err() == nil {
		p.log.Debug("peers: the registry could not be cleared", "err", err)
	}
}
