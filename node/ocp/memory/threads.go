package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/ocp"
	ocm "opencode-mesh/protocol/opencomms"
)

// maxThreads is how many threads of the channels of one workspace are remembered, the
// newest.
const maxThreads = 500

// fileMark tells whether a file, or what a directory has in it, changed.
type fileMark struct {
	size int64
	at   time.Time
}

// markOf is that of a path, zero where nothing is.
func markOf(path string) (fileMark, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fileMark{}, nil
	case err != nil:
		return fileMark{}, err
	}
	return fileMark{info.Size(), info.ModTime()}, nil
}

// channelMarks are those of the channels of a workspace and of their archives.
type channelMarks struct{ state, archives fileMark }

// channels remembers the threads of the channels of all workspaces. The first time, and
// after a sweep, it forgets those of workspaces that are not the node's any more.
func (s *Syncer) channels(ctx context.Context) error {
	var errs []error
	if len(s.threaded) == 0 {
		errs = append(errs, s.forgetOthers(ctx))
	}
	for _, ws := range s.cfg.Workspaces {
		if err := s.threads(ctx, ws); err != nil {
			errs = append(errs, fmt.Errorf("channels of workspace %s: %w", ws.Name, err))
		}
	}
	return errors.Join(errs...)
}

// forgetOthers forgets the threads of workspaces that are not configured.
func (s *Syncer) forgetOthers(ctx context.Context) error {
	gone, err := s.cfg.Index.ids(ctx, fromThread)
	if err != nil {
		return err
	}
	for _, ws := range s.cfg.Workspaces {
		gone = slices.DeleteFunc(gone, func(id string) bool { return strings.HasPrefix(id, threadsOf(ws.Name)) })
	}
	return s.cfg.Index.Delete(ctx, gone...)
}

// threadsOf is how ids of threads of a workspace begin. No name of one begins like this
// with another in it.
func threadsOf(workspace string) string { return fromThread + brief(workspace) + "/" }

// threads remembers those of one workspace, if its channels changed, and forgets those
// that are gone.
func (s *Syncer) threads(ctx context.Context, ws agent.Workspace) error {
	var marks channelMarks
	var err error
	if marks.state, err = markOf(statefile.Open(ws.Dir, statefile.Options{}).Path()); err != nil {
		return err
	}
	if marks.archives, err = markOf(opencomms.ArchivesDir(ws.Dir)); err != nil {
		return err
	}
	if known, looked := s.threaded[ws.Name]; looked && known == marks {
		return nil
	}
	var items []Item
	if marks != (channelMarks{}) {
		if items, err = s.readThreads(ctx, ws); err != nil {
			return err
		}
	}
	there := make(map[string]bool, len(items))
	for _, it := range items {
		there[it.ID] = true
	}
	have, err := s.cfg.Index.ids(ctx, threadsOf(ws.Name))
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(have, func(id string) bool { return there[id] })
	if err := errors.Join(s.cfg.Index.Delete(ctx, gone...), s.cfg.Index.Put(ctx, items)); err != nil {
		return err
	}
	s.threaded[ws.Name] = marks
	return nil
}

// readThreads are the threads of a workspace: of its channels, and of those that were
// saved.
func (s *Syncer) readThreads(ctx context.Context, ws agent.Workspace) ([]Item, error) {
	project, err := opencomms.Open(ws.Dir, opencomms.Options{Log: s.cfg.Log})
	if err != nil {
		return nil, err
	}
	state, err := project.Read(ctx)
	if err != nil {
		return nil, err
	}
	saved, err := project.Saved()
	if err != nil {
		return nil, err
	}
	byChannel := map[string][]*ocm.Envelope{}
	for _, m := range state.Messages.All() {
		byChannel[m.ChannelID] = append(byChannel[m.ChannelID], m)
	}
	var items []Item
	live := map[string]bool{}
	for name, ch := range state.Channels.All() {
		live[ch.ID] = true
		items = append(items, threadItems(ws.Name, name, ch.ID, byChannel[ch.ID])...)
	}
	for _, a := range saved {
		if !live[a.ChannelID] {
			items = append(items, threadItems(ws.Name, a.Name, a.ChannelID, a.Messages)...)
		}
	}
	slices.SortFunc(items, func(a, b Item) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID)) })
	return items[:min(len(items), maxThreads)], nil
}

// threadItems are the threads of a channel: a message with all that answers it.
func threadItems(workspace, channel, channelID string, messages []*ocm.Envelope) []Item {
	byID := map[string]*ocm.Envelope{}
	for _, m := range messages {
		byID[m.ID] = m
	}
	rootOf := func(m *ocm.Envelope) *ocm.Envelope {
		for range len(byID) { // a circle of answers ends too
			up := byID[m.ReplyTo]
			if up == nil {
				break
			}
			m = up
		}
		return m
	}
	threads := map[*ocm.Envelope][]*ocm.Envelope{}
	for _, m := range messages {
		root := rootOf(m)
		threads[root] = append(threads[root], m)
	}
	items := make([]Item, 0, len(threads))
	for root, list := range threads {
		items = append(items, threadItem(workspace, channel, channelID, root, list))
	}
	return items
}

// threadItem is one thread. Copies of a broadcast are one message.
func threadItem(workspace, channel, channelID string, root *ocm.Envelope, list []*ocm.Envelope) Item {
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
		ID: threadsOf(workspace) + brief(channelID) + "/" + brief(root.ID), Kind: ocp.KindMemory,
		Title: fmt.Sprintf("%s (in channel %s)", subject, channel), Label: fmt.Sprintf("Channel %s, %s", channel, last.Format(time.DateOnly)),
		Content: ocp.Cut(ocp.Clean(b.String()), MaxContent), Workspace: workspace, At: last, ValidFrom: first,
	}
	it.Provenance = []ocp.Provenance{{Type: "episode", Digest: ocp.Digest(it.Content), By: cmp.Or(line(root.SenderRole), "someone")}}
	return it
}
