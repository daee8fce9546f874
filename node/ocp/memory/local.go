package memory

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
	ocm "opencode-mesh/protocol/opencomms"
)

// Bounds of what is read on the machine itself.
const (
	// maxFile is the largest file that is remembered, in bytes.
	maxFile = 256 << 10
	// maxFiles is how many files of one result are.
	maxFiles = 16
	// maxThreads is how many threads of the channels of one workspace are, the newest.
	maxThreads = 500
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
			text = cutText(text, MaxContent-utf8.UTFMax)
		}
		last = strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1
	}
	title := path
	if kind == ocp.KindSnippet {
		title = fmt.Sprintf("%s (lines 1–%d of %d)", path, last, lines)
	}
	it := Item{
		ID: fromFile + r.Task + "/" + digest(path)[len("sha256:"):][:16], Kind: kind, Title: "File " + title,
		Label: fmt.Sprintf("File %s of %s, %s", title, nameOf(r.Target), r.EndedAt.Format(dateLayout)), Content: text, URI: "file:" + filepath.ToSlash(path),
		Workspace: workspace, Controller: r.Controller.ID, Target: r.Target.ID, ControllerName: r.Controller.Name, TargetName: r.Target.Name,
		At: r.EndedAt, Paths: []string{path},
		Relations: []ocp.Relation{{Rel: "produced_by", TargetURI: "task:" + r.Task, DisplayName: "Task " + between(r.Controller, r.Target)}},
	}
	it.Provenance = []ocp.Provenance{{Type: "file", URI: it.URI, Range: lineRange(1, last), Digest: digest(text), By: nameOf(r.Target)}}
	return it
}

// fileMark tells whether a file changed.
type fileMark struct {
	size int64
	at   time.Time
}

// channels remembers the threads of the channels of all workspaces.
func (s *Syncer) channels(ctx context.Context) error {
	var errs []error
	for _, ws := range s.cfg.Workspaces {
		if err := s.threads(ctx, ws); err != nil {
			errs = append(errs, fmt.Errorf("channels of workspace %s: %w", ws.Name, err))
		}
	}
	return errors.Join(errs...)
}

// threads remembers those of one workspace, if its state file changed, and forgets those
// that are gone.
func (s *Syncer) threads(ctx context.Context, ws agent.Workspace) error {
	info, err := os.Lstat(statefile.Open(ws.Dir, statefile.Options{}).Path())
	mark := fileMark{}
	switch {
	case err == nil:
		mark = fileMark{info.Size(), info.ModTime()}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	s.mu.Lock()
	known, looked := s.threaded[ws.Name]
	s.mu.Unlock()
	if looked && known == mark {
		return nil
	}
	var items []Item
	if err == nil {
		project, err := opencomms.Open(ws.Dir, opencomms.Options{Log: s.cfg.Log})
		if err != nil {
			return err
		}
		state, err := project.Read(ctx)
		if err != nil {
			return err
		}
		items = threadItems(ws.Name, state)
	}
	there := make(map[string]bool, len(items))
	for _, it := range items {
		there[it.ID] = true
	}
	have, err := s.cfg.Index.ids(ctx, fromThread+ws.Name+"/")
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(have, func(id string) bool { return there[id] })
	if err := errors.Join(s.cfg.Index.Delete(ctx, gone...), s.cfg.Index.Put(ctx, items)); err != nil {
		return err
	}
	s.mu.Lock()
	s.threaded[ws.Name] = mark
	s.mu.Unlock()
	return nil
}

// threadItems are the threads of a state file: a message with all that answers it.
func threadItems(workspace string, state *ocm.State) []Item {
	byID := map[string]*ocm.Envelope{}
	for _, m := range state.Messages.All() {
		byID[m.ID] = m
	}
	rootOf := func(m *ocm.Envelope) *ocm.Envelope {
		for range len(byID) { // a circle of answers ends too
			up := byID[m.ReplyTo]
			if up == nil || up.ChannelID != m.ChannelID {
				break
			}
			m = up
		}
		return m
	}
	threads := map[*ocm.Envelope][]*ocm.Envelope{}
	for _, m := range state.Messages.All() {
		root := rootOf(m)
		threads[root] = append(threads[root], m)
	}
	var items []Item
	for name, ch := range state.Channels.All() {
		for root, list := range threads {
			if root.ChannelID == ch.ID {
				items = append(items, threadItem(workspace, name, root, list))
			}
		}
	}
	slices.SortFunc(items, func(a, b Item) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID)) })
	return items[:min(len(items), maxThreads)]
}

// threadItem is one thread. Copies of a broadcast are one message.
func threadItem(workspace, channel string, root *ocm.Envelope, list []*ocm.Envelope) Item {
	slices.SortStableFunc(list, func(a, b *ocm.Envelope) int {
		return cmp.Or(cmp.Compare(a.Timestamp, b.Timestamp), cmp.Compare(a.ID, b.ID))
	})
	var b strings.Builder
	said := map[string]bool{}
	for _, m := range list {
		key := fmt.Sprint(m.Timestamp, m.SenderRole, m.Content)
		if !said[key] {
			said[key] = true
			fmt.Fprintf(&b, "%s: %s\n", line(m.SenderRole), m.Content)
		}
	}
	subject := firstWords(root.Content, titleWords)
	if subject == "" {
		subject = "a message without words"
	}
	first, last := time.UnixMilli(list[0].Timestamp).UTC(), time.UnixMilli(list[len(list)-1].Timestamp).UTC()
	it := Item{
		ID: fromThread + workspace + "/" + root.ChannelID + "/" + root.ID, Kind: ocp.KindMemory,
		Title: fmt.Sprintf("%s (in channel %s)", subject, channel), Label: fmt.Sprintf("Channel %s, %s", channel, last.Format(dateLayout)),
		Content: cutText(ocp.Clean(b.String()), MaxContent), Workspace: workspace, At: last, ValidFrom: first,
	}
	it.Provenance = []ocp.Provenance{{Type: "episode", Digest: digest(it.Content), By: cmp.Or(line(root.SenderRole), "someone")}}
	return it
}
