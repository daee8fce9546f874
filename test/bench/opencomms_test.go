package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/opencomms"
)

// mailbox is a project whose file holds what a benchmark asks for.
type mailbox struct {
	store  *statefile.Store
	engine engine.Engine
	now    time.Time // of the engine; a minute further for each send, so that no rate holds it up
	sends  int
}

const messageSize = 1024

func newMailbox(b *testing.B, messages, channels, members int) *mailbox {
	b.Helper()
	m := &mailbox{store: statefile.Open(b.TempDir(), statefile.Options{}), now: time.Now().Add(-30 * 24 * time.Hour)}
	m.engine.Now = func() time.Time { return m.now }
	err := m.store.Update(b.Context(), func(s *opencomms.State) error {
		for c := range channels {
			name := fmt.Sprintf("channel-%d", c)
			for i := range members {
				who := engine.NewMember{
					Session: fmt.Sprintf("sess_%d_%d", c, i), Role: fmt.Sprintf("Role %d", i), RolePrompt: "Does what is asked for.",
					Host: "mcp", Surface: opencomms.SurfaceMCP, Mode: opencomms.ModePull, Policy: &opencomms.StalePolicy{Mode: opencomms.StaleNone},
				}
				var err error
				if i == 0 {
					_, err = m.engine.Create(s, engine.CreateRequest{Channel: name, ProjectID: "local-project", Worktree: "/project", MaxMembers: opencomms.MaxMembers, RateLimit: 1000, Member: &who})
				} else {
					_, err = m.engine.Join(s, engine.JoinRequest{Channel: name, ProjectID: "local-project", Worktree: "/project", Member: who})
				}
				if err != nil {
					return err
				}
			}
		}
		for i := range messages {
			if err := m.post(s, i%channels); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// post is one send from the first member of a channel to the second.
func (m *mailbox) post(s *opencomms.State, channel int) error {
	m.sends++
	m.now = m.now.Add(61 * time.Second)
	text := fmt.Sprintf("message %d ", m.sends)
	_, err := m.engine.Send(s, engine.Caller{Session: fmt.Sprintf("sess_%d_0", channel)}, engine.SendRequest{
		Channel: fmt.Sprintf("channel-%d", channel), To: "Role 1", Content: text + strings.Repeat("x", messageSize-len(text)),
	})
	return err
}

// put makes the file what it was at first: its size is what is measured.
func (m *mailbox) put(b *testing.B, data []byte) {
	f, err := os.Create(m.store.Path())
	if err != nil {
		b.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		b.Fatal(err)
	}
}

// send is what a member does: the lock, the rules, the file.
func (m *mailbox) send(b *testing.B, file []byte) time.Duration {
	m.put(b, file)
	start := time.Now()
	err := m.store.Update(context.Background(), func(s *opencomms.State) error { return m.post(s, 0) })
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

// floor is what every program has to do for a change of this file, without lock
// and rules: read, decode, encode, sync, rename.
func (m *mailbox) floor(b *testing.B, file []byte) time.Duration {
	m.put(b, file)
	start := time.Now()
	data, err := os.ReadFile(m.store.Path())
	if err != nil {
		b.Fatal(err)
	}
	s, err := opencomms.Decode(data)
	if err != nil {
		b.Fatal(err)
	}
	if data, err = s.Encode(); err != nil {
		b.Fatal(err)
	}
	tmp := filepath.Join(filepath.Dir(m.store.Path()), "floor.tmp")
	f, err := os.Create(tmp)
	if err != nil {
		b.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close(), os.Rename(tmp, m.store.Path())); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

// BenchmarkOpencommsSend is a send on a file of a size, beside the floor: the two
// take turns, and the ratio is that of their medians. The limit of a project is
// where the rewrite of the whole file takes too long, so the sizes show the slope.
func BenchmarkOpencommsSend(b *testing.B) {
	for _, size := range []struct{ messages, channels, members int }{
		{0, 1, 2}, {100, 1, 2}, {500, 1, 2}, {1000, 1, 2}, {2000, 1, 2},
		{2000, 8, 2}, {2000, 64, 2}, {2000, 8, 32}, {2000, 64, 32},
	} {
		b.Run(fmt.Sprintf("messages=%d/channels=%d/members=%d", size.messages, size.channels, size.members), func(b *testing.B) {
			m := newMailbox(b, size.messages, size.channels, size.members)
			file, err := os.ReadFile(m.store.Path())
			if err != nil {
				b.Fatal(err)
			}
			var sends, floors []time.Duration
			for i := 0; b.Loop(); i++ {
				if i%2 == 0 {
					sends = append(sends, m.send(b, file))
				}
				floors = append(floors, m.floor(b, file))
				if i%2 == 1 {
					sends = append(sends, m.send(b, file))
				}
			}
			slices.Sort(sends)
			slices.Sort(floors)
			send, floor := sends[len(sends)/2], floors[len(floors)/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(len(file))/1e6, "file-MB")
			b.ReportMetric(1/send.Seconds(), "sends/s")
			b.ReportMetric(send.Seconds()*1e3, "p50-ms")
			b.ReportMetric(sends[len(sends)*99/100].Seconds()*1e3, "p99-ms")
			b.ReportMetric(floor.Seconds()*1e3, "floor-ms")
			b.ReportMetric(send.Seconds()/floor.Seconds(), "send/floor")
		})
	}
}
