package ocp_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/ocp"
)

func TestLinesThatTheVectorsDoNotHave(t *testing.T) {
	frames := func(member string) string {
		return `{"type":"frames","result":{"frames":[{"id":"a","kind":"doc","title":"t","content":"c","score":1,"token_cost":1,` + member + `}],"truncated":true}}`
	}
	for line, taken := range map[string]bool{
		`{"Type":"shutdown"}`:                               false,
		`{"type":"Shutdown"}`:                               false,
		`{"type":"shutdown","Type":1}`:                      true, // another member
		`{"type":"handshake","Protocol_version":"ocp/1.0"}`: false,
		`{"type":"shutdown"}` + "\r\n":                      true,
		`{"type":"shutdown"} x`:                             false,
		`["handshake"]`:                                     false,
		`["shutdown"]["shutdown"]`:                          false,
		`"shutdown"`:                                        false,
		`null`:                                              false,
		`{"type":null}`:                                     false,
		`{"type":""}`:                                       false,
		`{}`:                                                false,
		`{"a":[{"type":"shutdown"}]}`:                       false,
		`{"type":"verify"}`:                                 false,
		`{"type":"error","message":"\ud800"}`:               false,
		`{"type":"error","message":"\ud83d\ude00"}`:         true,
		frames(`"extra":"\udc00"`):                          false,
		frames(`"extra":{"a":1,"a":2}`):                     false,
		frames(`"token_cost":1`):                            false,
		frames(`"relations":null`):                          false,
		frames(`"embedding":{"fingerprint":"f","vector":[1e400]}`):                            false,
		frames(`"provenance":[{"kind":"file"}]`):                                              false,
		strings.Replace(frames(`"x":0`), `"token_cost":1`, `"token_cost":-1`, 1):              false,
		strings.Replace(frames(`"x":0`), `"token_cost":1`, `"token_cost":-0`, 1):              false,
		strings.Replace(frames(`"x":0`), `"token_cost":1`, `"token_cost":4294967296`, 1):      false,
		strings.Replace(frames(`"x":0`), `"truncated":true`, `"truncated":null`, 1):           false,
		`{"type":"shutdown","x":` + strings.Repeat("[", 126) + strings.Repeat("]", 126) + `}`: true,
		`{"type":"shutdown","x":` + strings.Repeat("[", 127) + strings.Repeat("]", 127) + `}`: false,
	} {
		_, err := ocp.Decode([]byte(line))
		var refusal *ocp.DecodeError
		if (err == nil) != taken || err != nil && !errors.As(err, &refusal) {
			t.Errorf("%.200s: %v", line, err)
		}
	}
}

func TestAMessageHasAtMostSixteenMebibytes(t *testing.T) {
	pad := func(size int) []byte { return []byte(`{"type":"shutdown"}` + strings.Repeat(" ", size-19)) }
	if _, err := ocp.Decode(pad(ocp.MaxMessage)); err != nil {
		t.Error(err)
	}
	if _, err := ocp.Decode(pad(ocp.MaxMessage + 1)); err == nil {
		t.Error("it was read")
	}
}

// After its freeze the successor passes on kinds that it does not know.
func TestUnknownKindsPassInTheFrozenSuccessorAlone(t *testing.T) {
	const line = `{"type":"query","query":{"goal":"g","kinds":["image"],"anchors":[],"max_frames":1,"max_tokens":1}}`
	for version, taken := range map[string]bool{
		ocp.VersionOCP: false, "ocp/1.7": false, ocp.VersionContextgraphDraft: false, ocp.VersionContextgraph: true, "contextgraph/1.3": true, "unknown": true,
	} {
		e, err := ocp.DecodeFor(version, []byte(line))
		if (err == nil) != taken {
			t.Errorf("%s: %v", version, err)
		}
		if err != nil {
			continue
		}
		if out, err := ocp.Encode(e, ocp.FamilyContextgraph); err != nil || string(out) != line {
			t.Errorf("%s, %v", out, err)
		}
	}
}

func TestAScoreIsAFloat32(t *testing.T) {
	e, err := ocp.Decode([]byte(`{"type":"frames","result":{"frames":[{"id":"a","kind":"doc","title":"t","content":"c","score":1.00000001,"token_cost":1,"citation_label":"l","embedding":{"fingerprint":"f","vector":[1e40,-1e40]}}],"truncated":false}}`))
	if err != nil {
		t.Fatal(err)
	}
	f := e.Frames.Frames[0]
	if f.Score != 1 || f.Check() != nil {
		t.Errorf("%v, %v", f.Score, f.Check())
	}
	if d := cmp.Diff([]float32{math.MaxFloat32, -math.MaxFloat32}, f.Embedding.Vector); d != "" {
		t.Error(d)
	}
}

func TestBytesThatAreNoUTF8BecomeReplacements(t *testing.T) {
	e, err := ocp.Decode([]byte("{\"type\":\"error\",\"message\":\"a\xff\xfeb\"}"))
	if err != nil || e.Error.Message != "a\uFFFDb" {
		t.Errorf("%+v, %v", e.Error, err)
	}
}

func TestAnErrorNamesThePlaceAndNoTextOfThePeer(t *testing.T) {
	_, err := ocp.Decode([]byte(`{"type":"query","query":{"goal":"secret","kinds":["doc",7],"max_frames":1,"max_tokens":1}}`))
	if err == nil || !strings.Contains(err.Error(), "/query/kinds/1") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	_, err = ocp.Decode([]byte(`{"type":"shutdown","` + strings.Repeat(`x\u001b`, 1000) + `":[}`))
	if err == nil || len(err.Error()) > 400 || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%q", err)
	}
	_, err = ocp.Decode([]byte(`{"type":"frames","result":{"frames":null,"truncated":false}}`))
	var refusal *ocp.DecodeError
	if !errors.As(err, &refusal) || !refusal.NullList() {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"type":"frames","id":"1","result":{"frames":[{"id":"a","kind":"doc","title":"t","content":"c","score":0.5,"token_cost":1}],"truncated":false}}`))
	f.Add([]byte(`{"type":"handshake_ack","protocol_version":"ocp/1.0","provider":{"name":"n","version":"v","data_flow":{}},"capabilities":{}}`))
	f.Add([]byte(`{"type":"query","query":{"goal":"g","max_frames":1,"max_tokens":10,"embedding":[1,0.1,1e40]}}`))
	f.Add([]byte(`["shutdown"]`))
	f.Fuzz(func(t *testing.T, line []byte) {
		for version, family := range map[string]ocp.Family{ocp.VersionOCP: ocp.FamilyOCP, ocp.VersionContextgraph: ocp.FamilyContextgraph} {
			e, err := ocp.DecodeFor(version, line)
			if err != nil {
				continue
			}
			if _, err := ocp.Decode(line); err != nil && family == ocp.FamilyContextgraph && e.Type() != "handshake_ack" && e.Frames == nil && e.Error == nil && e.Query == nil {
				t.Fatalf("only %s takes it: %v", version, err)
			}
			out, err := ocp.Encode(e, family)
			if err != nil {
				continue // what a peer may say and we would not
			}
			back, err := ocp.DecodeFor(version, out)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if d := cmp.Diff(e, back); d != "" {
				t.Fatal(d)
			}
		}
	})
}
