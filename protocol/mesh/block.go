package mesh

// block is a result, question or digest block within a text. Its body holds no
// marker line, because any marker line ends it.
type block struct {
	kind      kind
	supported bool
	start     int // of the opening marker's line
	body, end int // text[body:end] is what stands between the markers
	// terminated is false when the block ended without its own closing tag.
	terminated bool
	next       int // where reading goes on
}

// nextBlock finds the first block of a text at or after from, which must be the
// beginning of a line. Envelope markers and stray closing tags are passed over.
func nextBlock(text string, from int) (block, bool) {
	for {
		m, ok := nextMarker(text, from)
		if !ok {
			return block{}, false
		}
		if m.closing || m.kind == kindEnvelope {
			from = m.next
			continue
		}
		return openBlock(text, m), true
	}
}

// openBlock finds the end of the block that m opens.
func openBlock(text string, m found) block {
	b := block{kind: m.kind, supported: m.supported, start: m.start, body: m.next, end: len(text), next: len(text)}
	if end, ok := nextMarker(text, m.next); ok {
		b.end, b.next = end.start, end.start
		if end.closing && end.kind == m.kind {
			b.terminated, b.next = true, end.next
		}
	}
	return b
}

// soleBlock reads a text that must be one block of kind k and nothing else.
func soleBlock(text string, k kind) (block, error) {
	body, err := opening(text, k)
	if err != nil {
		return block{}, err
	}
	b := openBlock(text, found{marker: marker{kind: k, supported: true}, next: body})
	if rest := text[b.next:]; !isBlank(rest) {
		_, skipped, _ := firstLine(rest)
		return block{}, &SyntaxError{lineAt(text, b.next+skipped), CodeMalformed, "there is text after the " + k.String() + " block"}
	}
	return b, nil
}

// fault is about a key of a block: at the key's line, or at the block's end when
// the key is absent.
func (b *block) fault(f *fields, key int, code Code, msg string) *fault {
	return &fault{f.where(key, b.end), code, msg}
}
