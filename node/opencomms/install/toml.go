package install

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// tomlText is a TOML text that was read, as far as editing one table of it needs:
// values are told apart and their ends found; numbers and dates stay text.
type tomlText struct {
	text       []byte
	at         int
	statements []statement
	tree       map[string]any
}

// statement is a heading or a key with its value.
type statement struct {
	span
	end     int // behind a comment on its line
	heading bool
	path    []string // of the table, or of the key from the root
	depth   int      // how much of the path is the table's, of a key
}

// bare is a number, a date or a bool.
type bare string

// readTOML is parseTOML of a text that a whole parser finds valid, too: ours lets
// pass what it need not tell apart, such as a table that is defined twice.
func readTOML(text []byte) (document, error) {
	doc, err := parseTOML(text)
	if err != nil {
		return nil, err
	}
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		var at *toml.DecodeError
		if errors.As(err, &at) {
			line, column := at.Position()
			return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
		}
		return nil, err
	}
	return doc, nil
}

func parseTOML(text []byte) (*tomlText, error) {
	p := &tomlText{text: text, tree: map[string]any{}}
	if err := p.parse(); err != nil {
		line, column := place(text, p.at)
		return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return p, nil
}

// decode is what the text says; numbers, dates and bools are bare.
func (p *tomlText) decode() (map[string]any, error) { return p.tree, nil }

func (p *tomlText) parse() error {
	table, path := p.tree, []string(nil)
	for {
		p.lines()
		if p.at >= len(p.text) {
			return nil
		}
		s := statement{span: span{from: p.at}}
		var err error
		if p.peek() == '[' {
			if path, table, err = p.heading(); err != nil {
				return err
			}
			s.heading, s.path = true, path
		} else {
			key, err := p.key()
			if err != nil {
				return err
			}
			if p.blanks(); p.peek() != '=' {
				return errors.New("a = is wanted")
			}
			p.at++
			p.blanks()
			v, err := p.value(0)
			if err != nil {
				return err
			}
			if err := assign(table, key, v); err != nil {
				return err
			}
			s.path, s.depth = slices.Concat(path, key), len(path)
		}
		s.to = p.at
		if err := p.lineEnd(); err != nil {
			return err
		}
		s.end = p.at
		p.statements = append(p.statements, s)
	}
}

// heading reads [a.b] or [[a.b]] and returns the table that follows.
func (p *tomlText) heading() (path []string, table map[string]any, err error) {
	list := bytes.HasPrefix(p.text[p.at:], []byte("[["))
	closing := "]"
	if list {
		closing = "]]"
	}
	p.at += len(closing)
	p.blanks()
	if path, err = p.key(); err != nil {
		return nil, nil, err
	}
	if p.blanks(); !bytes.HasPrefix(p.text[p.at:], []byte(closing)) {
		return nil, nil, errors.New("the heading has no end")
	}
	p.at += len(closing)
	table = p.tree
	for i, key := range path {
		switch v := table[key].(type) {
		case nil:
			next := map[string]any{}
			if table[key] = next; list && i == len(path)-1 {
				table[key] = []any{next}
			}
			table = next
		case map[string]any:
			table = v
		case []any:
			if list && i == len(path)-1 {
				v = append(v, map[string]any{})
				table[key] = v
			}
			next, ok := v[len(v)-1].(map[string]any)
			if !ok {
				return nil, nil, fmt.Errorf("%s is no table", key)
			}
			table = next
		default:
			return nil, nil, fmt.Errorf("%s is no table", key)
		}
	}
	return path, table, nil
}

// assign puts a value into a table at a dotted key.
func assign(table map[string]any, key []string, v any) error {
	for _, k := range key[:len(key)-1] {
		next, ok := table[k].(map[string]any)
		if !ok {
			if _, there := table[k]; there {
				return fmt.Errorf("%s is no table", k)
			}
			next = map[string]any{}
			table[k] = next
		}
		table = next
	}
	k := key[len(key)-1]
	if _, twice := table[k]; twice {
		return fmt.Errorf("%s is set twice", k)
	}
	table[k] = v
	return nil
}

func (p *tomlText) peek() byte {
	if p.at >= len(p.text) {
		return 0
	}
	return p.text[p.at]
}

func (p *tomlText) blanks() {
	for c := p.peek(); c == ' ' || c == '\t'; c = p.peek() {
		p.at++
	}
}

// lines skips white space, line ends and comments.
func (p *tomlText) lines() {
	for p.at < len(p.text) {
		switch c := p.peek(); {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			p.at++
		case c == '#':
			p.comment()
		default:
			return
		}
	}
}

func (p *tomlText) comment() {
	if n := bytes.IndexByte(p.text[p.at:], '\n'); n >= 0 {
		p.at += len(bytes.TrimRight(p.text[p.at:p.at+n], "\r"))
	} else {
		p.at = len(p.text)
	}
}

// lineEnd wants nothing more than a comment on the line.
func (p *tomlText) lineEnd() error {
	p.blanks()
	if p.peek() == '#' {
		p.comment()
	}
	if c := p.peek(); p.at < len(p.text) && c != '\n' && c != '\r' {
		return errors.New("the end of the line is wanted")
	}
	return nil
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+`)

func (p *tomlText) key() (path []string, err error) {
	for {
		p.blanks()
		var part string
		switch p.peek() {
		case '"', '\'':
			if part, err = p.str(); err != nil {
				return nil, err
			}
		default:
			found := bareKey.Find(p.text[p.at:])
			if found == nil {
				return nil, errors.New("a key is wanted")
			}
			part = string(found)
			p.at += len(found)
		}
		path = append(path, part)
		if p.blanks(); p.peek() != '.' {
			return path, nil
		}
		p.at++
	}
}

var bareValue = regexp.MustCompile(`^[+-]?[0-9A-Za-z][0-9A-Za-z_.:+-]*( [0-9]{2}:[0-9:.]+(Z|[+-][0-9:]+)?)?`)

func (p *tomlText) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch p.peek() {
	case '"', '\'':
		return p.str()
	case '[':
		list := []any{}
		err := p.elements(']', func() error {
			v, err := p.value(depth + 1)
			list = append(list, v)
			return err
		})
		return list, err
	case '{':
		table := map[string]any{}
		err := p.elements('}', func() error {
			key, err := p.key()
			if err != nil {
				return err
			}
			if p.blanks(); p.peek() != '=' {
				return errors.New("a = is wanted")
			}
			p.at++
			p.blanks()
			v, err := p.value(depth + 1)
			if err != nil {
				return err
			}
			return assign(table, key, v)
		})
		return table, err
	}
	found := bareValue.Find(p.text[p.at:])
	if found == nil {
		return nil, errors.New("a value is wanted")
	}
	p.at += len(found)
	return bare(found), nil
}

// elements reads what stands between brackets, parted by commas.
func (p *tomlText) elements(end byte, one func() error) error {
	p.at++
	for {
		if p.lines(); p.peek() == end {
			p.at++
			return nil
		}
		if err := one(); err != nil {
			return err
		}
		switch p.lines(); p.peek() {
		case ',':
			p.at++
		case end:
		default:
			return fmt.Errorf("a comma or %c is wanted", end)
		}
	}
}

func (p *tomlText) str() (string, error) {
	quote := p.text[p.at : p.at+1]
	many := bytes.HasPrefix(p.text[p.at:], bytes.Repeat(quote, 3))
	if many {
		quote = p.text[p.at : p.at+3]
	}
	begin := p.at + len(quote)
	for end := begin; end < len(p.text); end++ {
		switch c := p.text[end]; {
		case c == '\\' && quote[0] == '"':
			end++
		case c == '\n' && !many:
			return "", errors.New("the string has no end on its line")
		case bytes.HasPrefix(p.text[end:], quote):
			for many && bytes.HasPrefix(p.text[end+1:], quote) {
				end++ // quotes that belong to the text
			}
			p.at = end + len(quote)
			return unescape(string(p.text[begin:end]), quote[0] == '"', many)
		}
	}
	return "", errors.New("the string has no end")
}

var lineContinuation = regexp.MustCompile(`\\[ \t]*\r?\n[ \t\r\n]*`)

func unescape(s string, escapes, many bool) (string, error) {
	if many {
		s = strings.TrimPrefix(strings.TrimPrefix(s, "\r"), "\n")
	}
	if !escapes || !strings.Contains(s, `\`) {
		return s, nil
	}
	s = lineContinuation.ReplaceAllString(s, "")
	var b strings.Builder
	for s != "" {
		if s[0] != '\\' {
			b.WriteByte(s[0])
			s = s[1:]
			continue
		}
		if len(s) > 1 && s[1] == 'e' {
			b.WriteByte(0x1b)
			s = s[2:]
			continue
		}
		r, _, rest, err := strconv.UnquoteChar(s, '"')
		if err != nil {
			return "", errors.New("an escape that TOML does not know")
		}
		b.WriteRune(r)
		s = rest
	}
	return b.String(), nil
}

// set is the text with a value at a path. An object becomes a table of its own at
// the end of the text; another value goes into its table, which must have a
// heading.
func (p *tomlText) set(path []string, v any) ([]byte, error) {
	if o, ok := v.(object); ok {
		return p.add(path, o)
	}
	line := []byte(tomlKey(path[len(path)-1]) + " = " + tomlValue(v))
	table, last := path[:len(path)-1], -1
	for i, s := range p.statements {
		switch {
		case !s.heading && slices.Equal(s.path, path) && s.depth == len(table):
			return splice(p.text, edit{s.span, line}), nil
		case s.heading && slices.Equal(s.path, table), !s.heading && s.depth == len(table) && slices.Equal(s.path[:s.depth], table):
			last = i
		}
	}
	if last < 0 || len(table) == 0 {
		return p.add(table, object{{path[len(path)-1], v}})
	}
	at := p.statements[last].end
	return splice(p.text, edit{span{at, at}, append([]byte(p.newline()), line...)}), nil
}

// add puts new tables at the end.
func (p *tomlText) add(path []string, o object) ([]byte, error) {
	if _, ok := lookup(p.tree, path); ok {
		return nil, fmt.Errorf("%s is there already in a form that is not edited", strings.Join(path, "."))
	}
	for n := range path {
		if v, ok := lookup(p.tree, path[:n]); ok {
			if _, table := v.(map[string]any); !table {
				return nil, fmt.Errorf("%s is no table", strings.Join(path[:n], "."))
			}
		}
	}
	for _, s := range p.statements {
		if n := common(s.path, path); !s.heading && n > s.depth {
			return nil, fmt.Errorf("%s is set by a key and not by a heading, and no table can be added to it", strings.Join(path[:n], "."))
		}
	}
	var b strings.Builder
	if rest := bytes.TrimRight(p.text, " \t\r\n"); len(rest) > 0 {
		b.Write(rest)
		b.WriteString("\n\n")
	}
	tomlTable(&b, path, o)
	text := b.String()
	if p.newline() == "\r\n" {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\n", "\r\n")
	}
	return []byte(text), nil
}

// common is how many elements two paths begin with alike.
func common(a, b []string) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// remove is the text without the tables at and below a path.
func (p *tomlText) remove(path []string) []byte {
	var edits []edit
	for i, s := range p.statements {
		if len(s.path) < len(path) || !slices.Equal(s.path[:len(path)], path) || !s.heading && s.depth < len(path) {
			continue
		}
		from := len(bytes.TrimRight(p.text[:s.from], " \t\r\n"))
		if i > 0 {
			from = max(from, p.statements[i-1].end)
		}
		edits = append(edits, edit{span: span{from, s.end}})
	}
	return splice(p.text, edits...)
}

func (p *tomlText) newline() string {
	if bytes.Contains(p.text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

func tomlTable(b *strings.Builder, path []string, o object) {
	keys := make([]string, len(path))
	for i, k := range path {
		keys[i] = tomlKey(k)
	}
	fmt.Fprintf(b, "[%s]\n", strings.Join(keys, "."))
	for _, f := range o {
		if _, table := f.value.(object); !table {
			fmt.Fprintf(b, "%s = %s\n", tomlKey(f.key), tomlValue(f.value))
		}
	}
	for _, f := range o {
		if table, ok := f.value.(object); ok {
			b.WriteByte('\n')
			tomlTable(b, slices.Concat(path, []string{f.key}), table)
		}
	}
}

func tomlKey(k string) string {
	if bareKey.FindString(k) == k && k != "" {
		return k
	}
	return tomlValue(k)
}

// tomlValue writes a value. The escapes of JSON are among those of TOML.
func tomlValue(v any) string {
	switch v := v.(type) {
	case []string:
		parts := make([]string, len(v))
		for i, s := range v {
			parts[i] = tomlValue(s)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case string:
		text, _ := marshal(v) // a string is always encoded
		return strings.ReplaceAll(string(text), "\x7f", `\u007f`)
	}
	return fmt.Sprint(v)
}
