package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"opencode-mesh/node"
	"opencode-mesh/node/ocp/host"
	"opencode-mesh/protocol/api"
)

// contextFlags say whom the node asks for context.
func contextFlags(f *pflag.FlagSet) {
	f.StringArray("context-provider", nil, "provider of context beside the node's memory, as NAME=CMD… (a program on stdio; quotes hold words together) or NAME=URL (repeatable); one that sends data off this machine is asked after meshnode ocp consent only")
	f.StringArray("context-token", nil, "bearer token for the URL of a context provider, as NAME=FILE; the first line counts (repeatable)")
	f.Bool("no-context", false, "do not let the hub ask this node's context providers, its memory included")
}

// contextProviders reads them. Errors repeat no address, which may hold a secret.
func contextProviders(f *pflag.FlagSet) ([]host.Provider, error) {
	var list []host.Provider
	find := func(name string) int {
		return slices.IndexFunc(list, func(p host.Provider) bool { return p.Name == name })
	}
	given, _ := f.GetStringArray("context-provider")
	for _, text := range given {
		name, what, ok := strings.Cut(text, "=")
		switch {
		case !ok || !api.ValidName(name):
			return nil, fmt.Errorf("--context-provider is NAME=CMD… or NAME=URL, with a name of %s", api.NameRule)
		case name == node.MemoryProvider:
			return nil, fmt.Errorf("--context-provider: %s is the node's own memory; give yours another name", name)
		case find(name) >= 0:
			return nil, fmt.Errorf("--context-provider: %s is named twice", name)
		}
		p := host.Provider{Name: name}
		if isAddress(what) {
			p.URL = what
		} else {
			var err error
			if p.Command, err = commandWords(what); err != nil {
				return nil, fmt.Errorf("--context-provider %s: %w", name, err)
			}
			if len(p.Command) == 0 {
				return nil, fmt.Errorf("--context-provider %s names no program and no URL", name)
			}
			if _, err := exec.LookPath(p.Command[0]); err != nil {
				return nil, fmt.Errorf("--context-provider %s: %w", name, err)
			}
		}
		if err := p.Check(); err != nil {
			return nil, fmt.Errorf("--context-provider: %w", err)
		}
		list = append(list, p)
	}
	if len(list) >= api.MaxContextProviders { // the memory is one
		return nil, fmt.Errorf("--context-provider: a node has at most %d, and its memory", api.MaxContextProviders-1)
	}
	tokens, _ := f.GetStringArray("context-token")
	for _, text := range tokens {
		name, file, ok := strings.Cut(text, "=")
		at := find(name)
		switch {
		case !ok || file == "":
			return nil, fmt.Errorf("--context-token is NAME=FILE")
		case at < 0 || list[at].URL == "":
			return nil, fmt.Errorf("--context-token: %q is no --context-provider with a URL", name)
		case list[at].Token != "":
			return nil, fmt.Errorf("--context-token: %s is named twice", name)
		}
		var err error
		if list[at].Token, err = tokenFrom("--context-token", file); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func isAddress(s string) bool {
	s = strings.ToLower(s)
	return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://")
}

// commandWords are the words of a command line: blanks part them, single and double
// quotes hold them together, and nothing else is special.
func commandWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	open, begun := rune(0), false
	for _, r := range text {
		switch {
		case open != 0 && r == open:
			open = 0
		case open == 0 && (r == '\'' || r == '"'):
			open, begun = r, true
		case open == 0 && (r == ' ' || r == '\t' || r == '\n'):
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if open != 0 {
		return nil, fmt.Errorf("a %c is not closed", open)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}
