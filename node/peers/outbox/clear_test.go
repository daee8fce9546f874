package outbox

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"opencode-mesh/protocol/peers"
)

func TestWhatASenderSentIsClearedAwayByItsLastNews(t *testing.T) {
	now := time.UnixMilli(1795989734668)
	o := New(t.TempDir(), func() time.Time { return now })
	for _, r := range []Record{{MessageID: "m1", FromEndpoint: "session-s"}, {MessageID: "m2", FromEndpoint: "session-s"}, {MessageID: "m3", FromEndpoint: "session-t"}} {
		r.ToEndpoint, r.ToName, r.Text = "session-r", "r", "hello"
		if err := o.Begin(r); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Hour)
	if err := o.Receipt("session-s", "m2", peers.Queued); err != nil {
		t.Fatal(err)
	}
	clear := func(before time.Time, want bool, left ...string) {
		t.Helper()
		if gone, err := o.Clear("session-s", before); err != nil || gone != want {
			t.Errorf("gone: %v, %v", gone, err)
		}
		all, err := o.List()
		if err != nil || len(all) != len(left) {
			t.Errorf("%+v, %v", all, err)
		}
		for _, id := range left {
			if _, errS := o.Get("session-s", id); errS != nil {
				if _, errT := o.Get("session-t", id); errT != nil {
					t.Errorf("%s is gone", id)
				}
			}
		}
	}
	clear(now.Add(-time.Hour), false, "m1", "m2", "m3")
	clear(now, false, "m2", "m3")
	clear(now.Add(time.Millisecond), true, "m3")
	if _, err := os.Lstat(filepath.Join(o.dir, "session-s")); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
	clear(now, true, "m3")
}
