package mail_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestWhateverHappensEachMailArrivesOnceInOrderAndIsSettledOnce crashes hub and nodes,
// restores older backups of the hub, cuts tunnels and loses requests and answers, in
// any order.
func TestWhateverHappensEachMailArrivesOnceInOrderAndIsSettledOnce(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		names := []string{"alpha", "beta", "gamma"}
		w := newWorld(t, dir, names...)
		defer w.close()
		name := rapid.SampledFrom(names)
		lane := rapid.SampledFrom([]string{"", "one"})
		want := map[string]map[string][]string{} // by receiver and sender/lane
		ids := map[string][]string{}             // by sender
		sent := 0
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			n := w.nodes[name.Draw(t, "node")]
			switch rapid.SampledFrom([]string{"send", "send", "send", "connect", "connect", "disconnect", "crash", "hub", "keep", "restore", "loss", "run", "run"}).Draw(t, "step") {
			case "send":
				to, lane := name.Draw(t, "to"), lane.Draw(t, "lane")
				for range rapid.IntRange(1, 4).Draw(t, "mails") {
					text := fmt.Sprintf("%q", fmt.Sprint(sent))
					ids[n.id.Name] = append(ids[n.id.Name], n.send(to, lane, fmt.Sprint(sent)))
					if want[to] == nil {
						want[to] = map[string][]string{}
					}
					want[to][n.id.Name+"/"+lane] = append(want[to][n.id.Name+"/"+lane], text)
					sent++
				}
			case "connect":
				n.connect()
			case "disconnect":
				n.disconnect()
			case "crash":
				n.crash()
			case "hub":
				w.crashHub()
			case "keep":
				w.keep()
			case "restore":
				w.restore()
			case "loss":
				w.lossPercent.Store(rapid.Int64Range(0, 60).Draw(t, "percent"))
			case "run":
				time.Sleep(time.Duration(rapid.IntRange(1, 8).Draw(t, "ms")) * time.Millisecond)
			}
		}
		w.quiet()
		for _, n := range w.nodes {
			got := n.got()
			for lane, texts := range want[n.id.Name] {
				if !slices.Equal(got[lane], texts) {
					t.Errorf("%s got of %s %v, want %v", n.id.Name, lane, got[lane], texts)
				}
			}
			settled := n.settled()
			for _, id := range ids[n.id.Name] {
				if settled[id] != "delivered ;" {
					t.Errorf("receipts of a mail of %s: %q", n.id.Name, settled[id])
				}
			}
			if len(settled) != len(ids[n.id.Name]) {
				t.Errorf("%s has receipts of %d mails, sent %d", n.id.Name, len(settled), len(ids[n.id.Name]))
			}
		}
	})
}

// TestACopiedOutboxSendsNothingTwice runs a node's directory and a copy of it in turns:
// both have the same mails without receipts.
func TestACopiedOutboxSendsNothingTwice(t *testing.T) {
	w := newWorld(t, t.TempDir(), "alpha", "beta")
	defer w.close()
	alpha := w.nodes["alpha"]
	for n := range 3 {
		alpha.send("beta", "lane", fmt.Sprint(n))
	}
	if err := alpha.box.Close(); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(alpha.path)
	if err != nil {
		t.Fatal(err)
	}
	alpha.open()
	copied := &node{w: w, id: alpha.id, path: alpha.path + ".copy"}
	if err := os.WriteFile(copied.path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	copied.open()
	w.quiet()
	alpha.disconnect()
	w.nodes["alpha"] = copied
	copied.send("beta", "lane", "3")
	w.quiet()
	if got := w.nodes["beta"].got()["alpha/lane"]; !slices.Equal(got, []string{`"0"`, `"1"`, `"2"`, `"3"`}) {
		t.Errorf("beta got %v", got)
	}
	if a, c := len(alpha.settled()), len(copied.settled()); a != 3 || c != 4 {
		t.Errorf("%d and %d receipts", a, c)
	}
	if err := alpha.box.Close(); err != nil {
		t.Fatal(err)
	}
}
