package relay

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"opencode-mesh/node/mail"
	"opencode-mesh/node/peers"
	"opencode-mesh/node/peers/registry"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/api"
	words "opencode-mesh/protocol/peers"
)

// desk is a relay whose clock stands and that does nothing by itself, and the service that
// it publishes at.
type desk struct {
	*Relay
	t    *testing.T
	path string // of the mail box

	mu        sync.Mutex // guards the following fields
	at        time.Time
	rows      map[string]peers.Endpoint
	waiting   map[string]int // messages in the spool of an endpoint that are not done
	settled   map[spool.Key]string
	posted    int
	withdrawn func(id string)
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, path: filepath.Join(t.TempDir(), "mail.db"), at: time.UnixMilli(1795989734602), rows: map[string]peers.Endpoint{}, waiting: map[string]int{}, settled: map[spool.Key]string{},
		withdrawn: func(string) {}}
	d.start()
	t.Cleanup(func() { _ = d.cfg.Box.Close() })
	return d
}

// start makes the relay of a process that begins, which has published nothing.
func (d *desk) start() {
	d.t.Helper()
	box, err := mail.Open(mail.Config{Path: d.path, HubID: "hub", BallastBytes: -1})
	if err != nil {
		d.t.Fatal(err)
	}
	clear(d.rows)
	d.Relay = New(Config{Box: box, Service: d, Node: "alpha", Shows: func(string) bool { return true }, Now: d.now})
}

func (d *desk) restart() {
	d.t.Helper()
	if err := d.cfg.Box.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.start()
}

func (d *desk) now() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at
}

// wait lets time pass, and then everything be looked at once.
func (d *desk) wait(by time.Duration) {
	d.t.Helper()
	d.mu.Lock()
	d.at = d.at.Add(by)
	d.mu.Unlock()
	if _, err := d.pass(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
	d.work.Wait()
}

// hears tells what the hub has: an agent of each of some nodes.
func (d *desk) hears(nodes ...string) {
	d.t.Helper()
	f := api.PeerFleet{Revision: "1"}
	for _, n := range nodes {
		f.Nodes = append(f.Nodes, api.PeerNode{Node: n, NodeID: "id-" + n, Agents: []api.PeerAgent{{ID: "session-" + n, Name: "agent", Directory: "/srv"}}})
	}
	if err := d.learn(d.t.Context(), f); err != nil {
		d.t.Fatal(err)
	}
}

// shows says which nodes have an agent here that can be seen.
func (d *desk) shows() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := []string{}
	for _, e := range d.rows {
		if !e.Hidden {
			list = append(list, e.Receiver.(*proxy).node)
		}
	}
	slices.Sort(list)
	return list
}

func (d *desk) want(nodes ...string) {
	d.t.Helper()
	if got := d.shows(); !slices.Equal(got, nodes) {
		d.t.Errorf("shown are those of %q, want %q", got, nodes)
	}
}

func (d *desk) Publish(_ context.Context, e peers.Endpoint) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows[e.ID] = e
	return nil
}

func (d *desk) Withdraw(_ context.Context, id string) error {
	d.mu.Lock()
	delete(d.rows, id)
	d.mu.Unlock()
	d.withdrawn(id)
	return nil
}

func (d *desk) Settle(_ context.Context, _ string, k spool.Key, status string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled[k] = status
	return nil
}

func (d *desk) Records(id string, _ ...spool.State) ([]spool.Record, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return make([]spool.Record, d.waiting[id]), nil
}

func (d *desk) Post(context.Context, registry.Peer, words.Message) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.posted++
	return words.Queued, nil
}

func (d *desk) Agents(context.Context) ([]registry.Peer, error) { return nil, nil }
func (d *desk) Changes() <-chan struct{}                        { return nil }
func (d *desk) DeskID() string                                  { return "session-desk" }
func (d *desk) DeskNamed() (bool, error)                        { return false, nil }

func TestAgentsOfAnotherNodeGoWhenNobodyHasSaidForADayThatTheyAreThere(t *testing.T) {
	d := newDesk(t)
	d.hears("beta")
	d.wait(0)
	d.want("beta")
	d.wait(RosterAge)
	d.want("beta")
	d.wait(time.Millisecond)
	d.want()
	d.hears("beta")
	d.wait(0)
	d.want("beta")
}

func TestAgentsOfANodeThatTheHubDoesNotHaveGoAfterTwoMinutes(t *testing.T) {
	d := newDesk(t)
	d.hears("beta", "gamma")
	d.wait(AbsentAge)
	d.hears("gamma")
	d.wait(0)
	d.want("beta", "gamma")
	d.wait(time.Millisecond)
	d.want("gamma")
	d.hears("beta", "gamma")
	d.wait(0)
	d.want("beta", "gamma")
}

func TestAMessageOfWhichNothingIsHeardExpires(t *testing.T) {
	d := newDesk(t)
	d.hears("beta")
	d.wait(0)
	id := words.ProxyID("beta", "session-beta")
	k := spool.Key{From: "session-a", ID: "m1"}
	rec := spool.Record{Message: spool.StoredMessage{ID: k.ID, From: words.Sender{InstanceID: k.From}, Text: "hello", Via: []string{k.From}}}
	if err := d.rows[id].Receiver.Deliver(t.Context(), rec); !errors.Is(err, peers.ErrPending) {
		t.Fatal(err)
	}
	d.wait(GiveUp)
	if got, ok := d.settled[k]; ok {
		t.Errorf("it ended as %q before its time", got)
	}
	if e, there := d.rows[id]; !there || !e.Hidden {
		t.Error("its address does not wait for the end out of sight")
	}
	d.wait(time.Millisecond)
	if got := d.settled[k]; got != words.Expired {
		t.Errorf("it ended as %q", got)
	}
	d.wait(lingering)
	if _, there := d.rows[id]; there {
		t.Error("its address is there long after its end")
	}
}

func TestARowStaysOutOfSightWhileMessagesWaitAtIt(t *testing.T) {
	d := newDesk(t)
	id := words.ProxyID("beta", "session-beta")
	d.hears("beta")
	d.wait(0)
	waits := func(n int) { d.mu.Lock(); d.waiting[id] = n; d.mu.Unlock() }
	waits(1)
	d.wait(RosterAge + time.Millisecond)
	if e, there := d.rows[id]; !there || !e.Hidden {
		t.Errorf("%+v, %v", e, there)
	}
	d.restart()
	d.wait(0)
	if e, there := d.rows[id]; !there || !e.Hidden || e.Receiver.(*proxy).to != "session-beta" || e.Name != "beta/agent" {
		t.Errorf("after a restart: %+v, %v", e, there)
	}
	d.withdrawn = func(string) { waits(1) } // one comes at the last moment
	waits(0)
	d.wait(0)
	if e, there := d.rows[id]; !there || !e.Hidden {
		t.Errorf("%+v, %v", e, there)
	}
	d.withdrawn = func(string) {}
	waits(0)
	d.wait(0)
	if _, there := d.rows[id]; there || d.NodeOf(id) != "" {
		t.Error("it is there with nothing to wait for")
	}
	d.restart()
	d.wait(0)
	if len(d.rows) > 0 {
		t.Errorf("after another restart: %+v", d.rows)
	}
}

// brings takes n messages into the journal.
func (d *desk) brings(n int) []*brought {
	d.t.Helper()
	err := d.cfg.Box.Update(d.t.Context(), func(tx *mail.Tx) error {
		for i := range n {
			body := message{ID: fmt.Sprint("m", i), From: "session-b", To: "session-a", Text: "hello", Via: []string{"session-b"}}
			if err := d.receiveMessage(tx, api.Mail{From: "beta", FromID: "id-beta"}, body); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	_, in, err := d.open()
	if err != nil || len(in) != n {
		d.t.Fatalf("%d messages came, %v", len(in), err)
	}
	return in
}

func TestWhatEndedIsForgottenStepByStepUntilNothingIsLeft(t *testing.T) {
	d := newDesk(t)
	d.wait(0) // the first look of the hour
	err := d.cfg.Box.Update(t.Context(), func(tx *mail.Tx) error {
		for i := range 2*pruneStep + 1 {
			b := &brought{Proxy: "session-p", Text: message{ID: fmt.Sprint("m", i), To: "session-a"}, Status: words.Delivered, EndMS: d.nowMS()}
			if err := put(tx, bucketBrought, b.key(), b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	left := func() int {
		list, _, err := d.Messages(10 * pruneStep)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	d.wait(keepDone)
	if n := left(); n != 2*pruneStep+1 {
		t.Errorf("%d are known before their time is over", n)
	}
	d.wait(time.Hour)
	if n := left(); n != 0 {
		t.Errorf("%d are known still", n)
	}
}

func TestAMessageThatEndedMeanwhileIsNotPosted(t *testing.T) {
	d := newDesk(t)
	for name, b := range map[string]*brought{"never posted": nil, "posted before": {Tried: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			was := d.brings(1)[0]
			if b != nil {
				if open, err := d.change(t.Context(), was, func(now *brought) { now.Tried = b.Tried }); !open || err != nil {
					t.Fatal(err)
				}
			}
			if done, err := d.finish(t.Context(), was.key(), words.Delivered, "", false); !done || err != nil {
				t.Fatal(err)
			}
			if _, err := d.postOne(t.Context(), was, registry.Peer{Entry: words.Entry{EndpointID: "session-a"}, Alive: true}); err != nil {
				t.Fatal(err)
			}
			if d.posted != 0 {
				t.Error("it was posted")
			}
		})
	}
	b := d.brings(1)[0]
	if _, err := d.postOne(t.Context(), b, registry.Peer{Entry: words.Entry{EndpointID: "session-a"}, Alive: true}); err != nil || d.posted != 1 {
		t.Errorf("one that has not ended was posted %d times, %v", d.posted, err)
	}
}

// counting is a hub that answers nothing until it is hung up on.
type counting struct {
	mu        sync.Mutex
	now, most int
}

func (c *counting) Call(ctx context.Context, _, _ string, _, _ any) error {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
	return ctx.Err()
}

func TestWhoeverAttachesAtOnceOneHubIsTalkedTo(t *testing.T) {
	d := newDesk(t)
	hub := &counting{}
	var work sync.WaitGroup
	for i := range 16 {
		work.Go(func() {
			for j := range 20 {
				if (i+j)%3 == 0 {
					d.Detach()
				} else {
					d.Attach(hub)
				}
			}
		})
	}
	work.Wait()
	d.Detach()
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if hub.now != 0 || hub.most > 2 { // one says, one hears
		t.Errorf("%d calls are under way after the end, there were %d at once", hub.now, hub.most)
	}
}

func TestARowWaitsNoLongerForItsTurnThanItsCallerWants(t *testing.T) {
	d := newDesk(t)
	d.publishing <- struct{}{} // somebody publishes for long
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.publish(ctx, d.rowOf("beta", "id", "session-b", "b", "", "", "", d.now())); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
