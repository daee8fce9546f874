package peers_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/peers"
)

func FuzzReadEntry(f *testing.F) {
	for _, e := range []peers.Entry{ofTheSample(), ofTheSample().Compat(5)} {
		f.Add(e.Encode())
	}
	f.Add(entry(map[string]string{"pid": `"x"`, "heartbeatAt": "[null]", "name": `["\ud800", 1e999]`, "title": "\"\xff\"", "endpointId": "{\"\xfe\":1}"}))
	f.Add([]byte(`{"version":1,"instanceId":[0],"inboxUrl":1e999,"activeSessionTitle":"x","activeSessionId":null,"heartbeatAt":"-Infinity"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := peers.ReadEntry(data)
		if err != nil {
			return
		}
		if e.EndpointID == "" || e.ProcessID == "" {
			t.Errorf("an entry without an id: %+v", e)
		}
		written := e.Encode()
		again, err := peers.ReadEntry(written)
		if err != nil {
			t.Fatalf("%s cannot be read: %v", written, err)
		}
		if d := cmp.Diff(e, again, cmpopts.EquateNaNs()); d != "" {
			t.Errorf("read again otherwise:\n%s", d)
		}
		if !bytes.Equal(again.Encode(), written) {
			t.Errorf("written again otherwise:\n%s\n%s", written, again.Encode())
		}
	})
}

func FuzzReadMessage(f *testing.F) {
	f.Add([]byte(messageV2))
	f.Add([]byte(messageV1))
	f.Add(with(messageV2, "via", "[]"))
	f.Add(with(messageV1, "text", `"[peer message from \ud800 <frame> `+"\xff"+`"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := peers.ReadMessage(data)
		if err != nil {
			return
		}
		if m.ID == "" || m.FromEndpoint == "" || m.From.InstanceID != m.FromEndpoint || m.Via == nil || len(m.Via) > peers.MaxVia {
			t.Errorf("read as %+v", m)
		}
		again, err := peers.ReadMessage(m.Encode())
		if err != nil {
			t.Fatalf("%s cannot be read: %v", m.Encode(), err)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Errorf("read again otherwise:\n%s", d)
		}
		text, _ := peers.Prompt(m, "ses_b")
		if _, n := mesh.Defuse(text); n != 1 {
			t.Errorf("%d markers in\n%s", n, text)
		}
	})
}

func FuzzReadAck(f *testing.F) {
	f.Add([]byte(ackBody))
	f.Add(with(ackBody, "acknowledgedAt", "-1.5e-3"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := peers.ReadAck(data)
		if err != nil {
			return
		}
		if again, err := peers.ReadAck(a.Encode()); err != nil || again != a {
			t.Errorf("read again as %+v, %v, and not %+v", again, err, a)
		}
	})
}
