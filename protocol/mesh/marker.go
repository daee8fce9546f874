package mesh

import "strings"

// kind tells the blocks apart.
type kind uint8

const (
	kindEnvelope kind = iota
	kindResult
	kindQuestion
	kindDigest
)

// The two marker families. Writers emit the first only.
const (
	familyNew = "opencode-mesh"
	familyOld = "aoi-mesh"
)

// familyHint stands in every marker line of both families; searching for it is
// what makes reading long replies cheap.
const familyHint = "-mesh"

const bom = "\uFEFF"

// Markers as they are written.
const (
	openEnvelope   = "[" + familyNew + " v1]"
	openResult     = "[" + familyNew + "-result v1]"
	closeResult    = "[/" + familyNew + "-result]"
	openQuestion   = "[" + familyNew + "-question v1]"
	closeQuestion  = "[/" + familyNew + "-question]"
	openDigest     = "[" + familyNew + "-digest v1]"
	closeDigest    = "[/" + familyNew + "-digest]"
	headerEnd      = "---"
	noneValue      = "none"
	bulletPrefix   = "- "
	fullWidthColon = "："
)

func (k kind) String() string {
	switch k {
	case kindResult:
		return "result"
	case kindQuestion:
		return "question"
	case kindDigest:
		return "digest"
	default:
		return "envelope"
	}
}

// marker is a line that opens or closes a block.
type marker struct {
	kind    kind
	closing bool
	// supported is false for an opening marker of a version that is not v1.x.
	supported bool
}

// parseMarker reads one line without its line end. Markers are exact and lower
// case; only blanks around them are allowed.
func parseMarker(line string) (marker, bool) {
	s := strings.TrimSpace(line)
	if len(s) < len(familyOld)+2 || s[0] != '[' || s[len(s)-1] != ']' {
		return marker{}, false
	}
	s = s[1 : len(s)-1]
	var m marker
	if s[0] == '/' {
		m.closing = true
		s = s[1:]
	}
	rest, ok := strings.CutPrefix(s, familyNew)
	if !ok {
		if rest, ok = strings.CutPrefix(s, familyOld); !ok {
			return marker{}, false
		}
	}
	if strings.HasPrefix(rest, "-") {
		for k := kindResult; k <= kindDigest; k++ {
			if after, ok := strings.CutPrefix(rest[1:], k.String()); ok {
				m.kind, rest = k, after
				break
			}
		}
	}
	if m.closing {
		m.supported = true
		return m, rest == "" && m.kind != kindEnvelope
	}
	version, ok := strings.CutPrefix(rest, " v")
	if !ok {
		return marker{}, false
	}
	m.supported, ok = parseVersion(version)
	return m, ok
}

// parseVersion reads what follows the v: digits, then any number of .digits.
// Additions within v1 are optional, so every v1.x is read as v1.
func parseVersion(s string) (supported, ok bool) {
	major, digits := s, 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c == '.' && digits > 0:
			if len(major) == len(s) {
				major = s[:i]
			}
			digits = 0
		default:
			return false, false
		}
	}
	return major == "1", digits > 0
}

// found is a marker line at text[start:end]; next is where the line after it
// begins.
type found struct {
	marker
	start, next int
}

// nextMarker finds the first marker line at or after from, which must be the
// beginning of a line. It looks at each line at most once.
func nextMarker(text string, from int) (found, bool) {
	for from < len(text) {
		hit := strings.Index(text[from:], familyHint)
		if hit < 0 {
			return found{}, false
		}
		hit += from
		start := from + strings.LastIndexByte(text[from:hit], '\n') + 1
		end, next := lineEnd(text, hit)
		line := text[start:end]
		if start == 0 {
			line = strings.TrimPrefix(line, bom)
		}
		if m, ok := parseMarker(line); ok {
			return found{m, start, next}, true
		}
		from = next
	}
	return found{}, false
}

// lineEnd returns where the line that holds offset from ends (without LF) and
// where the next one begins.
func lineEnd(text string, from int) (end, next int) {
	i := strings.IndexByte(text[from:], '\n')
	if i < 0 {
		return len(text), len(text)
	}
	return from + i, from + i + 1
}

// lineAt returns the 1-based number of the line that holds offset off.
func lineAt(text string, off int) int {
	return 1 + strings.Count(text[:off], "\n")
}

// firstLine returns the first non-blank line of text, its offset and where the
// next line begins. A leading byte order mark is skipped.
func firstLine(text string) (line string, start, next int) {
	pos := 0
	if strings.HasPrefix(text, bom) {
		pos = len(bom)
	}
	for pos < len(text) {
		end, next := lineEnd(text, pos)
		if line := text[pos:end]; !isBlank(line) {
			return line, pos, next
		}
		pos = next
	}
	return "", len(text), len(text)
}

func isBlank(s string) bool { return strings.TrimSpace(s) == "" }

// opening checks that text begins with a v1 marker of kind k and returns where
// the line after it begins.
func opening(text string, k kind) (next int, err error) {
	if len(text) > MaxTextBytes {
		return 0, &SyntaxError{Code: CodeTooLarge, Msg: "the text is larger than 1 MiB"}
	}
	line, start, next := firstLine(text)
	m, ok := parseMarker(line)
	switch {
	case !ok || m.closing || m.kind != k:
		return 0, &SyntaxError{lineAt(text, start), CodeNoMarker, "the first line is not the marker of a v1 " + k.String()}
	case !m.supported:
		return 0, &SyntaxError{lineAt(text, start), CodeUnsupportedVersion, "only v1 of the " + k.String() + " is understood"}
	}
	return next, nil
}

// IsEnvelope reports whether the first non-blank line of text is an envelope
// marker of either family, whatever its version.
func IsEnvelope(text string) bool {
	line, _, _ := firstLine(text)
	m, ok := parseMarker(line)
	return ok && !m.closing && m.kind == kindEnvelope
}
