package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"opencode-mesh/node/agent"
)

// CleanupFile is the file in the data directory that says which sessions were
// deleted by Config.Cleanup: one JSON object per line, the newest last. It only
// grows.
const CleanupFile = "cleanup.jsonl"

// cleaned is a line of CleanupFile.
type cleaned struct {
	At time.Time `json:"at"`
	agent.Removed
}

// canClean reports whether an agent has sessions that can be cleaned up.
func canClean(a agent.Agent) bool {
	_, ok := a.(agent.Cleaner)
	return ok
}

// clean deletes the sessions that controllers left on this machine. Nothing is
// deleted of which no record can be kept; the last one may be lost to a full disk.
func (n *Node) clean(ctx context.Context) error {
	err := n.cleanSessions(ctx)
	if err != nil {
		n.cfg.Log.Warn("sessions not cleaned up", "err", err)
		return fmt.Errorf("clean up sessions: %w", err)
	}
	return nil
}

func (n *Node) cleanSessions(ctx context.Context) error {
	needed, err := n.desk.needed()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(n.cfg.DataDir, CleanupFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var writeErr error
	count := 0
	removed := func(r agent.Removed) {
		count++
		line, err := json.Marshal(cleaned{At: time.Now().UTC(), Removed: r})
		if err == nil {
			_, err = f.Write(append(line, '\n'))
		}
		if err != nil {
			writeErr = fmt.Errorf("record the end of session %s: %w", r.Session, err)
			cancel()
		}
	}
	err = n.cfg.Agent.(agent.Cleaner).Clean(ctx, func(session string) bool { return needed[session] }, removed)
	n.cfg.Log.Info("sessions cleaned up", "deleted", count, "record", f.Name())
	return errors.Join(err, writeErr, f.Sync(), f.Close())
}
