// Package board shows a node's OpenComms channels to the operators of its hub. It only
// reads: what is there to be read are the state files of the projects that its Config
// lists. Session ids, role prompts and directories stay on the node, and every answer is
// bounded whatever the files hold.
//
// Texts go out as they are, as far as they are UTF-8: the hub cleans what it shows.
package board

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

// Project is a directory whose channels are shown.
type Project struct {
	Name string // for people
	Dir  string // absolute
	// Linked are the nodes that a channel is linked with, by the id of the channel.
	Linked map[string][]string
	// LinkedOnly keeps the other channels back.
	LinkedOnly bool
}

// Config says what is shown.
type Config struct {
	// Projects lists the projects; it may change. nil: nothing is shown, and who asks
	// is told so.
	Projects func() []Project
	Log      *slog.Logger // nil: discarded
}

// Board answers the hub. It is safe for concurrent use.
type Board struct {
	projects func() []Project
	log      *slog.Logger
	// turn has one token: files may be large, so that they are read one after the
	// other.
	turn chan struct{}

	mu    sync.Mutex // guards the following field
	known map[string]listing
}

// listing is what was found in a project's file.
type listing struct {
	file     os.FileInfo
	channels []channel
	more     bool // there are more of them
}

// channel is one of them, as it is listed.
type channel struct {
	api.Channel
	id string // in the file
}

// New makes a Board.
func New(cfg Config) *Board {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Board{projects: cfg.Projects, log: cfg.Log, turn: make(chan struct{}, 1), known: map[string]listing{}}
}

// List is every channel that is shown.
func (b *Board) List(ctx context.Context) (api.ChannelList, error) {
	out := api.ChannelList{Channels: []api.Channel{}}
	projects, err := b.open()
	if err != nil {
		return out, err
	}
	for _, p := range projects {
		l, err := b.channels(ctx, p)
		switch {
		case ctx.Err() != nil:
			return out, ctx.Err()
		case err != nil:
			b.log.Warn("opencomms: the channels of a project cannot be shown", "project", p.Dir, "err", err)
			if len(out.Problems) < api.MaxChannels {
				out.Problems = append(out.Problems, api.ChannelProblem{Project: word(p.Name), Message: problem(err)})
			}
			continue
		}
		out.More = out.More || l.more
		for _, c := range l.channels {
			if p.shows(c.id) {
				c.Project, c.Linked = word(p.Name), p.Linked[c.id]
				out.Channels = append(out.Channels, c.Channel)
			}
		}
	}
	slices.SortStableFunc(out.Channels, func(x, y api.Channel) int {
		return cmp.Or(strings.Compare(x.Project, y.Project), strings.Compare(x.Name, y.Name))
	})
	if n := fitting(out.Channels); n < len(out.Channels) {
		out.Channels, out.More = out.Channels[:n], true
	}
	return out, nil
}

// fitting is how many channels a list has room for.
func fitting(list []api.Channel) int {
	size := 0
	for i, c := range list {
		if i == api.MaxChannels || size >= api.MaxChannelList {
			return i
		}
		size += len(c.Project) + len(c.Name) + len(c.Description)
		for _, m := range c.Members {
			size += len(m.Role) + len(m.Host) + len(m.Mode)
		}
	}
	return len(list)
}

// open lists the projects, unless none is to be shown.
func (b *Board) open() ([]Project, error) {
	if b.projects == nil {
		return nil, api.Errorf(api.CodeRefused, "this node does not show its channels (--no-channels)")
	}
	return b.projects(), nil
}

// shows reports whether a channel of the project is shown.
func (p Project) shows(id string) bool {
	_, linked := p.Linked[id]
	return linked || !p.LinkedOnly
}

// channels lists those of a project. Its file is read again when it changed only.
func (b *Board) channels(ctx context.Context, p Project) (l listing, err error) {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return l, ctx.Err()
	}
	defer func() { <-b.turn }()
	if _, err := os.Lstat(filepath.Join(p.Dir, statefile.Dir)); errors.Is(err, fs.ErrNotExist) {
		return l, nil // no agent ever opened a channel there
	}
	// The file is looked at before it is read: one that changes in between is read again.
	file, gone := os.Lstat(statefile.Open(p.Dir, statefile.Options{}).Path())
	if gone == nil {
		b.mu.Lock()
		known, ok := b.known[p.Dir]
		b.mu.Unlock()
		if ok && os.SameFile(known.file, file) && known.file.ModTime().Equal(file.ModTime()) && known.file.Size() == file.Size() {
			return known, nil
		}
	}
	state, err := b.read(ctx, p)
	if err != nil {
		return l, err
	}
	l = channels(p, state)
	if gone == nil {
		l.file = file
		b.remember(p.Dir, l)
	}
	return l, nil
}

// remember keeps a listing, and no more than as many as there are projects, roughly.
func (b *Board) remember(dir string, l listing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) > api.MaxChannels {
		clear(b.known)
	}
	b.known[dir] = l
}

func (b *Board) read(ctx context.Context, p Project) (*ocm.State, error) {
	project, err := opencomms.Open(p.Dir, opencomms.Options{Log: b.log})
	if err != nil {
		return nil, err
	}
	return project.Read(ctx)
}

// channels lists the channels of a state.
func channels(p Project, s *ocm.State) (l listing) {
	type count struct {
		messages, waiting int
		last              int64
	}
	counts, waiting := map[string]*count{}, map[string]map[string]int{}
	for _, ch := range s.Channels.All() {
		counts[ch.ID], waiting[ch.ID] = &count{}, map[string]int{}
	}
	for _, row := range s.Messages.All() {
		c := counts[row.ChannelID]
		if c == nil {
			continue // of a channel that is gone
		}
		c.messages++
		c.last = max(c.last, row.Timestamp)
		if row.Status == ocm.StatusPending || row.Status == ocm.StatusInFlight {
			c.waiting++
			waiting[row.ChannelID][row.Recipient]++
		}
	}
	for name, ch := range s.Channels.All() {
		if l.more = len(l.channels) == api.MaxChannels; l.more {
			break
		}
		c := counts[ch.ID]
		v := channel{id: ch.ID, Channel: api.Channel{
			ID: ID(p.Dir, name), Name: word(name), Description: cut(ch.Description, 4*api.MaxChannelText), CreatedAt: at(ch.CreatedAt), Paused: ch.Paused,
			MaxMembers: ch.MaxMembers, Members: []api.ChannelMember{}, Messages: c.messages, Waiting: c.waiting, Delivered: ch.DeliveredTotal,
		}}
		if c.messages > 0 {
			last := at(c.last)
			v.LastAt = &last
		}
		for _, m := range ch.Members[:min(len(ch.Members), api.MaxChannelMembers)] {
			v.Members = append(v.Members, api.ChannelMember{
				Role: word(m.Role), Host: word(m.Host), Mode: word(m.Mode), JoinedAt: at(m.JoinedAt), Stale: m.Stale, Waiting: waiting[ch.ID][m.SessionID],
			})
		}
		l.channels = append(l.channels, v)
	}
	return l
}

// ID names a channel of a project in a list.
func ID(dir, name string) string { return projectKey(dir) + "." + name }

// projectKey names a project without telling its directory.
func projectKey(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:6])
}

// at is a time of a file, within what can be written.
func at(ms int64) time.Time {
	const last = 253402300799999 // the end of the year 9999
	return time.UnixMilli(min(max(ms, 0), last)).UTC()
}

// word is a name of a file.
func word(s string) string { return cut(s, api.MaxChannelText) }

// cut makes valid UTF-8 of at most n bytes.
func cut(s string, n int) string {
	s = ocm.Valid(s[:min(len(s), n+utf8.UTFMax)]) // the rest need not be looked at
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:min(n, len(s))]
}
