package engine_test

import "testing"

func TestAMessageGoesFromSenderToReader(t *testing.T) {
	w := newWorld(t)
	w.channel("review", 2)
	row := w.send("hello")
	got := w.drain("ses_b")
	if len(got) != 1 || got[0] != row || row.Status != "in_flight" {
		t.Fatalf("drained %v", got)
	}
	if n := w.e.Commit(w.s, "ses_b", []string{row.ID}, "pull"); n != 1 || row.Status != "delivered" {
		t.Fatalf("%d committed, status %s", n, row.Status)
	}
}
