package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagOnly are flags that must be written where the command is typed: what they
// say belongs to one call.
var flagOnly = []string{"id", "yes", "new", "json", "help", "version", "config"}

// settle fills in the flags that were not given: environment, then file
// (flag > env > file > default).
func (a *App) settle(root, cmd *cobra.Command) error {
	file, err := a.readFile(root, cmd)
	if err != nil {
		return err
	}
	var first error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if first != nil || f.Changed || slices.Contains(flagOnly, f.Name) {
			return
		}
		key := a.Prefix + "_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v, ok := a.Getenv(key); ok {
			if err := setFlag(cmd, f, strings.Split(strings.TrimRight(v, "\n"), "\n"), v); err != nil {
				first = Usage("%s: %w", key, err)
			}
			return
		}
		if s, ok := file[f.Name]; ok {
			if err := setFlag(cmd, f, s.list, s.text); err != nil {
				first = Usage("%s: %s: %w", s.at, f.Name, err)
			}
		}
	})
	return first
}

// setFlag sets a flag from a value that may be a list.
func setFlag(cmd *cobra.Command, f *pflag.Flag, list []string, text string) error {
	if s, ok := f.Value.(pflag.SliceValue); ok {
		f.Changed = true
		return s.Replace(list)
	}
	if len(list) > 1 {
		return fmt.Errorf("one value is wanted, not %d", len(list))
	}
	return cmd.Flags().Set(f.Name, text)
}

// fileSetting is one entry of the file with its place, for errors.
type fileSetting struct {
	list []string
	text string
	at   string
}

// readFile reads the file of --config. Its keys are the flags of any command of
// the program, so that one file serves them all; others are errors.
func (a *App) readFile(root, cmd *cobra.Command) (map[string]fileSetting, error) {
	path, _ := cmd.Flags().GetString("config")
	if path == "" {
		path, _ = a.Getenv(a.Prefix + "_CONFIG")
	}
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, Usage("settings: %w", err)
	}
	parsed, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, Usage("settings: %s: %w", path, err)
	}
	known := map[string]bool{}
	collectFlags(root, known)
	out := map[string]fileSetting{}
	for _, doc := range parsed.Docs {
		for _, pair := range pairs(doc.Body) {
			pos := pair.Key.GetToken().Position
			at := fmt.Sprintf("%s:%d:%d", path, pos.Line, pos.Column)
			name := pair.Key.GetToken().Value
			if !known[name] {
				return nil, Usage("settings: %s: unknown key %q", at, name)
			}
			s, err := settingOf(pair.Value)
			if err != nil {
				return nil, Usage("settings: %s: %s: %w", at, name, err)
			}
			if _, twice := out[name]; twice {
				return nil, Usage("settings: %s: %s is set twice", at, name)
			}
			s.at = at
			out[name] = s
		}
		if doc.Body != nil && len(pairs(doc.Body)) == 0 && doc.Body.Type() != ast.NullType && doc.Body.Type() != ast.MappingType {
			pos := doc.Body.GetToken().Position
			return nil, Usage("settings: %s:%d:%d: the file must hold lines of the form `name: value`", path, pos.Line, pos.Column)
		}
	}
	return out, nil
}

func pairs(n ast.Node) []*ast.MappingValueNode {
	switch v := n.(type) {
	case *ast.MappingNode:
		return v.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{v}
	}
	return nil
}

// settingOf takes a scalar or a list of scalars.
func settingOf(n ast.Node) (fileSetting, error) {
	if seq, ok := n.(*ast.SequenceNode); ok {
		var s fileSetting
		for _, v := range seq.Values {
			text, err := scalar(v)
			if err != nil {
				return s, err
			}
			s.list = append(s.list, text)
		}
		s.text = strings.Join(s.list, "\n")
		return s, nil
	}
	text, err := scalar(n)
	return fileSetting{list: []string{text}, text: text}, err
}

func scalar(n ast.Node) (string, error) {
	switch n.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.LiteralNode:
		if l, ok := n.(*ast.LiteralNode); ok {
			return l.Value.Value, nil
		}
		return n.GetToken().Value, nil
	}
	return "", fmt.Errorf("a value or a list of values is wanted")
}

func collectFlags(cmd *cobra.Command, into map[string]bool) {
	add := func(f *pflag.Flag) {
		if !slices.Contains(flagOnly, f.Name) {
			into[f.Name] = true
		}
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.PersistentFlags().VisitAll(add)
	for _, c := range cmd.Commands() {
		collectFlags(c, into)
	}
}
