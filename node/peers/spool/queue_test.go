package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"opencode-mesh/protocol/peers"
)

// Every change of a message in every state: what becomes of it, or why not.
func TestTransitions(t *testing.T) {
	into := map[string]func(w *world){
		"none":     func(*world) {},
		"queued":   func(w *world) { w.accept(message("m"), Enqueue) },
		"inflight": func(w *world) { w.accept(message("m"), Enqueue); w.drain() },
		"held":     func(w *world) { w.accept(message("m"), Hold) },
		"refused":  func(w *world) { w.accept(message("m"), Refuse) },
		"delivered": func(w *world) {
			w.accept(message("m"), Enqueue)
			w.drain()
			w.must(w.Finish(w.t.Context(), key("m"), peers.Delivered))
		},
	}
	changes := map[string]func(w *world) error{
		"drain":   func(w *world) error { _, err := w.Drain(w.t.Context()); return err },
		"finish":  func(w *world) error { return w.Finish(w.t.Context(), key("m"), peers.Expired) },
		"requeue": func(w *world) error { return w.Requeue(w.t.Context(), key("m")) },
		"release": func(w *world) error { return w.Release(w.t.Context(), key("m")) },
		"drop":    func(w *world) error { return w.Drop(w.t.Context(), key("m")) },
		"expire": func(w *world) error {
			w.pass(peers.DefaultHeldExpiry)
			_, err := w.Expire(w.t.Context())
			return err
		},
		"load":        func(w *world) error { return w.Load(w.t.Context()) },
		"acknowledge": func(w *world) error { return w.AckSent(w.t.Context(), key("m")) },
	}
	const same, unknown, wrong = "", "unknown", "wrong state"
	table := map[string]map[string]string{
		"none":      {"drain": same, "finish": unknown, "requeue": unknown, "release": unknown, "drop": unknown, "expire": same, "load": same, "acknowledge": same},
		"queued":    {"drain": "inflight", "finish": "expired", "requeue": same, "release": same, "drop": wrong, "expire": same, "load": same, "acknowledge": wrong},
		"inflight":  {"drain": same, "finish": "expired", "requeue": "queued", "release": same, "drop": wrong, "expire": same, "load": "queued", "acknowledge": wrong},
		"held":      {"drain": same, "finish": wrong, "requeue": wrong, "release": "queued", "drop": "dropped", "expire": "expired", "load": same, "acknowledge": wrong},
		"refused":   {"drain": same, "finish": same, "requeue": same, "release": wrong, "drop": wrong, "expire": same, "load": same, "acknowledge": same},
		"delivered": {"drain": same, "finish": same, "requeue": same, "release": wrong, "drop": wrong, "expire": same, "load": same, "acknowledge": same},
	}
	for from, row := range table {
		for change, to := range row {
			w := newWorld(t, Config{}).fast()
			into[from](w)
			w.accept(message("other"), Hold) // another sender's news does not matter
			err := changes[change](w)
			var state *StateError
			got := ""
			switch {
			case errors.Is(err, ErrUnknown):
				got = unknown
			case errors.As(err, &state):
				got = wrong
			case err != nil:
				t.Errorf("%s of %s: %v", change, from, err)
			}
			is := "none"
			for _, s := range w.states() {
				if id, rest, _ := strings.Cut(s, ":"); id == "m" {
					is = rest
				}
			}
			if got == "" && is != from {
				got = is
			} else if is != from {
				t.Errorf("%s of %s: %v, and it is %s", change, from, err, is)
			}
			if got != to {
				t.Errorf("%s of %s: %q, not %q", change, from, got, to)
			}
		}
	}
}

func TestOnlyFinalStatusesFinish(t *testing.T) {
	w := newWorld(t, Config{})
	w.accept(message("m"), Enqueue)
	for _, status := range []string{"", peers.Queued, peers.Held, peers.Full, "ok"} {
		if w.Finish(t.Context(), key("m"), status) == nil {
			t.Errorf("%q", status)
		}
	}
	want(t, w.states(), []string{"m:queued"})
}

func TestARetryIsAnsweredWithWhatBecameOfTheMessage(t *testing.T) {
	w := newWorld(t, Config{MaxQueue: 2, MaxHeld: 1})
	again := func(id, wanted string) {
		t.Helper()
		w.pass(time.Minute)
		m := message(id)
		m.Text, m.SentAt = "another text", m.SentAt+60_000
		for _, d := range []Decision{Enqueue, Hold, Refuse} {
			if status, fresh := w.accept(m, d); status != wanted || fresh {
				t.Error(id, "is", status, fresh, "not", wanted)
			}
		}
	}
	w.accept(message("m1"), Enqueue)
	w.drain()
	w.accept(message("m2"), Enqueue)
	w.accept(message("h"), Hold)
	w.accept(message("r"), Refuse)
	again("m1", peers.Queued)
	again("m2", peers.Queued)
	again("h", peers.Held)
	again("r", peers.Refused)
	for id, status := range map[string]string{"m1": peers.Delivered, "m2": peers.Dropped} {
		w.must(w.Finish(t.Context(), key(id), status))
		again(id, status)
	}
	// Also for a process that has just begun, and not for another sender's.
	w.reopen()
	again("m1", peers.Delivered)
	m := message("m1")
	m.FromEndpoint = "session-t"
	if status, fresh := w.accept(m, Enqueue); status != peers.Queued || !fresh {
		t.Error(status, fresh)
	}
}

func TestTheSameTextWithinASecondIsADuplicateWithItsOwnAcknowledgement(t *testing.T) {
	w := newWorld(t, Config{})
	send := func(id, text, from, wanted string) {
		t.Helper()
		m := message(id)
		m.Text, m.FromEndpoint = text, from
		if status, fresh := w.accept(m, Enqueue); status != wanted || !fresh {
			t.Error(id, "is", status, fresh, "not", wanted)
		}
	}
	send("m1", "hi", "session-s", peers.Queued)
	w.drain()
	w.must(w.Finish(t.Context(), key("m1"), peers.Delivered)) // in every state
	w.pass(peers.DuplicateWindow - time.Millisecond)
	send("m2", "hi", "session-t", peers.Queued)
	send("m3", "hi ", "session-s", peers.Queued)
	send("m4", "hi", "session-s", peers.Duplicate)
	w.pass(time.Millisecond)
	send("m5", "hi", "session-s", peers.Queued) // the duplicate does not prolong it
	acks, err := w.Acks(t.Context())
	w.must(err)
	want(t, ids(acks), []string{"m1", "m4"})
	ack, ok := acks[1].FinalAck()
	if wanted := (peers.Ack{MessageID: "m4", FromEndpoint: "session-s", ToEndpoint: endpoint, Status: peers.Duplicate, AcknowledgedAt: 1795989735601}); !ok || ack != wanted || acks[1].DuplicateOf != "m1" {
		t.Error(ack, acks[1].DuplicateOf)
	}
}

func TestCapacity(t *testing.T) {
	w := newWorld(t, Config{MaxQueue: 3, MaxHeld: 2})
	take := func(id string, d Decision, wanted string) {
		t.Helper()
		if status, fresh := w.accept(message(id), d); status != wanted || fresh != (wanted != peers.Full) {
			t.Error(id, "is", status, fresh, "not", wanted)
		}
	}
	take("m1", Enqueue, peers.Queued)
	w.drain() // inflight counts
	take("m2", Enqueue, peers.Queued)
	take("m3", Enqueue, peers.Queued)
	take("m4", Enqueue, peers.Full)
	take("h1", Hold, peers.Held)
	take("h2", Hold, peers.Held)
	take("h3", Hold, peers.Full)
	take("r", Refuse, peers.Refused)
	if err := w.Release(t.Context(), key("h1")); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	want(t, w.states(), []string{"h1:held", "h2:held", "m1:inflight", "m2:queued", "m3:queued", "r:refused"})
	w.must(w.Finish(t.Context(), key("m2"), peers.Delivered))
	w.must(w.Release(t.Context(), key("h1")))
	take("m4", Enqueue, peers.Full)
	take("h3", Hold, peers.Held)
	w.must(w.Requeue(t.Context(), key("m1")))
	want(t, w.ids(StateQueued), []string{"m1", "m3", "h1"}) // by their numbers
	want(t, w.drain(), []string{"m1", "m3", "h1"})
}

func TestFiftySendersAtOnceFillAQueueToItsLimit(t *testing.T) {
	const senders, limit = 50, 20
	w := newWorld(t, Config{MaxQueue: limit})
	answers := make([]string, senders)
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			m := message(fmt.Sprint("m", i))
			m.FromEndpoint, m.Text = fmt.Sprint("session-", i), "the same text"
			status, fresh, err := w.Accept(t.Context(), m, Enqueue)
			if err != nil || fresh != (status == peers.Queued) {
				t.Error(status, fresh, err)
			}
			answers[i] = status
		})
	}
	wg.Wait()
	full := 0
	taken := map[string]bool{}
	for i, a := range answers {
		switch a {
		case peers.Queued:
			taken[fmt.Sprint("m", i)] = true
		case peers.Full:
			full++
		}
	}
	if len(taken) != limit || full != senders-limit {
		t.Error(len(taken), "were queued,", full, "refused")
	}
	w.reopen()
	w.must(w.Load(t.Context()))
	records, err := w.Drain(t.Context())
	w.must(err)
	for i, r := range records {
		if !taken[r.Message.ID] || r.Sequence != float64(i+1) {
			t.Error(r.Message.ID, r.Sequence)
		}
	}
	if len(records) != limit {
		t.Error(len(records), "are there")
	}
}

func TestWhatIsNotValidIsPassedOverAndToldOfOnce(t *testing.T) {
	w := newWorld(t, Config{MaxQueue: 2, MaxHeld: 1})
	w.accept(message("good"), Enqueue)
	name := func(id string) string { return peers.RecordName("session-s", id) }
	record := func(state, rest string, id string) string {
		return fmt.Sprintf(`{"version":2,"state":%q,"message":{"id":%q,"from":{"instanceId":"session-s","name":"n","directory":"/d"},"text":"t","via":[],"sentAt":5},"acceptedAt":6,"sequence":9%s}`, state, id, rest)
	}
	bad := map[State]map[string]string{
		StateQueued: {
			"b1": strings.Replace(record("queued", "", "b1"), `"version":2`, `"version":3`, 1),
			"b2": record("held", "", "b2"),
			"b3": record("queued", "", ""),
			"b4": strings.Replace(record("queued", "", "b4"), `"sentAt":5`, `"sentAt":null`, 1),
			"b5": record("queued", "", "another"),
			"b6": `{"version":2,`,
			"b7": record("queued", `,"x":"`+strings.Repeat("x", MaxRecord)+`"`, "b7"),
		},
		StateHeld: {"b8": record("held", "", "b8")},
		StateDone: {"b9": record("done", "", "b9"), "good": "no JSON"}, // a twin that is not valid hides nothing
	}
	n := 0
	for s, files := range bad {
		for id, text := range files {
			put(t, w.path(s, name(id)), text)
			n++
		}
	}
	w.must(os.Mkdir(w.path(StateQueued, name("b10")), 0o700))
	n++
	put(t, w.path(StateQueued, "notes.txt"), "not ours")
	for range 2 {
		want(t, w.states(), []string{"good:queued"})
		w.must(w.Load(t.Context()))
	}
	if told := w.log.count("not valid"); told != n {
		t.Error(told, "lines for", n, "files")
	}
	w.accept(message("m2"), Enqueue)
	w.accept(message("h"), Hold)
	want(t, w.states(), []string{"good:queued", "h:held", "m2:queued"})
	// What others wrote that left something out is taken.
	put(t, w.path(StateQueued, name("old")), `{"version":2,"state":"queued","message":{"id":"old","from":{"instanceId":"session-s"},"text":"t","sentAt":5.5},"more":[1]}`)
	records, err := w.Records(StateQueued)
	w.must(err)
	want(t, ids(records), []string{"good", "m2", "old"}) // it has its time of sending for a number
}

func TestWhatIsDoneIsForgottenAfterADay(t *testing.T) {
	w := newWorld(t, Config{})
	w.accept(message("r1"), Refuse)
	w.accept(message("m"), Enqueue)
	w.accept(message("h"), Hold)
	w.must(w.AckSent(t.Context(), key("r1")))
	w.pass(time.Hour)
	w.accept(message("r2"), Refuse)
	w.pass(peers.DoneRetention - time.Hour)
	w.must(w.Load(t.Context()))
	want(t, w.states(), []string{"h:held", "m:queued", "r1:refused", "r2:refused"})
	w.pass(time.Millisecond)
	w.reopen()
	w.must(w.Load(t.Context()))
	want(t, w.states(), []string{"h:held", "m:queued", "r2:refused"})
	// A process that runs on does the same.
	w.pass(time.Hour)
	if n, err := w.Expire(t.Context()); n != 1 || err != nil {
		t.Error(n, err)
	}
	want(t, w.states(), []string{"h:expired", "m:queued"})
}

func TestAcknowledgementsStayOpenUntilTheyAreTaken(t *testing.T) {
	w := newWorld(t, Config{})
	open := func(wanted ...string) {
		t.Helper()
		acks, err := w.Acks(t.Context())
		w.must(err)
		want(t, ids(acks), wanted)
	}
	for _, id := range []string{"r1", "r2", "r3"} {
		w.accept(message(id), Refuse)
	}
	w.accept(message("m"), Enqueue)
	open("r1", "r2", "r3")
	w.must(w.AckSent(t.Context(), key("r2"), key("gone")))
	open("r1", "r3")
	w.reopen()
	open("r1", "r3")
	at := w.now()
	w.pass(time.Second)
	w.must(w.AckSent(t.Context(), key("r1"), key("r2")))
	records, err := w.Records(StateDone)
	w.must(err)
	if records[1].AckSentAt != float64(at.UnixMilli()) || records[1].Message.Text != "r2" {
		t.Error("it was written again, or lost its text:", records[1])
	}
}

func TestNamesThatLeadElsewhereAreRefused(t *testing.T) {
	w := newWorld(t, Config{})
	for _, name := range []string{"", "..", "a/b", `a\b`, "session.x", strings.Repeat("x", 129)} {
		q := w.Spool.Queue(name)
		if _, _, err := q.Accept(t.Context(), message("m"), Enqueue); err == nil {
			t.Errorf("%q", name)
		}
		if q.Load(t.Context()) == nil {
			t.Errorf("%q", name)
		}
		if _, err := q.Records(); err == nil {
			t.Errorf("%q", name)
		}
	}
	for name, change := range map[string]func(*peers.Message){
		"no id":     func(m *peers.Message) { m.ID = "" },
		"no sender": func(m *peers.Message) { m.FromEndpoint = "" },
		"id":        func(m *peers.Message) { m.ID = "\xff" },
		"size":      func(m *peers.Message) { m.Text = strings.Repeat("x", MaxRecord) },
	} {
		m := message("m")
		change(&m)
		if _, _, err := w.Accept(t.Context(), m, Enqueue); err == nil {
			t.Error(name)
		}
	}
	if names := tree(t, w.cfg().Dir); len(names) != 0 {
		t.Error(names)
	}
}

func BenchmarkAccept(b *testing.B) {
	for _, callers := range []int{1, 50} {
		b.Run(fmt.Sprint(callers, " at once"), func(b *testing.B) {
			w := newWorld(b, Config{MaxQueue: 1 << 30})
			n := 0
			for b.Loop() {
				var wg sync.WaitGroup
				for i := range callers {
					m := message(fmt.Sprint("m", n, "-", i))
					wg.Go(func() {
						if _, _, err := w.Accept(b.Context(), m, Refuse); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
				n++
			}
			// The last of them waits as long as all take.
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/slowest")
		})
	}
}

func TestTheOldestOfTooManyThatAreDoneAreForgotten(t *testing.T) {
	const most = 100
	w := newWorld(t, Config{MaxDone: most}).fast()
	w.accept(message("oldest"), Refuse)
	w.accept(message("waits"), Enqueue)
	dir := filepath.Join(w.cfg().Dir, "spool", endpoint, string(StateDone))
	like := read(t, filepath.Join(dir, peers.RecordName("session-s", "oldest")))
	for i := range most {
		id := fmt.Sprintf("m%05d", i)
		put(t, filepath.Join(dir, peers.RecordName("session-s", id)), strings.NewReplacer("oldest", id, `"acknowledgedAt":1795989734602`,
			fmt.Sprintf(`"acknowledgedAt":%d`, 1795989734603+i)).Replace(like))
	}
	w.reopen()
	w.must(w.Load(t.Context()))
	got := w.ids(StateDone)
	if len(got) != most*9/10 || slices.Contains(got, "oldest") || slices.Contains(got, "m00009") || !slices.Contains(got, "m00010") || !slices.Contains(got, fmt.Sprintf("m%05d", most-1)) {
		t.Errorf("%d are known", len(got))
	}
	want(t, w.ids(StateQueued), []string{"waits"})
}
