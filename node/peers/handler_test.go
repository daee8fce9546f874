package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/peers/outbox"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

const sheetClock = 1795989611583

func atSheetClock(c *Config) {
	c.now = func() time.Time { return time.UnixMilli(sheetClock) }
	c.Options.ReceiveRate = 1000
}

func letter(id, from, to, text string, sentAt int64) string {
	return fmt.Sprintf(`{"version":2,"messageId":%q,"fromEndpointId":%q,"toEndpointId":%q,"from":{"instanceId":"x","name":"alpha","directory":"/home/u/a"},"text":%q,"via":[%q],"sentAt":%d,"more":1}`,
		id, from, to, text, from, sentAt)
}

// Every row but the last ones breaks a rule and, where that can be, all that come after
// it: the first broken rule decides.
func TestEveryStatusCodeInTheOrderOfTheChecks(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.start("alpha", atSheetClock)
	id := s.agent("ses_abc123", peers.PolicyAccept, newInbox())
	refusing := s.agent("refusing", peers.PolicyRefuse, newInbox())
	holding := s.agent("holding", peers.PolicyHold, newInbox())
	token, now := s.token(id), int64(sheetClock)
	const most = 2*8192 + 4096
	long := strings.Repeat("x", 8193)
	hopped := strings.Replace(letter("m", "f", id, "t", now), `"via":["f"]`, `"via":["1","2","3","4","5"]`, 1)
	for name, d := range s.doors() {
		t.Run(name, func(t *testing.T) {
			for i, c := range []struct {
				what, method, path, auth, body string
				code                           int
				answer                         string
			}{
				{"no token", "PUT", "/other?x", "", "", 401, `{"error":"unauthorized"}`},
				{"another token", "POST", "/message", "Bearer 0", strings.Repeat("x", most+1), 401, `{"error":"unauthorized"}`},
				{"scheme in lower case", "GET", "/health", strings.Replace(token, "B", "b", 1), "", 401, `{"error":"unauthorized"}`},
				{"token of none", "GET", "/health", "Bearer ", "", 401, `{"error":"unauthorized"}`},
				{"health", "GET", "/health", token, "", 200, `{"ok":true}`},
				{"health by another method", "POST", "/health", token, "{", 404, `{"error":"not found"}`},
				{"query", "GET", "/health?x=1", token, "", 404, `{"error":"not found"}`},
				{"slash", "POST", "/message/", token, "{", 404, `{"error":"not found"}`},
				{"other method", "GET", "/message", token, "", 404, `{"error":"not found"}`},
				{"other path", "POST", "/other", token, strings.Repeat("x", most+1), 404, `{"error":"not found"}`},
				{"body too large", "POST", "/message", token, strings.Repeat("x", most+1), 413, `{"error":"message too large"}`},
				{"ack too large", "POST", "/ack", token, strings.Repeat("x", most+1), 413, `{"error":"message too large"}`},
				{"as large as can be", "POST", "/message", token, strings.Repeat("x", most), 400, `{"error":"invalid json"}`},
				{"ack no json", "POST", "/ack", token, "{", 400, `{"error":"invalid json"}`},
				{"empty", "POST", "/message", token, "", 400, `{"error":"invalid json"}`},
				{"shape", "POST", "/message", token, strings.Replace(letter("", "f", "nobody", long, 0), `"via"`, `"no"`, 1), 400, `{"error":"invalid message shape"}`},
				{"too many hops", "POST", "/message", token, hopped, 400, `{"error":"invalid message shape"}`},
				{"ack shape", "POST", "/ack", token, `{"version":2}`, 400, `{"error":"invalid acknowledgement shape"}`},
				{"text too long", "POST", "/message", token, letter("m", "f", "nobody", long, 0), 413, `{"error":"message too large"}`},
				{"too old", "POST", "/message", token, letter("m", "f", "nobody", "t", now-300_001), 400, `{"error":"stale message"}`},
				{"too new", "POST", "/message", token, letter("m", "f", "nobody", "t", now+300_001), 400, `{"error":"stale message"}`},
				{"unknown endpoint", "POST", "/message", token, letter("m", "f", "nobody", "t", now), 404, `{"error":"endpoint not found"}`},
				{"token of another endpoint", "POST", "/message", token, letter("m", "f", refusing, "t", now), 404, `{"error":"endpoint not found"}`},
				{"taken, as old as can be", "POST", "/message", token, letter("one", "f", id, "one", now-300_000), 202, `{"status":"queued"}`},
				{"taken, as new as can be", "POST", "/message", token, letter("two", "f", id, "", now+300_000), 202, `{"status":"queued"}`},
				{"version 1 by its number", "POST", "/message", token, v1Letter("three", "f1", "three", now, 1), 202, `{"status":"queued"}`},
				{"version 3 is version 1", "POST", "/message", token, v1Letter("four", "f1", "four", now, 3), 202, `{"status":"queued"}`},
				{"refused", "POST", "/message", s.token(refusing), letter("m", "f", refusing, "t", now), 403, `{"status":"refused"}`},
				{"held", "POST", "/message", s.token(holding), letter("m", "f", holding, "t", now), 202, `{"status":"held"}`},
				{"ack of nothing", "POST", "/ack", token, ackOf(id, "nothing", "delivered"), 202, `{"status":"accepted"}`},
			} {
				// Each door has senders and messages of its own.
				body := strings.NewReplacer(`"f"`, `"f-`+name+`"`, `"f1"`, `"f1-`+name+`"`).Replace(c.body)
				code, answer := d.raw(t, c.method, c.path, c.auth, body)
				if code != c.code || answer != c.answer {
					t.Errorf("%d %s: %d %s", i, c.what, code, answer)
				}
			}
		})
	}
}

func v1Letter(id, from, text string, sentAt int64, version int) string {
	return fmt.Sprintf(`{"version":%d,"id":%q,"from":{"instanceId":%q,"name":"n","directory":"/d"},"text":%q,"via":[],"sentAt":%d}`, version, id, from, text, sentAt)
}

func ackOf(from, id, status string) string {
	return fmt.Sprintf(`{"version":2,"messageId":%q,"fromEndpointId":%q,"toEndpointId":"session-x","status":%q,"acknowledgedAt":5}`, id, from, status)
}

func TestASenderIsHeldToItsRateAndNoOtherIs(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(sheetClock)
	s := newMachine(t).start("alpha", func(c *Config) { c.now = func() time.Time { return now } })
	id, other := s.agent("one", "", newInbox()), s.agent("two", "", newInbox())
	d := s.doors()["port"]
	post := func(id, from, message string) int {
		code, answer := d.raw(t, "POST", "/message", s.token(id), letter(message, from, id, message, now.UnixMilli()))
		if code == http.StatusTooManyRequests && answer != `{"status":"full"}` {
			t.Errorf("answer %s", answer)
		}
		return code
	}
	for i := range peers.DefaultReceiveRate {
		// The same message again counts, too.
		if code := post(id, "f", "m"); code != http.StatusAccepted {
			t.Fatalf("request %d: %d", i, code)
		}
	}
	if code := post(id, "f", "m"); code != http.StatusTooManyRequests {
		t.Errorf("one more: %d", code)
	}
	if code := post(id, "g", "m"); code != http.StatusAccepted {
		t.Errorf("another sender: %d", code)
	}
	if code := post(other, "f", "m"); code != http.StatusAccepted {
		t.Errorf("another endpoint: %d", code)
	}
}

func TestRatesSlideAndTheirTableIsBounded(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(0)
	r := newRates(2, func() time.Time { return now })
	a := rated{from: "a"}
	step := func(d time.Duration, want bool) {
		t.Helper()
		if now = now.Add(d); r.allow(a) != want {
			t.Errorf("after %v: %v", now.Sub(time.UnixMilli(0)), !want)
		}
	}
	step(0, true)
	step(30*time.Second, true)
	step(0, false)
	step(29*time.Second, false)
	step(time.Second, true) // the first is a minute old
	step(29*time.Second, false)
	step(time.Second, true)
	for i := range 2 * MaxRated {
		now = now.Add(time.Millisecond)
		r.allow(rated{from: fmt.Sprint(i)})
	}
	if len(r.seen) != MaxRated {
		t.Errorf("%d are known", len(r.seen))
	}
	if _, known := r.seen[rated{from: fmt.Sprint(2*MaxRated - 1)}]; !known {
		t.Error("the newest was forgotten")
	}
}

func TestALetterOfLessThanSignsAtTheLimitArrives(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	a, b := m.start("alpha"), m.start("beta")
	box := newInbox()
	from, to := a.agent("a", "", newInbox()), b.agent("b", "", box)
	text := strings.Repeat("<", peers.DefaultMaxMessageBytes)
	sent := a.send(from, to, text)
	if got := await(t, "the message", box.got); got.Message.Text != text || got.Message.ID != sent.MessageID {
		t.Errorf("%d bytes of %s", len(got.Message.Text), got.Message.ID)
	}
	if _, err := a.Send(t.Context(), from, a.peer(to), text+"<"); err == nil {
		t.Error("one byte more was sent")
	}
	// Six bytes each on the way, which no receiver takes.
	if _, err := a.Send(t.Context(), from, a.peer(to), strings.Repeat("\x01", 8000)); err == nil {
		t.Error("more than receivers take was sent")
	}
}

func TestASilentClientIsCutOffAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s := newMachine(t).start("alpha")
	id := s.agent("a", "", newInbox())
	for name, d := range s.doors() {
		half, body := d.dial(t), d.dial(t)
		fmt.Fprintf(half, "POST /message HTTP/1.1\r\nHost: x\r\nAuth")
		fmt.Fprintf(body, "POST /message HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: 100\r\n\r\n{", s.token(id))
		if code, _ := d.raw(t, "GET", "/health", s.token(id), ""); code != http.StatusOK {
			t.Errorf("%s: meanwhile %d", name, code)
		}
		for _, c := range []io.Reader{half, body} {
			if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("%s: not cut off: %v", name, err)
			}
		}
	}
}

func TestThePortIsFullAndTheSocketIsNot(t *testing.T) {
	t.Parallel()
	s := newMachine(t).start("alpha")
	id := s.agent("a", "", newInbox())
	doors := s.doors()
	socket, ok := doors["socket"]
	if !ok {
		return // there is only the port
	}
	for range MaxConnections {
		doors["port"].dial(t)
	}
	if code, _ := socket.raw(t, "GET", "/health", s.token(id), ""); code != http.StatusOK {
		t.Errorf("got %d", code)
	}
	// They said nothing and go, and then there is room.
	if code, _ := doors["port"].raw(t, "GET", "/health", s.token(id), ""); code != http.StatusOK {
		t.Errorf("got %d", code)
	}
}

func TestAnAckIsForTheEndpointOfItsTokenOnly(t *testing.T) {
	t.Parallel()
	s := newMachine(t).start("alpha")
	box := newInbox()
	otherBox := newInbox()
	id, other := s.agent("a", "", box), s.agent("b", "", otherBox)
	d := s.doors()["port"]
	for range 2 { // and twice is no trouble
		if code, _ := d.raw(t, "POST", "/ack", s.token(id), ackOf(id, "m", peers.Delivered)); code != http.StatusAccepted {
			t.Errorf("got %d", code)
		}
		if a := await(t, "the acknowledgement", box.acked); a.MessageID != "m" {
			t.Errorf("got %+v", a)
		}
	}
	if code, _ := d.raw(t, "POST", "/ack", s.token(other), ackOf(id, "m", peers.Delivered)); code != http.StatusAccepted {
		t.Errorf("got %d", code)
	}
	if len(box.acked)+len(otherBox.acked) > 0 {
		t.Error("the token of another endpoint was enough")
	}
}

func TestAnAckThatCannotBeKeptIsAnsweredWithAnEmptyError(t *testing.T) {
	t.Parallel()
	s := newMachine(t).start("alpha")
	id := s.agent("a", "", failing{})
	code, body := s.doors()["port"].raw(t, "POST", "/ack", s.token(id), ackOf(id, "m", peers.Delivered))
	if code != http.StatusInternalServerError || body != "" {
		t.Errorf("got %d %q", code, body)
	}
}

type failing struct{}

func (failing) Deliver(context.Context, spool.Record) error { return ErrLater }
func (failing) Acked(context.Context, peers.Ack) (bool, error) {
	return false, errors.New("the disk is full")
}

func TestAnIdThatNoFileCanHaveIsOneThatNobodyKnows(t *testing.T) {
	t.Parallel()
	s := newMachine(t).start("alpha")
	id := s.agent("a", "", newInbox())
	for _, n := range []int{240, 251, 5000} {
		long := strings.Repeat("x", n)
		for name, d := range s.doors() {
			if code, body := d.raw(t, "POST", "/ack", s.token(id), ackOf(id, long, peers.Delivered)); code != 202 {
				t.Errorf("%s, %d characters: %d %s", name, n, code, body)
			}
		}
		if _, err := s.Outbox().Get(id, long); !errors.Is(err, outbox.ErrNone) {
			t.Errorf("%d characters: %v", n, err)
		}
		// What somebody sends with such an id is kept, and once.
		to := peers.EndpointID("a")
		for range 2 {
			code, body := s.doors()["port"].raw(t, "POST", "/message", s.token(to), letter(long, "session-b", to, "with a long id", time.Now().UnixMilli()))
			if code != 202 {
				t.Errorf("a message with an id of %d characters: %d %s", n, code, body)
			}
		}
	}
}
