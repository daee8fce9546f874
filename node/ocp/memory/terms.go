package memory

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	porterstemmer "github.com/blevesearch/go-porterstemmer"
)

// Bounds of what of a text is searched for and found.
const (
	// maxWord is the longest word, in bytes; longer ones are no words.
	maxWord = 64
	// maxNames is how many names of files and symbols are kept of an item.
	maxNames = 256
	// maxNameBytes is the longest such name, in bytes.
	maxNameBytes = 256
	// maxNameSteps is under how many of its ends a path can be found.
	maxNameSteps = 8
)

// all is the prefix of the terms that Scope.All searches.
const all = "*"

// prefix is what the terms that a scope searches begin with, "" when it sees nothing. Every
// term is in the index once for everybody and once for its controller, so whoever asks for
// a controller reads no list in which others are, and learns nothing from how common a
// word is among them.
func (s Scope) prefix() string {
	switch {
	case s.All:
		return all
	case s.Controller == "":
		return ""
	}
	sum := sha256.Sum256([]byte(s.Controller))
	return hex.EncodeToString(sum[:16])
}

// words calls fn for every word of a text as it is searched for: in lower case, by its
// stem, identifiers whole and in their parts, and of scripts without blanks each pair of
// characters.
func words(text string, fn func(string)) {
	for word := range strings.FieldsFuncSeq(text, notWord) {
		if len(word) > maxWord {
			continue
		}
		if first, _ := utf8.DecodeRuneInString(word); unblanked(first) {
			pairs(word, fn)
			continue
		}
		fn(stem(strings.ToLower(word)))
		if parts := camel(word); len(parts) > 1 {
			for _, p := range parts {
				fn(stem(strings.ToLower(p)))
			}
		}
	}
}

func notWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// unblanked are the scripts that put no blanks between words.
func unblanked(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai)
}

func pairs(word string, fn func(string)) {
	before := ""
	n := 0
	for i, r := range word {
		c := word[i : i+utf8.RuneLen(r)]
		if before != "" {
			fn(before + c)
		}
		before = c
		n++
	}
	if n == 1 {
		fn(before)
	}
}

// camel takes an identifier apart: parseConfigFile, HTTPServer.
func camel(word string) (parts []string) {
	runes := []rune(word)
	from := 0
	for i := 1; i < len(runes); i++ {
		up := unicode.IsUpper(runes[i]) &&
			(!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if up {
			parts = append(parts, string(runes[from:i]))
			from = i
		}
	}
	return append(parts, string(runes[from:]))
}

// stem is the stem of an English word; other words stay.
func stem(word string) string {
	if len(word) < 4 {
		return word
	}
	for i := range len(word) {
		if c := word[i]; c < 'a' || c > 'z' {
			return word
		}
	}
	return string(porterstemmer.StemWithoutLowerCasing([]rune(word)))
}

// names are the files and symbols that an item is about or that stand in its text, each
// under every end of its path.
func names(it *Item) []string {
	seen := map[string]bool{}
	add := func(name string) {
		if name = cleanName(name); name == "" {
			return
		}
		for _, end := range ends(name) {
			if len(seen) < maxNames {
				seen[end] = true
			}
		}
	}
	for _, p := range it.Paths {
		add(p)
	}
	for _, text := range []string{it.Title, it.Content} {
		for word := range strings.FieldsSeq(text) {
			if len(seen) >= maxNames {
				break
			}
			if named(word) {
				add(word)
			}
		}
	}
	out := make([]string, 0, len(seen))
	for name := range seen {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// named reports whether a word of a text looks like the name of a file or a symbol.
func named(word string) bool {
	return strings.ContainsAny(word, "/\\_.(") || len(camel(word)) > 1
}

// cleanName is a path or symbol without what stands around it, in lower case and with
// forward slashes; "" is none.
func cleanName(name string) string {
	name = strings.ReplaceAll(name, "\\", "/")
	name = strings.TrimFunc(name, func(r rune) bool { return r != '_' && r != '.' && r != '/' && notWord(r) })
	name, _, _ = strings.Cut(name, "(")
	name = strings.Trim(name, "./:,;")
	if len(name) > maxNameBytes || strings.TrimFunc(name, notWord) == "" {
		return ""
	}
	return strings.ToLower(path.Clean(name))
}

// ends are a name and what it is called from further down: a/b/c, b/c and c.
func ends(name string) []string {
	list := []string{name}
	for len(list) < maxNameSteps {
		_, rest, more := strings.Cut(name, "/")
		if !more {
			break
		}
		list = append(list, rest)
		name = rest
	}
	return list
}
