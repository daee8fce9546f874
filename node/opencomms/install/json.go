package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxDepth is how deep the configurations that we edit may be nested.
const maxDepth = 100

// jsonText is a JSON text that was read; with comments it may be JSONC, which has
// comments and a comma behind the last element.
type jsonText struct {
	text     []byte
	comments bool
	at       int
	// blank are the places that JSON would not have: comments and last commas.
	blank []span
	root  node
}

type span struct{ from, to int }

// node is a value of a JSON text: where it stands and, of an object, what is in it.
type node struct {
	span
	object  bool
	members []jsonMember
}

type jsonMember struct {
	key   string
	start int
	value node
	comma int // where the comma behind it is; -1: there is none
}

func parseJSON(text []byte, comments bool) (*jsonText, error) {
	p := &jsonText{text: text, comments: comments}
	err := p.space()
	if err == nil {
		p.root, err = p.value(0)
	}
	if err == nil {
		err = p.space()
	}
	if err == nil && p.at < len(text) {
		err = errors.New("there is more behind the end")
	}
	if err == nil && !p.root.object {
		p.at, err = p.root.from, errors.New("an object { } is wanted")
	}
	if err != nil {
		line, column := place(text, p.at)
		return nil, fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	return p, nil
}

// place is the line and column of an offset, from 1.
func place(text []byte, at int) (line, column int) {
	before := text[:min(at, len(text))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// decode is what the text says.
func (p *jsonText) decode() (map[string]any, error) {
	plain := slices.Clone(p.text)
	for _, b := range p.blank {
		for i := b.from; i < b.to; i++ {
			plain[i] = ' '
		}
	}
	var tree map[string]any
	if err := json.Unmarshal(plain, &tree); err != nil {
		return nil, err
	}
	return tree, nil
}

// space skips white space and comments.
func (p *jsonText) space() error {
	for p.at < len(p.text) {
		rest := p.text[p.at:]
		length := 0
		switch {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			p.at++
			continue
		case rest[0] != '/':
			return nil
		case !p.comments:
			return errors.New("a comment is not allowed here")
		case bytes.HasPrefix(rest, []byte("//")):
			if length = bytes.IndexByte(rest, '\n'); length < 0 {
				length = len(rest)
			}
		case bytes.HasPrefix(rest, []byte("/*")):
			end := bytes.Index(rest[2:], []byte("*/"))
			if end < 0 {
				return errors.New("the comment has no end")
			}
			length = end + 4
		default:
			return errors.New("a value is wanted")
		}
		p.blank = append(p.blank, span{p.at, p.at + length})
		p.at += length
	}
	return nil
}

func (p *jsonText) peek() byte {
	if p.at >= len(p.text) {
		return 0
	}
	return p.text[p.at]
}

func (p *jsonText) value(depth int) (node, error) {
	n := node{span: span{from: p.at}}
	if depth > maxDepth {
		return n, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	var err error
	switch c := p.peek(); c {
	case '{', '[':
		n.object = c == '{'
		n.members, err = p.elements(c+2, n.object, depth) // { and }, [ and ] are two apart
	case '"':
		_, err = p.str()
	default:
		end := p.at
		for end < len(p.text) && strings.IndexByte(" \t\r\n,]}/", p.text[end]) < 0 {
			end++
		}
		if !json.Valid(p.text[p.at:end]) {
			return n, errors.New("a value is wanted")
		}
		p.at = end
	}
	n.to = p.at
	return n, err
}

// elements reads an object or a list up to its end. Elements of a list are not kept.
func (p *jsonText) elements(end byte, object bool, depth int) (out []jsonMember, err error) {
	p.at++
	last := -1 // the comma before, if nothing came since
	for {
		if err := p.space(); err != nil {
			return nil, err
		}
		if p.peek() == end {
			if last >= 0 {
				if !p.comments {
					return nil, errors.New("a comma stands before the end")
				}
				p.blank = append(p.blank, span{last, last + 1})
			}
			p.at++
			return out, nil
		}
		m := jsonMember{start: p.at, comma: -1}
		if object {
			if m.key, err = p.str(); err != nil {
				return nil, err
			}
			if err := p.space(); err != nil {
				return nil, err
			}
			if p.peek() != ':' {
				return nil, errors.New("a colon is wanted")
			}
			p.at++
			if err := p.space(); err != nil {
				return nil, err
			}
		}
		if m.value, err = p.value(depth + 1); err != nil {
			return nil, err
		}
		if err := p.space(); err != nil {
			return nil, err
		}
		last = -1
		switch p.peek() {
		case ',':
			m.comma, last = p.at, p.at
			p.at++
		case end:
		default:
			return nil, fmt.Errorf("a comma or %c is wanted", end)
		}
		if object {
			out = append(out, m)
		}
	}
}

func (p *jsonText) str() (s string, err error) {
	if p.peek() != '"' {
		return "", errors.New("a string is wanted")
	}
	for end := p.at + 1; end < len(p.text); end++ {
		switch p.text[end] {
		case '\\':
			end++
		case '"':
			if err := json.Unmarshal(p.text[p.at:end+1], &s); err != nil {
				return "", errors.New("a string is wanted")
			}
			p.at = end + 1
			return s, nil
		}
	}
	return "", errors.New("the string has no end")
}

// member finds a key; of several the last counts, as for those that read the file.
func (n node) member(key string) (int, bool) {
	for i, m := range slices.Backward(n.members) {
		if m.key == key {
			return i, true
		}
	}
	return 0, false
}

// set is the text with a value at a path; objects on the way are made.
func (p *jsonText) set(path []string, v any) ([]byte, error) {
	n := p.root
	for i, key := range path {
		at, ok := n.member(key)
		if !ok {
			for _, k := range slices.Backward(path[i+1:]) {
				v = object{{k, v}}
			}
			return p.insert(n, key, v)
		}
		m := n.members[at]
		if i == len(path)-1 {
			text, err := p.indented(v, p.indentAt(m.start))
			return splice(p.text, edit{m.value.span, text}), err
		}
		if n = m.value; !n.object {
			return nil, fmt.Errorf("%s is not an object", strings.Join(path[:i+1], "."))
		}
	}
	return nil, errors.New("a path is wanted")
}

// insert adds a member at the end of an object.
func (p *jsonText) insert(n node, key string, v any) ([]byte, error) {
	name, err := marshal(key)
	if err != nil {
		return nil, err
	}
	inner := p.text[n.from+1 : n.to-1]
	end := n.from + 1 + len(bytes.TrimRight(inner, " \t\r\n")) // behind the last member or comment
	var edits []edit
	if len(n.members) > 0 {
		if last := n.members[len(n.members)-1]; last.comma < 0 {
			edits = append(edits, edit{span{last.value.to, last.value.to}, []byte(",")})
		}
		if !bytes.ContainsRune(inner, '\n') {
			text, err := marshal(v)
			return splice(p.text, append(edits, edit{span{end, end}, slices.Concat([]byte(" "), name, []byte(": "), text)})...), err
		}
	}
	outer := p.indentAt(n.from)
	indent := outer + p.unit()
	if len(n.members) > 0 {
		indent = p.indentAt(n.members[0].start)
	}
	text, err := p.indented(v, indent)
	added := slices.Concat([]byte(p.newline()+indent), name, []byte(": "), text)
	if len(n.members) > 0 && n.members[len(n.members)-1].comma >= 0 {
		added = append(added, ',') // the style of the file
	}
	added = append(added, p.newline()+outer...)
	return splice(p.text, append(edits, edit{span{end, n.to - 1}, added})...), err
}

// remove is the text without what stands at a path.
func (p *jsonText) remove(path []string) []byte {
	n := p.root
	for i, key := range path {
		at, ok := n.member(key)
		if !ok {
			break
		}
		m := n.members[at]
		if i < len(path)-1 {
			n = m.value
			continue
		}
		before := bytes.TrimRight(p.text[:m.start], " \t\r\n")
		edits := []edit{{span: span{len(before), m.value.to}}}
		if m.comma >= 0 {
			edits = append(edits, edit{span: span{m.comma, m.comma + 1}})
		} else if at > 0 {
			comma := n.members[at-1].comma
			edits = append([]edit{{span: span{comma, comma + 1}}}, edits...)
			edits[1].from = max(edits[1].from, comma+1)
		}
		return splice(p.text, edits...)
	}
	return p.text
}

// indented is v as JSON whose lines, but the first, begin with indent.
func (p *jsonText) indented(v any, indent string) ([]byte, error) {
	text, err := marshal(v)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, indent, p.unit()); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(b.Bytes(), []byte("\n"), []byte(p.newline())), nil
}

// indentAt is the white space at the beginning of the line of an offset.
func (p *jsonText) indentAt(at int) string {
	line := p.text[bytes.LastIndexByte(p.text[:at], '\n')+1:]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// unit is one step of the file's indentation.
func (p *jsonText) unit() string {
	if len(p.root.members) > 0 {
		if indent := p.indentAt(p.root.members[0].start); indent != "" {
			return indent
		}
	}
	return "  "
}

func (p *jsonText) newline() string {
	if bytes.Contains(p.text, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// edit replaces a part of a text.
type edit struct {
	span
	text []byte
}

// splice applies edits, which are in order and do not overlap.
func splice(text []byte, edits ...edit) []byte {
	var out []byte
	at := 0
	for _, e := range edits {
		out = append(append(out, text[at:e.from]...), e.text...)
		at = e.to
	}
	return append(out, text[at:]...)
}
