package board

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"

	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

// cursor is a place among the messages of a channel: the newest first, and of those
// that were sent at the same time the one with the lower sum.
type cursor struct {
	at  int64
	sum uint64
}

// row is a message at its place.
type row struct {
	cursor
	*ocm.Envelope
}

func rowOf(e *ocm.Envelope) row {
	sum := sha256.Sum256([]byte(e.ID))
	return row{cursor: cursor{at: e.Timestamp, sum: binary.BigEndian.Uint64(sum[:])}, Envelope: e}
}

func (c cursor) compare(to cursor) int {
	return cmp.Or(cmp.Compare(to.at, c.at), cmp.Compare(c.sum, to.sum))
}

func (c cursor) String() string {
	return strconv.FormatInt(c.at, 10) + "." + strconv.FormatUint(c.sum, 16)
}

func parseCursor(s string) (c cursor, err error) {
	at, sum, ok := strings.Cut(s, ".")
	if c.at, err = strconv.ParseInt(at, 10, 64); err == nil {
		c.sum, err = strconv.ParseUint(sum, 16, 64)
	}
	if err != nil || !ok {
		return c, api.Errorf(api.CodeBadRequest, "before is the cursor of an earlier page")
	}
	return c, nil
}

// Messages are those of a channel, newest first, at most limit of them, from behind
// the cursor before on; "" begins at the newest. project and name are the parts of the
// channel's ID.
func (b *Board) Messages(ctx context.Context, project, name string, limit int, before string) (api.ChannelMessages, error) {
	out := api.ChannelMessages{Messages: []api.ChannelMessage{}}
	rows, err := b.rows(ctx, project, name)
	if err != nil {
		return out, err
	}
	if before != "" {
		from, err := parseCursor(before)
		if err != nil {
			return out, err
		}
		rows = slices.DeleteFunc(rows, func(r row) bool { return r.compare(from) <= 0 })
	}
	slices.SortFunc(rows, func(x, y row) int { return x.compare(y.cursor) })
	size := 0
	for i, row := range rows {
		if i == limit || size >= api.MaxChannelContents {
			out.Next = rows[i-1].String()
			break
		}
		m := api.ChannelMessage{
			ID: word(row.ID), From: word(row.SenderRole), To: word(row.RecipientRole), Type: word(row.Type), At: at(row.Timestamp),
			Status: word(row.Status), Hops: row.Hops, ReplyTo: word(row.ReplyTo),
			Content: cut(row.Content, api.MaxChannelContent), Truncated: len(row.Content) > api.MaxChannelContent,
		}
		size += len(m.Content)
		out.Messages = append(out.Messages, m)
	}
	return out, nil
}

// rows are the messages of a channel that is shown.
func (b *Board) rows(ctx context.Context, project, name string) ([]row, error) {
	none := api.Errorf(api.CodeNotFound, "there is no such channel here")
	projects, err := b.open()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(projects, func(p Project) bool { return projectKey(p.Dir) == project })
	if i < 0 {
		return nil, none
	}
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-b.turn }()
	state, err := b.read(ctx, projects[i])
	if err != nil {
		b.log.Warn("opencomms: a channel cannot be shown", "project", projects[i].Dir, "err", err)
		return nil, api.Errorf(api.CodeUnavailable, "%s", problem(err))
	}
	ch, ok := state.Channels.Get(name)
	if !ok || !projects[i].shows(ch.ID) {
		return nil, none
	}
	var rows []row
	for _, e := range state.Messages.All() {
		if e.ChannelID == ch.ID {
			rows = append(rows, rowOf(e))
		}
	}
	return rows, nil
}

// problem says why a project cannot be read, without telling where it is.
func problem(err error) string {
	var corrupt *statefile.CorruptError
	if errors.As(err, &corrupt) {
		return "its state file is not valid: the node's log says why"
	}
	return "its state file cannot be read: the node's log says why"
}
