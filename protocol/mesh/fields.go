package mesh

import "strings"

// Field is an unknown key that was kept, spelled as it came.
type Field struct{ Key, Value string }

// maxKeys is the largest number of known keys that a block has.
const maxKeys = 6

// schema names the keys that a block knows and how their values extend.
type schema struct {
	keys []string
	// text marks (by bit) keys whose value runs up to the next known key.
	text uint8
	// list marks keys whose value may, when their own line holds none, stand in the
	// lines directly below, each a "- " item. Models like to write lists this way,
	// and a path that they name must not get lost.
	list uint8
}

// fields is what scan found. Values are raw: trimmed, not yet validated.
type fields struct {
	value   [maxKeys]string
	at      [maxKeys]int // offset of the key's line
	present uint8
	extra   []Field
	stray   int // offset of the first line that belongs to no key, -1
	over    int // offset of the first unknown key over a limit, -1
}

func (f *fields) has(key int) bool { return f.present&(1<<key) != 0 }

// where returns the offset of the key's line, or fallback when the key is absent.
func (f *fields) where(key, fallback int) int {
	if f.has(key) {
		return f.at[key]
	}
	return fallback
}

// scan reads the key lines of text[start:end]. The first of a repeated key wins.
func (s *schema) scan(text string, start, end int) fields {
	f := fields{stray: -1, over: -1}
	openKey, openAt := -1, 0 // a value that still extends, and where it began
	keep := false            // false while it belongs to a repeated key
	inList := false
	finish := func(to int) {
		if openKey >= 0 && keep {
			f.value[openKey] = joinLines(text[openAt:to])
		}
		openKey, inList = -1, false
	}
	for pos := start; pos < end; {
		stop, next := lineEnd(text[:end], pos)
		line := text[pos:stop]
		if inList && (isBlank(line) || strings.HasPrefix(strings.TrimSpace(line), bulletPrefix)) {
			pos = next
			continue
		}
		key, colon, width := s.split(line)
		switch {
		case key >= 0:
			finish(pos)
			bit := uint8(1) << key
			value := line[colon+width:]
			keep = f.present&bit == 0
			if keep {
				f.present |= bit
				f.at[key] = pos
				f.value[key] = strings.TrimSpace(value)
			}
			if s.text&bit != 0 || (s.list&bit != 0 && isBlank(value)) {
				openKey, openAt = key, pos+colon+width
				inList = s.list&bit != 0
			}
		case openKey >= 0 && !inList:
			// A further line of the open value.
		default:
			finish(pos)
			f.other(line, pos, colon)
		}
		pos = next
	}
	finish(end)
	return f
}

// other records a line that no known key owns: an unknown key, or a stray line.
func (f *fields) other(line string, pos, colon int) {
	var field Field
	if colon >= 0 {
		field.Key = strings.TrimSpace(line[:colon])
	}
	if field.Key == "" {
		if f.stray < 0 && !isBlank(line) {
			f.stray = pos
		}
		return
	}
	field.Value = strings.TrimSpace(line[colon+1:])
	for _, e := range f.extra {
		if equalFold(e.Key, field.Key) {
			return
		}
	}
	if len(f.extra) == MaxExtraFields || len(field.Key)+len(field.Value) > MaxFieldBytes {
		if f.over < 0 {
			f.over = pos
		}
		return
	}
	f.extra = append(f.extra, field)
}

// split finds the colon that ends a line's key. key is the index of the known
// key, -1 for any other line; colon is -1 when there is none. A full-width colon
// counts after a known key only, so that it may stand in any other text.
func (s *schema) split(line string) (key, colon, width int) {
	colon = strings.IndexByte(line, ':')
	head := line
	if colon >= 0 {
		head = line[:colon]
	}
	if wide := strings.Index(head, fullWidthColon); wide >= 0 {
		if k := s.index(head[:wide]); k >= 0 {
			return k, wide, len(fullWidthColon)
		}
	}
	if colon < 0 {
		return -1, -1, 0
	}
	return s.index(head), colon, 1
}

// index returns which known key name is, -1 for none.
func (s *schema) index(name string) int {
	name = strings.TrimSpace(name)
	for i, k := range s.keys {
		if equalFold(name, k) {
			return i
		}
	}
	return -1
}

// equalFold compares without regard to ASCII case only: with Unicode folding
// "taſk" would be a task.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// joinLines trims a value and turns its line ends into LF.
func joinLines(s string) string {
	s = strings.TrimSpace(s)
	if !strings.Contains(s, "\r\n") {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	for line := range strings.Lines(s) {
		body, ended := strings.CutSuffix(line, "\n")
		if ended {
			body = strings.TrimRight(body, "\r")
		}
		b.WriteString(body)
		if ended {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// checkLine refuses a value that would not come back from a line of its own.
func checkLine(key, value string) error {
	if strings.IndexByte(value, '\n') >= 0 || strings.TrimSpace(value) != value {
		return refuse(CodeBadValue, key+" must be one line without blanks around it")
	}
	return nil
}

// checkText refuses a value of several lines that would not come back: a line
// that reads as a known key or as a marker. The first line stands behind its own
// key and may look like one; a marker is refused there too, because no honest
// text needs it.
func (s *schema) checkText(key, value string) error {
	if strings.TrimSpace(value) != value || strings.Contains(value, "\r\n") {
		return refuse(CodeBadValue, key+" must have LF line ends and no blanks around it")
	}
	n := 0
	for line := range strings.Lines(value) {
		line = strings.TrimSuffix(line, "\n")
		n++
		if _, ok := parseMarker(line); ok {
			return &SyntaxError{Line: n, Code: CodeBadValue, Msg: key + " has a line that reads as a tag"}
		}
		if k, _, _ := s.split(line); k >= 0 && n > 1 {
			return &SyntaxError{Line: n, Code: CodeBadValue, Msg: key + " has a line that reads as the key " + s.keys[k]}
		}
	}
	return nil
}

// checkExtra refuses unknown keys that would not come back as they are.
func (s *schema) checkExtra(extra []Field) error {
	if len(extra) > MaxExtraFields {
		return refuse(CodeTooLarge, "too many additional keys")
	}
	for i, e := range extra {
		if len(e.Key)+len(e.Value) > MaxFieldBytes {
			return refuse(CodeTooLarge, "the additional key "+excerpt(e.Key)+" is too long")
		}
		line := e.Key + ": " + e.Value
		key, colon, _ := s.split(line)
		if key >= 0 || colon != len(e.Key) || e.Key == "" || strings.TrimSpace(e.Key) != e.Key ||
			strings.IndexByte(line, '\n') >= 0 || strings.TrimSpace(e.Value) != e.Value {
			return refuse(CodeBadValue, "the additional key "+excerpt(e.Key)+" would not parse back")
		}
		for _, earlier := range extra[:i] {
			if equalFold(earlier.Key, e.Key) {
				return refuse(CodeBadValue, "the additional key "+excerpt(e.Key)+" is given twice")
			}
		}
	}
	return nil
}

// writer builds a block.
type writer struct{ b strings.Builder }

func (w *writer) line(s string) {
	w.b.WriteString(s)
	w.b.WriteByte('\n')
}

func (w *writer) field(key, value string) {
	w.b.WriteString(key)
	w.b.WriteByte(':')
	if value != "" {
		w.b.WriteByte(' ')
		w.b.WriteString(value)
	}
	w.b.WriteByte('\n')
}

func (w *writer) extra(fields []Field) {
	for _, f := range fields {
		w.field(f.Key, f.Value)
	}
}

// text returns what was written, or an error when it is larger than any parser
// would read.
func (w *writer) text() (string, error) {
	if w.b.Len() > MaxTextBytes {
		return "", refuse(CodeTooLarge, "the text is larger than 1 MiB")
	}
	return w.b.String(), nil
}
