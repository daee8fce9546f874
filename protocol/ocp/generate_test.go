package ocp_test

import (
	"fmt"

	"pgregory.net/rapid"

	"opencode-mesh/protocol/ocp"
)

// These make messages as a provider or host of ours would: what the schema of a family
// asks for is there, all else may be.

const (
	digest = "sha256:0101010101010101010101010101010101010101010101010101010101010101"
	moment = "2026-07-20T18:00:00.5Z"
)

var (
	anyText   = rapid.Map(rapid.String(), ocp.Clean)
	someText  = rapid.Map(anyText, func(s string) string { return "x" + s })
	kinds     = rapid.SampledFrom([]ocp.FrameKind{ocp.KindSnippet, ocp.KindSymbol, ocp.KindFact, ocp.KindDoc, ocp.KindMemory, ocp.KindEpisode, ocp.KindGraph})
	maybeTime = rapid.SampledFrom([]string{"", moment})
	vector    = rapid.SliceOfN(rapid.Float32(), 0, 4)
	full      = rapid.SampledFrom([]ocp.Representation{ocp.RepresentationFull, ocp.RepresentationCompact, ocp.RepresentationReference})
)

// list is absent rather than empty, as reading makes it.
func list[V any](t *rapid.T, name string, g *rapid.Generator[V]) []V {
	if l := rapid.SliceOfN(g, 0, 3).Draw(t, name); len(l) > 0 {
		return l
	}
	return nil
}

func numbers(t *rapid.T, name string) []float32 {
	if l := vector.Draw(t, name); len(l) > 0 {
		return l
	}
	return nil
}

func frame(family ocp.Family) *rapid.Generator[ocp.Frame] {
	return rapid.Custom(func(t *rapid.T) ocp.Frame {
		content := anyText.Draw(t, "content")
		f := ocp.Frame{
			ID: someText.Draw(t, "id"), Kind: kinds.Draw(t, "kind"), Title: someText.Draw(t, "title"), Content: content,
			URI: anyText.Draw(t, "uri"), Score: rapid.Float32Range(0, 1).Draw(t, "score"), TokenCost: ocp.TokenCost(content),
			ValidFrom: maybeTime.Draw(t, "from"), ValidTo: maybeTime.Draw(t, "to"), RecordedAt: maybeTime.Draw(t, "recorded"),
			CitationLabel: anyText.Draw(t, "label"),
		}
		f.Provenance = list(t, "provenance", rapid.Custom(func(t *rapid.T) ocp.Provenance {
			return ocp.Provenance{Type: someText.Draw(t, "type"), URI: anyText.Draw(t, "uri"), Range: "L1-4", Digest: rapid.SampledFrom([]string{"", digest}).Draw(t, "digest"), By: anyText.Draw(t, "by")}
		}))
		f.Relations = list(t, "relations", rapid.Custom(func(t *rapid.T) ocp.Relation {
			return ocp.Relation{Rel: someText.Draw(t, "rel"), TargetURI: someText.Draw(t, "target"), DisplayName: anyText.Draw(t, "name")}
		}))
		if rapid.Bool().Draw(t, "embedded") {
			f.Embedding = &ocp.FrameEmbedding{Fingerprint: someText.Draw(t, "fingerprint"), Vector: numbers(t, "vector")}
		}
		if family == ocp.FamilyContextgraph {
			represent(t, &f)
		}
		return f
	})
}

func represent(t *rapid.T, f *ocp.Frame) {
	f.Representation = full.Draw(t, "representation")
	f.ContentFidelity = rapid.SampledFrom([]string{"", "exact", "omitted"}).Draw(t, "fidelity")
	f.InlineContentRequirement = rapid.SampledFrom([]string{"", "required"}).Draw(t, "inline")
	f.ContentDigest = f.Digest()
	if f.Representation != ocp.RepresentationFull {
		f.CanonicalContentHash = digest
		f.ContentRef = &ocp.ContentRef{ProviderID: someText.Draw(t, "provider"), URI: someText.Draw(t, "ref")}
		cost := rapid.Uint32().Draw(t, "canonical")
		f.CanonicalTokenCost = &cost
		f.TokenizerRef = anyText.Draw(t, "tokenizer")
	}
	switch f.Representation {
	case ocp.RepresentationCompact:
		f.Transform = &ocp.Transform{Method: "m", Implementation: "i", Version: "1"}
	case ocp.RepresentationReference:
		f.Content, f.ContentDigest, f.TokenCost = "", "", 0
	}
}

func result(family ocp.Family) *rapid.Generator[ocp.Result] {
	return rapid.Custom(func(t *rapid.T) ocp.Result {
		r := ocp.Result{Frames: list(t, "frames", frame(family)), Truncated: rapid.Bool().Draw(t, "truncated")}
		if rapid.Bool().Draw(t, "estimated") {
			n := rapid.Uint32().Draw(t, "dropped")
			r.DroppedEstimate = &n
		}
		return r
	})
}

func query(family ocp.Family) *rapid.Generator[ocp.Query] {
	return rapid.Custom(func(t *rapid.T) ocp.Query {
		q := ocp.Query{
			Goal: someText.Draw(t, "goal"), QueryText: anyText.Draw(t, "text"), Embedding: numbers(t, "embedding"),
			Kinds: list(t, "kinds", kinds), Anchors: list(t, "anchors", anyText),
			MaxFrames: rapid.Uint32().Draw(t, "frames"), MaxTokens: rapid.Uint32().Draw(t, "tokens"), AsOf: maybeTime.Draw(t, "as of"),
		}
		if family == ocp.FamilyContextgraph {
			q.RepresentationPreferences = list(t, "preferences", full)
		}
		return q
	})
}

func ack(family ocp.Family) *rapid.Generator[ocp.HandshakeAck] {
	return rapid.Custom(func(t *rapid.T) ocp.HandshakeAck {
		flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
		a := ocp.HandshakeAck{
			ProtocolVersion: version(family).Draw(t, "version"),
			Provider: ocp.ProviderInfo{
				Name: someText.Draw(t, "name"), Version: someText.Draw(t, "provider version"),
				DataFlow: ocp.DataFlow{Reads: flag("reads"), Writes: flag("writes"), Egress: flag("egress")},
			},
			Capabilities: ocp.Capabilities{Query: ocp.QueryCapability{Kinds: list(t, "kinds", anyText)}, Graph: flag("graph")},
		}
		c := &a.Capabilities
		c.EmbeddingsFingerprint = rapid.SampledFrom([]string{"", "bge/384", "bge/384/l2"}).Draw(t, "fingerprint")
		if family == ocp.FamilyOCP {
			c.Upsert, c.Subscribe, c.Query.Filters = flag("upsert"), flag("subscribe"), list(t, "filters", anyText)
			return a
		}
		c.Correlation, c.Verify, c.Resolve = flag("correlation"), flag("verify"), flag("resolve")
		c.Representations = list(t, "representations", full)
		a.Provider.DataFlow.EgressScopes = list(t, "scopes", rapid.SampledFrom([]string{"local-only", "org-tenant", "third-party-index", "third-party-model", "acme:store"}))
		return a
	})
}

func version(family ocp.Family) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("%s.%d%s", family, rapid.IntRange(0, 30).Draw(t, "minor"), rapid.SampledFrom([]string{"", "-draft"}).Draw(t, "draft"))
	})
}

func envelope(family ocp.Family) *rapid.Generator[ocp.Envelope] {
	return rapid.Custom(func(t *rapid.T) ocp.Envelope {
		types := []string{"handshake", "handshake_ack", "query", "frames", "shutdown", "error"}
		id := ""
		if family == ocp.FamilyContextgraph {
			types = append(types, "verify", "verified")
			id = anyText.Draw(t, "id")
		}
		frameID := rapid.Custom(func(t *rapid.T) ocp.FrameID {
			return ocp.FrameID{ProviderID: someText.Draw(t, "provider"), FrameID: someText.Draw(t, "frame"), ContentDigest: anyText.Draw(t, "digest")}
		})
		switch rapid.SampledFrom(types).Draw(t, "type") {
		case "handshake":
			return ocp.Envelope{Handshake: &ocp.Handshake{ProtocolVersion: version(family).Draw(t, "version")}}
		case "handshake_ack":
			a := ack(family).Draw(t, "ack")
			return ocp.Envelope{HandshakeAck: &a}
		case "query":
			q := query(family).Draw(t, "query")
			return ocp.Envelope{ID: id, Query: &q}
		case "frames":
			r := result(family).Draw(t, "result")
			return ocp.Envelope{ID: id, Frames: &r}
		case "error":
			e := ocp.Error{Message: someText.Draw(t, "message")}
			if family == ocp.FamilyContextgraph {
				e.Code = anyText.Draw(t, "code")
			}
			return ocp.Envelope{ID: id, Error: &e}
		case "verify":
			return ocp.Envelope{Verify: &ocp.Verify{Frames: list(t, "frames", frameID)}}
		case "verified":
			return ocp.Envelope{Verified: &ocp.Verified{Verdicts: list(t, "verdicts", rapid.Custom(func(t *rapid.T) ocp.Verdict {
				return ocp.Verdict{
					Frame: frameID.Draw(t, "frame"), ReplacementDigest: anyText.Draw(t, "replacement"),
					Status: rapid.SampledFrom([]ocp.VerdictStatus{ocp.VerdictValid, ocp.VerdictStale, ocp.VerdictGone, ocp.VerdictUnknown}).Draw(t, "status"),
				}
			}))}}
		default:
			return ocp.Envelope{Shutdown: true}
		}
	})
}
