package ocp

import "regexp"

// Members in the order in which they are written.

var dataFlowFields = []field[DataFlow]{
	flag("reads", both, func(d *DataFlow) *bool { return &d.Reads }),
	flag("writes", both, func(d *DataFlow) *bool { return &d.Writes }),
	flag("egress", both, func(d *DataFlow) *bool { return &d.Egress }),
	texts("egress_scopes", FamilyContextgraph, true, func(d *DataFlow) *[]string { return &d.EgressScopes }).
		unless(func(d *DataFlow, _ Family) string {
			for _, s := range d.EgressScopes {
				if !scopePattern.MatchString(s) {
					return "has a scope that is neither one of the four nor vendor:name"
				}
			}
			return ""
		}),
}

var scopePattern = regexp.MustCompile(`^(local-only|org-tenant|third-party-index|third-party-model|[^:]+:[^:]+.*)$`)

var providerFields = []field[ProviderInfo]{
	text("name", both, func(p *ProviderInfo) *string { return &p.Name }),
	text("version", both, func(p *ProviderInfo) *string { return &p.Version }),
	record("data_flow", both, true, dataFlowFields, func(p *ProviderInfo) *DataFlow { return &p.DataFlow }),
}

var queryCapabilityFields = []field[QueryCapability]{
	texts("kinds", both, false, func(q *QueryCapability) *[]string { return &q.Kinds }),
	texts("filters", FamilyOCP, false, func(q *QueryCapability) *[]string { return &q.Filters }),
}

var capabilityFields = []field[Capabilities]{
	record("query", both, false, queryCapabilityFields, func(c *Capabilities) *QueryCapability { return &c.Query }),
	flag("upsert", FamilyOCP, func(c *Capabilities) *bool { return &c.Upsert }),
	flag("correlation", FamilyContextgraph, func(c *Capabilities) *bool { return &c.Correlation }),
	flag("graph", both, func(c *Capabilities) *bool { return &c.Graph }),
	optionalText("embeddings_fingerprint", both, func(c *Capabilities) *string { return &c.EmbeddingsFingerprint }).
		unless(func(c *Capabilities, f Family) string {
			if f == FamilyContextgraph && c.EmbeddingsFingerprint != "" && !fingerprintPattern.MatchString(c.EmbeddingsFingerprint) {
				return "is not like model/384 or model/384/l2"
			}
			return ""
		}),
	flag("subscribe", FamilyOCP, func(c *Capabilities) *bool { return &c.Subscribe }),
	flag("verify", FamilyContextgraph, func(c *Capabilities) *bool { return &c.Verify }),
	texts("representations", FamilyContextgraph, true, func(c *Capabilities) *[]Representation { return &c.Representations }).
		unless(func(c *Capabilities, _ Family) string { return unknownRepresentation(c.Representations...) }),
	flag("resolve", FamilyContextgraph, func(c *Capabilities) *bool { return &c.Resolve }),
}

var queryFields = []field[Query]{
	// The decoders take an empty goal, the schemas do not.
	text("goal", both, func(q *Query) *string { return &q.Goal }),
	optionalText("query_text", both, func(q *Query) *string { return &q.QueryText }),
	numbers("embedding", both, func(q *Query) *[]float32 { return &q.Embedding }),
	kinds("kinds", func(q *Query) *[]FrameKind { return &q.Kinds }),
	texts("anchors", both, false, func(q *Query) *[]string { return &q.Anchors }),
	uint32Of("max_frames", both, func(q *Query) *uint32 { return &q.MaxFrames }),
	uint32Of("max_tokens", both, func(q *Query) *uint32 { return &q.MaxTokens }),
	instant("as_of", func(q *Query) *string { return &q.AsOf }),
	texts("representation_preferences", FamilyContextgraph, true, func(q *Query) *[]Representation { return &q.RepresentationPreferences }).
		unless(func(q *Query, _ Family) string { return unknownRepresentation(q.RepresentationPreferences...) }),
}

var resultFields = []field[Result]{
	records("frames", both, true, frameFields, func(r *Result) *[]Frame { return &r.Frames }),
	needFlag("truncated", both, func(r *Result) *bool { return &r.Truncated }),
	optionalUint32("dropped_estimate", both, func(r *Result) **uint32 { return &r.DroppedEstimate }),
}

var frameFields = []field[Frame]{
	text("id", both, func(f *Frame) *string { return &f.ID }),
	kind("kind", func(f *Frame) *FrameKind { return &f.Kind }),
	text("title", both, func(f *Frame) *string { return &f.Title }),
	content(),
	optionalText("content_digest", FamilyContextgraph, func(f *Frame) *string { return &f.ContentDigest }).
		unless(func(f *Frame, _ Family) string { return onlyInline(f, f.ContentDigest != "") }),
	optionalText("uri", both, func(f *Frame) *string { return &f.URI }),
	optionalText("representation", FamilyContextgraph, func(f *Frame) *Representation { return &f.Representation }).
		unless(representable),
	optionalText("content_fidelity", FamilyContextgraph, func(f *Frame) *string { return &f.ContentFidelity }).
		unless(func(f *Frame, _ Family) string { return oneOf(f.ContentFidelity, fidelities) }),
	optionalText("canonical_content_hash", FamilyContextgraph, func(f *Frame) *string { return &f.CanonicalContentHash }),
	optionalRecord("content_ref", FamilyContextgraph, contentRefFields, func(f *Frame) **ContentRef { return &f.ContentRef }),
	optionalRecord("transform", FamilyContextgraph, transformFields, func(f *Frame) **Transform { return &f.Transform }).
		unless(func(f *Frame, _ Family) string { return onlyInline(f, f.Transform != nil) }),
	optionalText("minimum_content_fidelity", FamilyContextgraph, func(f *Frame) *string { return &f.MinimumContentFidelity }).
		unless(func(f *Frame, _ Family) string { return oneOf(f.MinimumContentFidelity, fidelities) }),
	optionalText("inline_content_requirement", FamilyContextgraph, func(f *Frame) *string { return &f.InlineContentRequirement }).
		unless(func(f *Frame, _ Family) string { return oneOf(f.InlineContentRequirement, inlineRequirements) }),
	score(),
	uint32Of("token_cost", both, func(f *Frame) *uint32 { return &f.TokenCost }),
	optionalUint32("canonical_token_cost", FamilyContextgraph, func(f *Frame) **uint32 { return &f.CanonicalTokenCost }),
	optionalText("tokenizer_ref", FamilyContextgraph, func(f *Frame) *string { return &f.TokenizerRef }),
	instant("valid_from", func(f *Frame) *string { return &f.ValidFrom }),
	instant("valid_to", func(f *Frame) *string { return &f.ValidTo }),
	instant("recorded_at", func(f *Frame) *string { return &f.RecordedAt }),
	records("provenance", both, false, provenanceFields, func(f *Frame) *[]Provenance { return &f.Provenance }),
	optionalText("citation_label", both, func(f *Frame) *string { return &f.CitationLabel }),
	optionalRecord("embedding", both, embeddingFields, func(f *Frame) **FrameEmbedding { return &f.Embedding }),
	records("relations", both, false, relationFields, func(f *Frame) *[]Relation { return &f.Relations }),
}

var provenanceFields = []field[Provenance]{
	text("type", both, func(p *Provenance) *string { return &p.Type }),
	optionalText("uri", both, func(p *Provenance) *string { return &p.URI }),
	optionalText("range", both, func(p *Provenance) *string { return &p.Range }),
	optionalText("digest", both, func(p *Provenance) *string { return &p.Digest }).
		unless(func(p *Provenance, f Family) string {
			if f == FamilyContextgraph && p.Digest != "" && !digestPattern.MatchString(p.Digest) {
				return "is not sha256: and 64 small hex digits"
			}
			return ""
		}),
	optionalText("method", both, func(p *Provenance) *string { return &p.Method }),
	optionalText("by", both, func(p *Provenance) *string { return &p.By }),
}

var relationFields = []field[Relation]{
	text("rel", both, func(r *Relation) *string { return &r.Rel }),
	text("target_uri", both, func(r *Relation) *string { return &r.TargetURI }),
	optionalText("display_name", both, func(r *Relation) *string { return &r.DisplayName }),
}

var embeddingFields = []field[FrameEmbedding]{
	text("fingerprint", both, func(e *FrameEmbedding) *string { return &e.Fingerprint }),
	numbers("vector", both, func(e *FrameEmbedding) *[]float32 { return &e.Vector }),
}

var contentRefFields = []field[ContentRef]{
	text("provider_id", FamilyContextgraph, func(c *ContentRef) *string { return &c.ProviderID }),
	text("uri", FamilyContextgraph, func(c *ContentRef) *string { return &c.URI }),
	optionalText("expires_at", FamilyContextgraph, func(c *ContentRef) *string { return &c.ExpiresAt }),
}

var transformFields = []field[Transform]{
	text("method", FamilyContextgraph, func(t *Transform) *string { return &t.Method }),
	text("implementation", FamilyContextgraph, func(t *Transform) *string { return &t.Implementation }),
	text("version", FamilyContextgraph, func(t *Transform) *string { return &t.Version }),
}

var verifyFields = []field[Verify]{
	records("frames", FamilyContextgraph, true, frameIDFields, func(v *Verify) *[]FrameID { return &v.Frames }),
}

var frameIDFields = []field[FrameID]{
	text("provider_id", FamilyContextgraph, func(f *FrameID) *string { return &f.ProviderID }),
	text("frame_id", FamilyContextgraph, func(f *FrameID) *string { return &f.FrameID }),
	optionalText("content_digest", FamilyContextgraph, func(f *FrameID) *string { return &f.ContentDigest }),
}

var verifiedFields = []field[Verified]{
	records("verdicts", FamilyContextgraph, true, verdictFields, func(v *Verified) *[]Verdict { return &v.Verdicts }),
}

var verdictFields = []field[Verdict]{
	record("frame", FamilyContextgraph, true, frameIDFields, func(v *Verdict) *FrameID { return &v.Frame }),
	text("status", FamilyContextgraph, func(v *Verdict) *VerdictStatus { return &v.Status }).
		unless(func(v *Verdict, _ Family) string {
			if v.Status == "" {
				return "is empty"
			}
			return oneOf(string(v.Status), verdicts)
		}),
	optionalText("replacement_digest", FamilyContextgraph, func(v *Verdict) *string { return &v.ReplacementDigest }),
}
