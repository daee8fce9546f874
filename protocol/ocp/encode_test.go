package ocp_test

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"opencode-mesh/protocol/ocp"
)

var families = map[ocp.Family]string{
	ocp.FamilyOCP:          "testdata/ocp/ocp-envelope.schema.json",
	ocp.FamilyContextgraph: "testdata/contextgraph/contextgraph-envelope.schema.json",
}

func schema(t *testing.T, family ocp.Family) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open(families[family])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rejects is what a schema says against a line.
func rejects(t interface{ Fatal(...any) }, s *jsonschema.Schema, line string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
	if err != nil {
		t.Fatal(err, line)
	}
	return s.Validate(v)
}

func TestEverythingWrittenIsValidByItsFamilysSchemaAndReadAsTheSame(t *testing.T) {
	for family := range families {
		s := schema(t, family)
		rapid.Check(t, func(t *rapid.T) {
			e := envelope(family).Draw(t, "envelope")
			line, err := ocp.Encode(e, family)
			if err != nil {
				t.Fatalf("%v: %+v", err, e)
			}
			if strings.ContainsAny(string(line), "\n\r") {
				t.Fatalf("not one line: %q", line)
			}
			if err := rejects(t, s, string(line)); err != nil {
				t.Fatalf("%v\n%s", err, line)
			}
			for _, read := range []func([]byte) (ocp.Envelope, error){
				ocp.Decode,
				func(b []byte) (ocp.Envelope, error) { return ocp.DecodeFor(family.Version(), b) },
			} {
				back, err := read(line)
				if err != nil {
					t.Fatalf("%v\n%s", err, line)
				}
				if d := cmp.Diff(e, back); d != "" {
					t.Fatal(d)
				}
			}
		})
	}
}

// The same message in the other family's words: what that family does not have is gone.
func TestNothingOfOneFamilyLeaksIntoTheOther(t *testing.T) {
	s := schema(t, ocp.FamilyOCP)
	rapid.Check(t, func(t *rapid.T) {
		r := result(ocp.FamilyContextgraph).Draw(t, "result")
		line, err := ocp.Encode(ocp.Envelope{ID: "1", Frames: &r}, ocp.FamilyOCP)
		for _, f := range r.Frames {
			if f.Representation == ocp.RepresentationReference {
				if err == nil {
					t.Fatal("a reference went to a family that has none")
				}
				return
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := rejects(t, s, string(line)); err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
	})
	line, err := ocp.Encode(ocp.Envelope{ID: "1", Error: &ocp.Error{Code: "bad_request", Message: "m"}}, ocp.FamilyOCP)
	if want := `{"type":"error","message":"m"}`; err != nil || string(line) != want {
		t.Errorf("%s, %v", line, err)
	}
	line, err = ocp.Encode(ocp.Envelope{ID: "1", Error: &ocp.Error{Code: "bad_request", Message: "m"}}, ocp.FamilyContextgraph)
	if want := `{"type":"error","id":"1","code":"bad_request","message":"m"}`; err != nil || string(line) != want {
		t.Errorf("%s, %v", line, err)
	}
}

func TestListsAreWrittenEvenWhenTheyAreEmpty(t *testing.T) {
	q := ocp.Query{Goal: "g"}
	line, err := ocp.Encode(ocp.Envelope{Query: &q}, ocp.FamilyOCP)
	if want := `{"type":"query","query":{"goal":"g","kinds":[],"anchors":[],"max_frames":0,"max_tokens":0}}`; err != nil || string(line) != want {
		t.Errorf("%s, %v", line, err)
	}
	a := ocp.HandshakeAck{ProtocolVersion: ocp.VersionOCP, Provider: ocp.ProviderInfo{Name: "p", Version: "1"}}
	line, err = ocp.Encode(ocp.Envelope{HandshakeAck: &a}, ocp.FamilyOCP)
	if want := `{"type":"handshake_ack","protocol_version":"ocp/1.0-draft","provider":{"name":"p","version":"1","data_flow":{"reads":false,"writes":false,"egress":false}},` +
		`"capabilities":{"query":{"kinds":[],"filters":[]},"upsert":false,"graph":false,"subscribe":false}}`; err != nil || string(line) != want {
		t.Errorf("%s, %v", line, err)
	}
	line, err = ocp.Encode(ocp.Envelope{Frames: &ocp.Result{}}, ocp.FamilyContextgraph)
	if want := `{"type":"frames","result":{"frames":[],"truncated":false}}`; err != nil || string(line) != want {
		t.Errorf("%s, %v", line, err)
	}
}

func TestWhatASchemaRefusesIsNotWritten(t *testing.T) {
	good := ocp.Frame{ID: "a", Kind: ocp.KindDoc, Title: "t", Content: "c", Score: 1, TokenCost: 1}
	frames := func(change func(*ocp.Frame)) ocp.Envelope {
		f := good
		change(&f)
		return ocp.Envelope{Frames: &ocp.Result{Frames: []ocp.Frame{f}}}
	}
	const inBoth = ocp.FamilyOCP | ocp.FamilyContextgraph
	for what, c := range map[string]struct {
		e       ocp.Envelope
		refused ocp.Family
	}{
		"nothing":            {ocp.Envelope{}, inBoth},
		"an empty goal":      {ocp.Envelope{Query: &ocp.Query{}}, inBoth},
		"an empty id":        {frames(func(f *ocp.Frame) { f.ID = "" }), inBoth},
		"an empty title":     {frames(func(f *ocp.Frame) { f.Title = "" }), inBoth},
		"no UTF-8":           {frames(func(f *ocp.Frame) { f.Content = "\xff" }), inBoth},
		"a score above one":  {frames(func(f *ocp.Frame) { f.Score = 1.01 }), inBoth},
		"a score below zero": {frames(func(f *ocp.Frame) { f.Score = -0.01 }), inBoth},
		"no number as score": {frames(func(f *ocp.Frame) { f.Score = float32(math.NaN()) }), inBoth},
		"an infinite vector": {frames(func(f *ocp.Frame) {
			f.Embedding = &ocp.FrameEmbedding{Fingerprint: "f", Vector: []float32{float32(math.Inf(1))}}
		}), inBoth},
		"no kind":                 {frames(func(f *ocp.Frame) { f.Kind = "" }), inBoth},
		"a kind of another":       {frames(func(f *ocp.Frame) { f.Kind = "image" }), ocp.FamilyOCP},
		"a local time":            {frames(func(f *ocp.Frame) { f.ValidFrom = "yesterday" }), ocp.FamilyContextgraph},
		"a short digest":          {frames(func(f *ocp.Frame) { f.Provenance = []ocp.Provenance{{Type: "file", Digest: "sha256:9f2c"}} }), ocp.FamilyContextgraph},
		"a reference, incomplete": {frames(func(f *ocp.Frame) { f.Representation, f.Content = ocp.RepresentationReference, "" }), inBoth},
		"an own representation":   {frames(func(f *ocp.Frame) { f.Representation = "tiny" }), ocp.FamilyContextgraph},
		"an empty error":          {ocp.Envelope{Error: &ocp.Error{}}, inBoth},
		"a verify":                {ocp.Envelope{Verify: &ocp.Verify{}}, ocp.FamilyOCP},
		"a version of its own":    {ocp.Envelope{Handshake: &ocp.Handshake{ProtocolVersion: "ocp/1"}}, inBoth},
		"the other's version":     {ocp.Envelope{Handshake: &ocp.Handshake{ProtocolVersion: ocp.VersionContextgraph}}, ocp.FamilyOCP},
		"17 MiB":                  {frames(func(f *ocp.Frame) { f.Content = strings.Repeat("x", 17<<20) }), inBoth},
	} {
		for family := range families {
			line, err := ocp.Encode(c.e, family)
			if refused := err != nil; refused != (c.refused&family != 0) {
				t.Errorf("%s in %s: %.200s, %v", what, family, line, err)
			}
		}
	}
	if _, err := ocp.Encode(frames(func(*ocp.Frame) {}), 0); err == nil {
		t.Error("no family wrote something")
	}
}
