package peers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/peers"
)

const messageV2 = `{"version":2,"messageId":"5d9791d7b6dd59ab","fromEndpointId":"session-a","toEndpointId":"session-b",` +
	`"from":{"instanceId":"session-a","name":"alpha","directory":"/home/u/a"},"text":"hi","via":["session-a"],"sentAt":1795989611583}`

const messageV1 = `{"id":"5d9791d7b6dd59ab","from":{"instanceId":"session-a","name":"alpha","directory":"/home/u/a"},"text":"hi","via":["session-a"],"sentAt":1795989611583}`

func sent() peers.Message {
	return peers.Message{
		ID: "5d9791d7b6dd59ab", FromEndpoint: "session-a", ToEndpoint: "session-b",
		From: peers.Sender{InstanceID: "session-a", Name: "alpha", Directory: "/home/u/a"},
		Text: "hi", Via: []string{"session-a"}, SentAt: 1795989611583,
	}
}

func TestMessagesAreReadAndWrittenByteForByte(t *testing.T) {
	v1 := sent()
	v1.V1, v1.ToEndpoint = true, ""
	for body, want := range map[string]peers.Message{messageV2: sent(), messageV1: v1} {
		got, err := peers.ReadMessage([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
		if string(got.Encode()) != body {
			t.Errorf("written as\n%s, want\n%s", got.Encode(), body)
		}
	}
}

// with is a message with one field changed; "" takes it away.
func with(body, name, value string) []byte {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &fields); err != nil {
		panic(err)
	}
	delete(fields, name)
	var parts []string
	if value != "" {
		parts = append(parts, fmt.Sprintf("%q:%s", name, value))
	}
	for name, value := range fields {
		parts = append(parts, fmt.Sprintf("%q:%s", name, value))
	}
	return []byte("{" + strings.Join(parts, ",") + "}")
}

func TestMessagesOfAWrongForm(t *testing.T) {
	texts := []string{"", "null", `""`, "5", "true", "{}", `["a"]`}
	shapes := map[string][]string{
		"messageId": texts, "fromEndpointId": texts, "toEndpointId": texts,
		"from": {
			"", "null", `"session-a"`, "[]", "{}", `{"name":"a","directory":"/"}`, `{"instanceId":"a","directory":"/"}`, `{"instanceId":"a","name":"a"}`,
			`{"instanceId":"","name":"a","directory":"/"}`, `{"instanceId":"a","name":"","directory":"/"}`, `{"instanceId":"a","name":"a","directory":""}`,
			`{"instanceId":5,"name":"a","directory":"/"}`, `{"InstanceId":"a","name":"a","directory":"/"}`,
		},
		"text":   {"", "null", "5", `["hi"]`},
		"via":    {"", "null", `"a"`, "{}", "[null]", "[5]", `["a",["b"]]`, `["1","2","3","4","5"]`},
		"sentAt": {"", "null", `"1795989611583"`, "true", "1e999", "-1e999", "[]"},
	}
	for name, values := range shapes {
		for _, value := range values {
			if m, err := peers.ReadMessage(with(messageV2, name, value)); !errors.Is(err, peers.ErrShape) {
				t.Errorf("%s of %q: %+v, %v", name, value, m, err)
			}
			if name == "messageId" {
				name = "id"
			}
			if strings.Contains(messageV1, `"`+name+`"`) {
				if m, err := peers.ReadMessage(with(messageV1, name, value)); !errors.Is(err, peers.ErrShape) {
					t.Errorf("version 1, %s of %q: %+v, %v", name, value, m, err)
				}
			}
			if name == "id" {
				name = "messageId"
			}
		}
	}
	for _, body := range []string{"null", "[]", "5", `"` + "x" + `"`, "{}"} {
		if _, err := peers.ReadMessage([]byte(body)); !errors.Is(err, peers.ErrShape) {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{"", "{", messageV2[1:], messageV2 + messageV2, "hi", `{"text":'x'}`} {
		if _, err := peers.ReadMessage([]byte(body)); !errors.Is(err, peers.ErrJSON) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestMessagesThatAreOddAndRight(t *testing.T) {
	for name, values := range map[string][]string{
		"text": {`""`, `" "`, `"\u0000"`}, "via": {"[]", `[""]`, `["a","a","session-b","d"]`}, "sentAt": {"0", "-1", "1.5", "1e12"}, "more": {"{}", "null"},
	} {
		for _, value := range values {
			for _, body := range []string{messageV2, messageV1} {
				m, err := peers.ReadMessage(with(body, name, value))
				if err != nil || m.Via == nil {
					t.Errorf("%s of %s: %+v, %v", name, value, m, err)
				}
			}
		}
	}
}

func TestOnlyTheNumber2MakesAMessageOfVersion2(t *testing.T) {
	for _, version := range []string{"", "1", "3", `"2"`, "null", "true", "[2]", "2.5"} {
		if m, err := peers.ReadMessage(with(messageV1, "version", version)); err != nil || !m.V1 || m.FromEndpoint != "session-a" || m.ToEndpoint != "" {
			t.Errorf("version %q: %+v, %v", version, m, err)
		}
		// One of version 2 has no field "id".
		if _, err := peers.ReadMessage(with(messageV2, "version", version)); !errors.Is(err, peers.ErrShape) {
			t.Errorf("version %q of a message without id: %v", version, err)
		}
	}
	for _, version := range []string{"2", "2.0", "2e0"} {
		if m, err := peers.ReadMessage(with(messageV2, "version", version)); err != nil || m.V1 {
			t.Errorf("version %s: %+v, %v", version, m, err)
		}
	}
}

func TestTheSenderIsTheEndpointWhateverItsInstanceIs(t *testing.T) {
	m, err := peers.ReadMessage(with(messageV2, "from", `{"instanceId":"8caabdbb","name":"alpha","directory":"/a"}`))
	if err != nil || m.FromEndpoint != "session-a" || m.From.InstanceID != "session-a" {
		t.Errorf("%+v, %v", m, err)
	}
	m.From.InstanceID = ""
	if !strings.Contains(string(m.Encode()), `"instanceId":"session-a"`) {
		t.Errorf("written as %s", m.Encode())
	}
}

func TestAMessageAtTheLimitFitsIntoABody(t *testing.T) {
	o := peers.DefaultOptions()
	if o.MaxBody() != 20_480 {
		t.Errorf("the limit of a body is %d", o.MaxBody())
	}
	for _, char := range []string{"<", ">", "&", `"`, `\`, "\n", "ü", "€", "😀"} {
		m := sent()
		m.Text = strings.Repeat(char, o.MaxMessageBytes/len(char))
		if body := m.Encode(); len(body) > o.MaxBody() {
			t.Errorf("%d times %q make a body of %d", len(m.Text)/len(char), char, len(body))
		}
	}
	m := sent()
	m.Text = strings.Repeat("<", 8192)
	if got, err := peers.ReadMessage(m.Encode()); err != nil || got.Text != m.Text {
		t.Errorf("the text is another one, %v", err)
	}
}

func TestViaIsNeverNull(t *testing.T) {
	m := sent()
	m.Via = nil
	for _, m.V1 = range []bool{false, true} {
		if !strings.Contains(string(m.Encode()), `"via":[],`) {
			t.Errorf("written as %s", m.Encode())
		}
	}
}

func TestReceiptsAndTheirStatusCodes(t *testing.T) {
	for receipt, want := range map[string]int{
		peers.Delivered: http.StatusAccepted, peers.Queued: http.StatusAccepted, peers.Held: http.StatusAccepted, peers.Expired: http.StatusAccepted,
		peers.Dropped: http.StatusAccepted, peers.Duplicate: http.StatusAccepted, peers.Refused: http.StatusForbidden, peers.Full: http.StatusTooManyRequests,
	} {
		if got := peers.HTTPStatus(receipt); got != want {
			t.Errorf("%s is %d, want %d", receipt, got, want)
		}
		final := receipt != peers.Queued && receipt != peers.Held && receipt != peers.Full
		if peers.Final(receipt) != final {
			t.Errorf("%s is final: %v", receipt, !final)
		}
	}
	if got := string(peers.EncodeReceipt(peers.Queued)); got != `{"status":"queued"}` {
		t.Errorf("written as %s", got)
	}
	for body, want := range map[string]string{
		`{"status":"queued"}`: "queued", `{"status":"later","x":1}`: "later", `{"status":""}`: "", `{"status":null}`: "", `{}`: "", `[]`: "", `{`: "", "": "",
	} {
		if got := peers.ReadReceipt([]byte(body)); got != want {
			t.Errorf("%s has receipt %q", body, got)
		}
	}
}

const ackBody = `{"version":2,"messageId":"m1","fromEndpointId":"session-s","toEndpointId":"session-demo","status":"delivered","acknowledgedAt":1795989734649}`

func TestAcknowledgementsAreReadAndWrittenByteForByte(t *testing.T) {
	a, err := peers.ReadAck([]byte(ackBody))
	if err != nil {
		t.Fatal(err)
	}
	want := peers.Ack{MessageID: "m1", FromEndpoint: "session-s", ToEndpoint: "session-demo", Status: peers.Delivered, AcknowledgedAt: 1795989734649}
	if a != want {
		t.Errorf("%+v", a)
	}
	if string(a.Encode()) != ackBody {
		t.Errorf("written as %s", a.Encode())
	}
}

func TestAcknowledgementsOfAWrongForm(t *testing.T) {
	texts := []string{"", "null", `""`, "5", "{}", "[]"}
	for name, values := range map[string][]string{
		"version": {"", "1", "3", `"2"`, "null"}, "messageId": texts, "fromEndpointId": texts, "toEndpointId": texts,
		"status":         append(texts, `"queued"`, `"held"`, `"full"`, `"Delivered"`),
		"acknowledgedAt": {"", "null", `"5"`, "1e999"},
	} {
		for _, value := range values {
			if a, err := peers.ReadAck(with(ackBody, name, value)); !errors.Is(err, peers.ErrShape) {
				t.Errorf("%s of %q: %+v, %v", name, value, a, err)
			}
		}
	}
	for _, status := range []string{"delivered", "refused", "expired", "dropped", "duplicate"} {
		if a, err := peers.ReadAck(with(ackBody, "status", `"`+status+`"`)); err != nil || a.Status != status {
			t.Errorf("%s: %+v, %v", status, a, err)
		}
	}
	if _, err := peers.ReadAck([]byte("{")); !errors.Is(err, peers.ErrJSON) {
		t.Errorf("no JSON: %v", err)
	}
}
