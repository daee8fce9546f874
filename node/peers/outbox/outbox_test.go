package outbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/node/peers/files/filestest"
	"opencode-mesh/protocol/peers"
)

const childAt = "MESH_TEST_OUTBOX_CHILD"

func TestMain(m *testing.M) {
	if at := os.Getenv(childAt); at != "" {
		child(at)
		return
	}
	goleak.VerifyTestMain(m)
}

func newOutbox(t testing.TB) (*Outbox, *time.Time) {
	at := time.UnixMilli(1795989734668)
	return New(filepath.Join(t.TempDir(), "storage"), func() time.Time { return at }), &at
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const id = "5df8c2142c122e53"

var sent = Record{MessageID: id, FromEndpoint: "session-s", ToEndpoint: "session-demo", ToName: "beta", Text: "hello"}

func ack(status string, at float64) peers.Ack {
	return peers.Ack{MessageID: id, FromEndpoint: "session-s", ToEndpoint: "session-demo", Status: status, AcknowledgedAt: at}
}

// The first sample is that of the original, observed: the acknowledgement came first.
func TestRecordsAreWrittenAsTheOriginalWritesThem(t *testing.T) {
	const head = `{"version":1,"messageId":"5df8c2142c122e53","fromEndpointId":"session-s","toEndpointId":"session-demo","toName":"beta","text":"hello","createdAt":1795989734668,"updatedAt":`
	var o *Outbox
	receipt := func() error { return o.Receipt("session-s", id, peers.Queued) }
	final := func() error { _, err := o.Ack(ack(peers.Delivered, 5)); return err }
	failed := func() error { return o.Failed("session-s", id, errors.New("no answer <3 s>")) }
	for wanted, steps := range map[string][]func() error{
		`1795989734668}`: {},
		`1795989734669,"finalStatus":"delivered","acknowledgedAt":5,"receiptStatus":"queued"}`:                           {final, receipt},
		`1795989734669,"receiptStatus":"queued","finalStatus":"delivered","acknowledgedAt":5}`:                           {receipt, final},
		`1795989734669,"error":"no answer <3 s>"}`:                                                                       {failed},
		`1795989734669,"receiptStatus":"queued"}`:                                                                        {failed, receipt},
		`1795989734669,"finalStatus":"delivered","acknowledgedAt":5}`:                                                    {failed, final},
		`1795989734669,"receiptStatus":"queued","finalStatus":"delivered","acknowledgedAt":5,"error":"no answer <3 s>"}`: {receipt, final, failed},
	} {
		var at *time.Time
		o, at = newOutbox(t)
		must(t, o.Begin(sent))
		*at = at.Add(time.Millisecond)
		for _, step := range steps {
			must(t, step())
		}
		path := filepath.Join(o.dir, "session-s", id+".json")
		got, err := os.ReadFile(path)
		must(t, err)
		if string(got) != head+wanted {
			t.Errorf("got  %s\nwant %s", got, head+wanted)
		}
		if runtime.GOOS == "windows" {
			continue // it has no modes
		}
		for p, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700, o.dir: 0o700, filepath.Dir(o.dir): 0o700} {
			if info, err := os.Stat(p); err != nil || info.Mode().Perm() != mode {
				t.Error(p, info.Mode(), err)
			}
		}
	}
}

func TestNoIDLeadsOutOfTheOutbox(t *testing.T) {
	o, _ := newOutbox(t)
	r := sent
	r.FromEndpoint, r.MessageID = "../../x", "a/b"
	must(t, o.Begin(r))
	if _, err := os.Stat(filepath.Join(o.dir, "______x", "a_b.json")); err != nil {
		t.Error(err)
	}
	// Another id of the same path is another message.
	if _, err := o.Get("../../x", "a_b"); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	r.MessageID = "a_b"
	if o.Begin(r) == nil {
		t.Error("a record was written over")
	}
	if got, err := o.Get("../../x", "a/b"); err != nil || got.MessageID != "a/b" {
		t.Error(got, err)
	}
}

func TestAnAcknowledgementCountsForItsOwnReceiverOnlyAndTheLastOne(t *testing.T) {
	o, _ := newOutbox(t)
	apply := func(a peers.Ack, wanted bool) {
		t.Helper()
		if applied, err := o.Ack(a); applied != wanted || err != nil {
			t.Error(a, applied, err)
		}
	}
	apply(ack(peers.Delivered, 1), false) // nothing was sent
	if _, err := os.Stat(o.dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("it made something:", err)
	}
	must(t, o.Begin(sent))
	other := ack(peers.Refused, 1)
	other.ToEndpoint = "session-other"
	apply(other, false)
	other = ack(peers.Refused, 1)
	other.FromEndpoint = "session-other"
	apply(other, false)
	apply(peers.Ack{}, false)
	if r, err := o.Get("session-s", id); err != nil || r.FinalStatus != "" {
		t.Error(r, err)
	}
	must(t, o.Failed("session-s", id, errors.New("no answer")))
	apply(ack(peers.Refused, 2), true)
	apply(ack(peers.Delivered, 1), true)
	before, err := os.Stat(o.path("session-s", id))
	must(t, err)
	apply(ack(peers.Delivered, 1), true) // twice is once
	if after, err := os.Stat(o.path("session-s", id)); err != nil || !os.SameFile(before, after) {
		t.Error("it was written again:", err)
	}
	r, err := o.Get("session-s", id)
	if err != nil || r.FinalStatus != peers.Delivered || r.AcknowledgedAt != 1 || r.Error != "" {
		t.Error(r, err)
	}
	for _, err := range []error{o.Receipt("session-s", "none", peers.Queued), o.Failed("session-s", "none", os.ErrClosed)} {
		if !errors.Is(err, ErrNone) {
			t.Error(err)
		}
	}
}

func TestNewsThatComesAtOnceIsAllKept(t *testing.T) {
	o, _ := newOutbox(t)
	var wg sync.WaitGroup
	for i := range 30 {
		r := sent
		r.MessageID = fmt.Sprint("m", i)
		must(t, o.Begin(r))
		a := ack(peers.Delivered, float64(i+1))
		a.MessageID = r.MessageID
		wg.Go(func() {
			if applied, err := o.Ack(a); !applied || err != nil {
				t.Error(applied, err)
			}
		})
		wg.Go(func() {
			if err := o.Receipt("session-s", r.MessageID, peers.Queued); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	records, err := o.List("session-s")
	must(t, err)
	for _, r := range records {
		if r.FinalStatus != peers.Delivered || r.ReceiptStatus != peers.Queued || fmt.Sprint("m", r.AcknowledgedAt-1) != r.MessageID {
			t.Error("something was lost:", r)
		}
	}
	if len(records) != 30 {
		t.Error(len(records), "records")
	}
}

func TestTheNewestComesFirstAndWhatIsNotValidIsPassedOver(t *testing.T) {
	o, at := newOutbox(t)
	if records, err := o.List(); err != nil || len(records) != 0 {
		t.Error(records, err)
	}
	for i, from := range []string{"session-s", "session-t", "session-s"} {
		*at = at.Add(time.Second)
		r := sent
		r.FromEndpoint, r.MessageID = from, fmt.Sprint("m", i)
		must(t, o.Begin(r))
	}
	dir := filepath.Join(o.dir, "session-s")
	for name, text := range map[string]string{
		"bad.json": "{", "v2.json": `{"version":2,"messageId":"v2","fromEndpointId":"session-s","toEndpointId":"x"}`,
		"big.json":   `{"version":1,"messageId":"big","fromEndpointId":"session-s","toEndpointId":"x","text":"` + strings.Repeat("x", MaxRecord) + `"}`,
		"moved.json": `{"version":1,"messageId":"m9","fromEndpointId":"session-s","toEndpointId":"x"}`, "m1.json.7.7.tmp": "",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	list := func(from ...string) (ids []string) {
		records, err := o.List(from...)
		must(t, err)
		for _, r := range records {
			ids = append(ids, r.MessageID)
		}
		return ids
	}
	for _, c := range []struct{ got, wanted []string }{
		{list(), []string{"m2", "m1", "m0"}},
		{list("session-s"), []string{"m2", "m0"}},
		{list("session-t", "session-s", "session-t"), []string{"m2", "m1", "m0"}},
		{list("session.s"), nil},
	} {
		if !slices.Equal(c.got, c.wanted) {
			t.Error(c.got, "not", c.wanted)
		}
	}
}

func TestOfEachKindTheNewestAreKept(t *testing.T) {
	var records []Record
	for i := range 10 {
		r := Record{MessageID: fmt.Sprint("m", i), CreatedAt: float64(i)}
		switch {
		case i%2 == 0:
			r.FinalStatus = peers.Delivered
		case i == 5:
			r.ReceiptStatus = peers.Full // nothing comes after that
		default:
			r.ReceiptStatus = peers.Queued
		}
		records = append(records, r)
	}
	var ids []string
	for _, r := range excess(records, 3, 2) {
		ids = append(ids, r.MessageID)
	}
	// Finished: 8 6 5 4 2 0; open: 9 7 3 1.
	if wanted := []string{"m4", "m3", "m2", "m1", "m0"}; !slices.Equal(ids, wanted) {
		t.Error(ids, "go, not", wanted)
	}
}

func TestASenderThatSendsForYearsDoesNotFillTheDisk(t *testing.T) {
	o, at := newOutbox(t)
	dir := filepath.Join(o.dir, "session-s")
	must(t, os.MkdirAll(dir, 0o700))
	for i := range MaxFinished + 5 {
		r := sent
		r.Version, r.MessageID, r.FinalStatus, r.CreatedAt = 1, fmt.Sprint("old", i), peers.Delivered, float64(i)
		data, err := r.encode()
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, r.MessageID+".json"), data, 0o600))
	}
	left := filepath.Join(dir, "old1.json.7.7.tmp")
	must(t, errors.Join(os.WriteFile(left, nil, 0o600), os.Chtimes(left, *at, time.Now().Add(-2*leftAge))))
	must(t, o.Begin(sent))
	for i := range MaxFinished + 5 {
		if _, err := o.Get("session-s", fmt.Sprint("old", i)); (i < 5) != errors.Is(err, ErrNone) {
			t.Fatal(i, err)
		}
	}
	if _, err := o.Get("session-s", id); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Error("a temporary file stays:", err)
	}
}

// What failed before the POST is not there, and what failed after it left the record as it
// was.
func TestARecordThatCannotBeWrittenLeavesWhatWasThere(t *testing.T) {
	for at := 1; ; at++ {
		o, _ := newOutbox(t)
		faults := &filestest.Faults{FS: files.OS{}, At: at, Err: syscall.ENOSPC, Half: true}
		o.sys = faults
		began := o.Begin(sent)
		if began != nil {
			if _, err := o.Get("session-s", id); !errors.Is(err, ErrNone) || !errors.Is(began, syscall.ENOSPC) {
				t.Error(faults.Steps(), began, err)
			}
			o.sys = files.OS{}
			must(t, o.Begin(sent)) // it can be sent again
			continue
		}
		noted := o.Receipt("session-s", id, peers.Queued)
		r, err := o.Get("session-s", id)
		must(t, err)
		if noted == nil && r.ReceiptStatus != peers.Queued {
			t.Error(faults.Steps(), r)
		}
		if len(faults.Steps()) < at {
			must(t, noted)
			break
		}
	}
}

// child begins, and notes a receipt and an acknowledgement, until it is killed.
func child(text string) {
	dir, step, _ := strings.Cut(text, "|")
	at, err := strconv.Atoi(step)
	o := New(dir, nil)
	o.sys = &filestest.Faults{FS: files.OS{}, At: at, Half: true}
	say := func(what string, failed error) {
		if err = errors.Join(err, failed); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(what)
	}
	say("begun", o.Begin(sent))
	say("receipt", o.Receipt("session-s", id, peers.Queued))
	_, failed := o.Ack(ack(peers.Delivered, 1))
	say("done", failed)
}

func TestKilledAnywhereNothingThatWasSaidIsLost(t *testing.T) {
	for at := 1; ; at++ {
		o, _ := newOutbox(t)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%d", childAt, filepath.Dir(o.dir), at))
		b, _ := cmd.CombinedOutput()
		out := string(b)
		r, err := o.Get("session-s", id)
		if err != nil && (!errors.Is(err, ErrNone) || out != "") {
			t.Error(at, out, err)
		}
		if strings.Contains(out, "receipt") && r.ReceiptStatus != peers.Queued || err == nil && r.Text != "hello" {
			t.Error(at, out, r)
		}
		if strings.HasSuffix(out, "done\n") {
			if r.FinalStatus != peers.Delivered || at < 18 {
				t.Error(at, out, r)
			}
			break
		}
	}
}
