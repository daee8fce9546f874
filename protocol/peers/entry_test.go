package peers_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"opencode-mesh/protocol/peers"
)

func sample(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var token = "3f12a4b5c6d7e8f90112233445566778899aabbccddeeff0"

// ofTheSample is the entry in testdata/entry.v2.json, which a real process wrote.
func ofTheSample() peers.Entry {
	return peers.Entry{
		EndpointID: "session-f767154b8fb2aa8582627b65", ProcessID: "8caabdbb", PID: 18199,
		SessionID: "ses_dd6b08a63ffeoOFfg4NqXYJzVK", Title: "t1", Name: "proj-bdbb", Hostname: "vm", Directory: "/home/u/proj", Status: peers.Idle,
		Transport: peers.Transport{Type: "unix", Path: "/run/user/1000/opencode-plugin-peers/8caabdbb.sock"},
		ServerURL: "http://127.0.0.1:14100/", InboxURL: "http://127.0.0.1:36933", InboxToken: token,
		InboundPolicy: peers.PolicyAccept, PeerPermissions: "allow", PluginVersion: "0.2.2",
		StartedAt: 1795989403036, UpdatedAt: 1795989403036, HeartbeatAt: 1795989413025,
	}
}

func TestRealEntriesAreReadAndWrittenByteForByte(t *testing.T) {
	v2 := ofTheSample()
	v1 := v2.Compat(1795989403015)
	v1.HeartbeatAt = 1795989413024
	bare := v1
	bare.SessionID, bare.Title = "", ""
	for name, want := range map[string]peers.Entry{"entry.v2.json": v2, "entry.v1.json": v1, "entry-no-session.v1.json": bare} {
		data := sample(t, name)
		got, err := peers.ReadEntry(data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s was read otherwise (-want +got):\n%s", name, d)
		}
		if d := cmp.Diff(string(data), string(got.Encode())); d != "" {
			t.Errorf("%s is written otherwise (-want +got):\n%s", name, d)
		}
	}
}

func TestAnEntryIsWrittenAsOthersNeedIt(t *testing.T) {
	e := ofTheSample()
	e.ParentSessionID = "ses_parent"
	e.Title = "a <b> & \"c\"\u00e4"
	e.Status, e.Busy = peers.Retry, true
	e.Transport = peers.Transport{Type: "tcp", Host: "127.0.0.1", Port: 4711}
	got := string(e.Encode())
	for _, want := range []string{
		`"sessionId": "ses_dd6b08a63ffeoOFfg4NqXYJzVK",` + "\n  " + `"parentSessionId": "ses_parent",` + "\n",
		`"title": "a <b> & \"c\"ä",`, `"activeSessionTitle": "a <b> & \"c\"ä",`, `"status": "retry",`, `"busy": true,`,
		`"transport": {` + "\n    \"type\": \"tcp\",\n    \"host\": \"127.0.0.1\",\n    \"port\": 4711\n  },",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
	if strings.Contains(string(ofTheSample().Encode()), "parentSessionId") {
		t.Error("a root session has a parent")
	}
}

// entry makes a file of version 2 with some fields changed: "" takes one away.
func entry(change map[string]string) []byte {
	fields := map[string]string{
		"version": "2", "endpointId": `"session-a"`, "processId": `"00000001"`, "pid": "7", "sessionId": `"ses_a"`,
		"transport": `{"type":"unix","path":"/a.sock"}`, "heartbeatAt": "1000", "startedAt": "500",
	}
	for name, value := range change {
		fields[name] = value
	}
	var parts []string
	for name, value := range fields {
		if value != "" {
			parts = append(parts, fmt.Sprintf("%q:%s", name, value))
		}
	}
	return []byte("{" + strings.Join(parts, ",") + "}")
}

func TestEntriesThatArePassedOver(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       error
	}{
		{"nothing", "", peers.ErrJSON},
		{"half a file", string(sample(t, "entry.v2.json")[:400]), peers.ErrJSON},
		{"two values", `{"version":2} {}`, peers.ErrJSON},
		{"a mark in front", "\uFEFF{}", peers.ErrJSON},
		{"null", "null", peers.ErrShape},
		{"an array", "[]", peers.ErrShape},
		{"a text", `"version"`, peers.ErrShape},
		{"no version", string(entry(map[string]string{"version": ""})), peers.ErrShape},
		{"a version that is a text", string(entry(map[string]string{"version": `"2"`})), peers.ErrShape},
		{"version 3", string(entry(map[string]string{"version": "3"})), peers.ErrShape},
		{"version 1.5", string(entry(map[string]string{"version": "1.5"})), peers.ErrShape},
		{"names in another case", `{"Version":2,"EndpointId":"a","processid":"b","TRANSPORT":{},"sessionID":"c"}`, peers.ErrShape},
		{"version 1 without an address", `{"version":1,"instanceId":"a"}`, peers.ErrShape},
		{"version 1 without an id", `{"version":1,"inboxUrl":"http://127.0.0.1:1"}`, peers.ErrShape},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e, err := peers.ReadEntry([]byte(c.data)); !errors.Is(err, c.want) {
				t.Errorf("read as %+v, %v, want %v", e, err, c.want)
			}
		})
	}
	for _, name := range []string{"endpointId", "processId", "transport", "sessionId"} {
		for _, value := range []string{"", "null", "false", "0", "-0", "0.0e9", `""`} {
			if _, err := peers.ReadEntry(entry(map[string]string{name: value})); !errors.Is(err, peers.ErrShape) {
				t.Errorf("%s of %q: %v", name, value, err)
			}
		}
		for _, value := range []string{`"x"`, "true", "5", "{}", "[]", `"0"`, `" "`, "1e999"} {
			if _, err := peers.ReadEntry(entry(map[string]string{name: value})); err != nil {
				t.Errorf("%s of %q: %v", name, value, err)
			}
		}
	}
}

func TestVersionsAreNumbersHoweverTheyAreWritten(t *testing.T) {
	for _, version := range []string{"2", "2.0", "2e0", "0.2E1"} {
		if e, err := peers.ReadEntry(entry(map[string]string{"version": version})); err != nil || e.V1 {
			t.Errorf("%s: %+v, %v", version, e, err)
		}
	}
}

func TestWhatAnEntryNeedNotHave(t *testing.T) {
	t.Run("is left out", func(t *testing.T) {
		e, err := peers.ReadEntry([]byte(`{"version":2,"endpointId":"a","processId":"b","sessionId":"c","transport":{"type":"unix","path":"/s"},"more":{"x":[1]}}`))
		if err != nil {
			t.Fatal(err)
		}
		want := peers.Entry{EndpointID: "a", ProcessID: "b", SessionID: "c", PID: peers.NoPID, Transport: peers.Transport{Type: "unix", Path: "/s"}, HeartbeatAt: math.NaN()}
		if d := cmp.Diff(want, e, cmpopts.EquateNaNs()); d != "" {
			t.Error(d)
		}
	})
	t.Run("is null", func(t *testing.T) {
		nulls := map[string]string{"heartbeatAt": "null", "startedAt": "null", "pid": "null"}
		for _, name := range []string{"name", "title", "hostname", "directory", "status", "serverUrl", "inboxUrl", "inboxToken", "timestamps", "policy",
			"pluginVersion", "activeSessionId", "activeSessionTitle", "busy", "queuedCount", "inboundPolicy", "parentSessionId", "capabilities"} {
			nulls[name] = "null"
		}
		e, err := peers.ReadEntry(entry(nulls))
		if err != nil {
			t.Fatal(err)
		}
		// Null is 0 for JavaScript, so that heartbeat is as old as can be.
		want := peers.Entry{EndpointID: "session-a", ProcessID: "00000001", SessionID: "ses_a", Transport: peers.Transport{Type: "unix", Path: "/a.sock"}}
		if d := cmp.Diff(want, e); d != "" {
			t.Error(d)
		}
	})
	t.Run("was not there yet in version 0.1.0", func(t *testing.T) {
		e, err := peers.ReadEntry([]byte(`{"version":1,"instanceId":"8caabdbb","inboxUrl":"http://127.0.0.1:1","pid":5,"activeSessionId":null,"heartbeatAt":9}`))
		if err != nil {
			t.Fatal(err)
		}
		want := peers.Entry{V1: true, EndpointID: "8caabdbb", ProcessID: "8caabdbb", PID: 5, InboxURL: "http://127.0.0.1:1", Status: peers.Idle, HeartbeatAt: 9}
		if d := cmp.Diff(want, e); d != "" {
			t.Error(d)
		}
	})
}

func TestNumbersAreTakenAsJavaScriptReckonsWithThem(t *testing.T) {
	nan := math.NaN()
	for text, want := range map[string]float64{
		"":      nan,
		"1000":  1000,
		"12.75": 12.75, "1e3": 1000, "-5": -5, "1e999": math.MaxFloat64, "-1e999": -math.MaxFloat64, "1e-999": 0,
		"null": 0, "true": 1, "false": 0, "{}": nan, `{"a":1}`: nan,
		"[]": 0, "[7]": 7, `["7"]`: 7, "[1,2]": nan, "[true]": nan, "[null]": 0, "[[8]]": 8, "[{}]": nan,
		`"1000"`: 1000, `" 1000\n"`: 1000, `"12.5"`: 12.5, `"+4"`: 4, `".5"`: 0.5, `"5."`: 5, `"1e3"`: 1000, `""`: 0, `"  "`: 0,
		`"0x1F"`: 31, `"0b11"`: 3, `"0o17"`: 15, `"017"`: 17, `"-0x1F"`: nan, `"0x"`: nan, `"0x1_0"`: nan,
		`"soon"`: nan, `"NaN"`: nan, `"inf"`: nan, `"1_000"`: nan, `"10 00"`: nan, `"1e"`: nan, `"0x1p4"`: nan, `"1p4"`: nan,
		`"Infinity"`: math.MaxFloat64, `"+Infinity"`: math.MaxFloat64, `"-Infinity"`: -math.MaxFloat64, `"infinity"`: nan, `"1e999"`: math.MaxFloat64,
		`"\u00a01\ufeff"`: 1,
	} {
		e, err := peers.ReadEntry(entry(map[string]string{"heartbeatAt": text}))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := e.HeartbeatAt; got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
	}
}

func TestProcessIDsThatCanBeOnes(t *testing.T) {
	for text, want := range map[string]int{
		"7": 7, "7.0": 7, `"7"`: 7, "0": 0, "1": 1, "true": 1,
		"": peers.NoPID, "7.5": peers.NoPID, `"x"`: peers.NoPID, "{}": peers.NoPID, "1e300": peers.NoPID, "4294967297": peers.NoPID,
	} {
		if e, err := peers.ReadEntry(entry(map[string]string{"pid": text})); err != nil || e.PID != want {
			t.Errorf("%q is %d, %v, want %d", text, e.PID, err, want)
		}
	}
}

func TestTheListedTitleIsTheOneThatIsRead(t *testing.T) {
	e, err := peers.ReadEntry(entry(map[string]string{"title": `"old"`, "activeSessionTitle": `"new"`}))
	if err != nil || e.Title != "new" {
		t.Errorf("%q, %v", e.Title, err)
	}
	e, err = peers.ReadEntry(entry(map[string]string{"title": `"old"`}))
	if err != nil || e.Title != "old" {
		t.Errorf("%q, %v", e.Title, err)
	}
}

func TestOnlyTheHeartbeatAtTheTopCounts(t *testing.T) {
	e, err := peers.ReadEntry(entry(map[string]string{"heartbeatAt": "1", "startedAt": "2", "timestamps": `{"startedAt":9,"updatedAt":"3","heartbeatAt":9}`}))
	if err != nil || e.HeartbeatAt != 1 || e.StartedAt != 2 || e.UpdatedAt != 3 {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestATransportThatIsNotOneIsAnEmptyOne(t *testing.T) {
	for text, want := range map[string]peers.Transport{
		`"unix"`: {}, "5": {}, "[]": {}, "{}": {},
		`{"type":"tcp","host":"127.0.0.1","port":"80"}`: {Type: "tcp", Host: "127.0.0.1", Port: 80},
		`{"type":"pipe","port":1.5}`:                    {Type: "pipe"},
	} {
		if e, err := peers.ReadEntry(entry(map[string]string{"transport": text})); err != nil || e.Transport != want {
			t.Errorf("%s is %+v, %v", text, e.Transport, err)
		}
	}
}
