package across

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"opencode-mesh/node/opencomms/engine"
	ocm "opencode-mesh/protocol/opencomms"
)

// sentMessage is what a member sent to a proxy and the file took.
type sentMessage struct {
	from, to         *side
	id, sender, role string // of the sender here, of the recipient there
}

// members are the members of each side.
var members = map[string][]string{"alpha": {"Builder", "Tester"}, "beta": {"Reviewer", "Writer"}}

// Two machines whose processes die at any commit, whose files cannot be used for a
// while, and whose mail is lost, repeated and held up: every message that a file took
// is in the other file once, or its sender was told.
func TestEveryMessageArrivesOnceOrItsSenderIsTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "across-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w := newWorld(t, dir, "alpha", "beta")
		defer w.close()
		for name, s := range w.sides {
			s.create("review", engine.CreateRequest{MaxHops: 3}, members[name]...)
		}
		w.sides["alpha"].link("review", "beta")
		w.sides["beta"].link("review", "alpha")
		w.settle()
		var loss atomic.Int64 // percent
		w.post.lose = func() bool { return rand.Int64N(100) < loss.Load() }
		loss.Store(int64(rapid.IntRange(0, 40).Draw(t, "loss")))
		var sent []sentMessage
		broken := map[string]func(){} // sides whose file is not valid, and what mends it
		side := func() *side {
			return w.sides[rapid.SampledFrom([]string{"alpha", "beta"}).Draw(t, "side")]
		}
		n := 0
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			s := side()
			far := w.sides["alpha"]
			if s == far {
				far = w.sides["beta"]
			}
			usable := broken[s.name] == nil
			switch rapid.SampledFrom([]string{"send", "send", "send", "reply", "broadcast", "work", "work", "pump", "pull", "kill", "kill", "away", "back", "pause", "time", "break", "mend"}).Draw(t, "what") {
			case "send", "reply", "broadcast":
				if !usable {
					continue
				}
				from := rapid.SampledFrom(members[s.name]).Draw(t, "from")
				to := rapid.SampledFrom(members[far.name]).Draw(t, "to")
				n++
				r := engine.SendRequest{Channel: "review", Content: fmt.Sprint("message ", n), To: to + "-" + far.name}
				switch rapid.IntRange(0, 2).Draw(t, "kind") {
				case 1:
					r.To, r.Broadcast = "", true
				case 2:
					for id, row := range s.state().Messages.All() {
						if row.Recipient == s.session(from) && row.Type != ocm.TypeSystem {
							r.ReplyTo = id
						}
					}
				}
				ids, err := s.send(r, from)
				if err != nil {
					continue
				}
				for _, id := range ids {
					if role, ok := strings.CutSuffix(s.row(id).RecipientRole, "-"+far.name); ok {
						sent = append(sent, sentMessage{from: s, to: far, id: id, sender: from, role: role})
					}
				}
			case "work":
				_ = s.work()
				if s.disk.dead() {
					s.crash()
				}
			case "pump":
				w.post.pump(w.sides)
			case "pull":
				if usable {
					s.pull(rapid.SampledFrom(members[s.name]).Draw(t, "who"))
				}
			case "kill":
				s.disk.left.Store(int64(rapid.IntRange(0, 8).Draw(t, "commits")))
				_ = s.work()
				w.post.pump(w.sides)
				s.crash()
			case "away":
				s.disconnect()
			case "back":
				s.connect()
			case "pause":
				if usable {
					s.change(func(st *ocm.State) {
						ch := engine.Find(st, "review")
						ch.Paused = !ch.Paused
					})
				}
			case "time":
				w.pass(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			case "break":
				if usable {
					broken[s.name] = s.spoil()
				}
			case "mend":
				if !usable {
					broken[s.name]()
					delete(broken, s.name)
				}
			}
		}
		// Everything heals, and comes to rest.
		loss.Store(0)
		for _, s := range w.sides {
			if broken[s.name] != nil {
				broken[s.name]()
			}
			s.connect()
			s.change(func(st *ocm.State) { engine.Find(st, "review").Paused = false })
		}
		for range 4 { // minutes of the link's rate
			w.settle()
			w.pass(61 * time.Second)
		}
		w.settle()
		check(t, w, sent)
	})
}

// check holds the files against what was sent.
func check(t *rapid.T, w *world, sent []sentMessage) {
	order := map[string][]string{}
	for _, m := range sent {
		here, there := m.from.row(m.id), m.to.row(m.id)
		told := slices.ContainsFunc(m.from.notices(m.sender), func(text string) bool { return strings.Contains(text, m.id) })
		if (there != nil) == told {
			t.Fatalf("%s of %s: in the other file %v, its sender was told %v; its state is %+v", m.id, m.from.name, there != nil, told, m.from.sent(m.id))
		}
		if there == nil {
			continue
		}
		if there.Content != here.Content || there.Correlation != here.Correlation || there.Type != here.Type {
			t.Fatalf("%s is %+v there and %+v here", m.id, there, here)
		}
		if there.Hops < here.Hops || there.Hops > 3 {
			t.Fatalf("%s has %d hops there and %d here", m.id, there.Hops, here.Hops)
		}
		if there.Recipient != m.to.session(m.role) || there.SenderRole != m.sender+"-"+m.from.name {
			t.Fatalf("%s went from %s to %s", m.id, there.SenderRole, there.Recipient)
		}
		key := m.from.name + m.sender + m.role
		order[key] = append(order[key], m.id)
	}
	for key, ids := range order {
		var places []int
		for _, m := range sent {
			if m.from.name+m.sender+m.role != key || !slices.Contains(ids, m.id) {
				continue
			}
			place := 0
			for id := range m.to.state().Messages.All() {
				if id == m.id {
					break
				}
				place++
			}
			places = append(places, place)
		}
		if !slices.IsSorted(places) {
			t.Fatalf("%s arrived in the order %v", key, places)
		}
	}
	for _, s := range w.sides {
		if n := s.underWay(); n > 0 {
			t.Fatalf("%s still has %d records", s.name, n)
		}
		if got := len(s.roles("review")); got != 4 {
			t.Fatalf("%s has the members %v", s.name, s.roles("review"))
		}
	}
}
