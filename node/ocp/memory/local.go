package memory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// Bounds of what is read on the machine itself.
const (
	// maxFile is the largest file that is remembered, in bytes.
	maxFile = 256 << 10
	// maxFiles is how many files of one result are.
	maxFiles = 16
)

// fileItems are the files that a result names, where this node was the target. A file is
// remembered only while it is what the task left, by its hash: what somebody else wrote
// there later is not the business of who dispatched the task.
func (s *Syncer) fileItems(r *api.MemoryResult) (items []Item) {
	s.mu.Lock()
	self := s.self
	s.mu.Unlock()
	if self == "" || r.Target.ID != self || len(s.cfg.Workspaces) == 0 {
		return nil
	}
	i := max(0, slices.IndexFunc(s.cfg.Workspaces, func(w agent.Workspace) bool { return w.Name == r.Workspace }))
	ws := s.cfg.Workspaces[i]
	if r.Workspace != "" && ws.Name != r.Workspace {
		return nil
	}
	for _, a := range r.Artifacts {
		if len(items) == maxFiles {
			break
		}
		if a.SHA256 == "" || a.Problem != "" || a.Size > maxFile {
			continue
		}
		data, err := tasks.ReadArtifact(ws, a.Path, maxFile)
		if err != nil || len(data) == 0 || !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
			continue
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != a.SHA256 {
			continue
		}
		items = append(items, fileItem(r, ws.Name, a.Path, string(data)))
	}
	return items
}

// fileItem is a file, or as much of its lines as fits.
func fileItem(r *api.MemoryResult, workspace, path, text string) Item {
	kind, lines := ocp.KindDoc, strings.Count(strings.TrimSuffix(text, "\n"), "\n")+1
	last := lines
	if len(text) > MaxContent {
		kind = ocp.KindSnippet
		text = text[:MaxContent]
		if at := strings.LastIndexByte(text, '\n'); at >= 0 {
			text = text[:at+1]
		} else {
			text = ocp.Cut(text, MaxContent-utf8.UTFMax)
		}
		last = strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1
	}
	title := path
	if kind == ocp.KindSnippet {
		title = fmt.Sprintf("%s (lines 1–%d of %d)", path, last, lines)
	}
	it := Item{
		ID: fromFile + brief(r.Task) + "/" + ocp.Digest(path)[len("sha256:"):][:16], Kind: kind, Title: "File " + title,
		Label: fmt.Sprintf("File %s of %s, %s", title, nameOf(r.Target), r.EndedAt.Format(time.DateOnly)), Content: text, URI: "file:" + filepath.ToSlash(path),
		Workspace: workspace, Controller: r.Controller.ID, Target: r.Target.ID, ControllerName: r.Controller.Name, TargetName: r.Target.Name,
		At: r.EndedAt, Paths: []string{path},
		Relations: []ocp.Relation{{Rel: "produced_by", TargetURI: "task:" + r.Task, DisplayName: "Task " + between(r.Controller, r.Target)}},
	}
	it.Provenance = []ocp.Provenance{{Type: "file", URI: it.URI, Range: lineRange(1, last), Digest: ocp.Digest(text), By: nameOf(r.Target)}}
	return it
}
