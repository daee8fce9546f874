package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// settle fills in the flags that were not given: environment, then file
// (flag > env > file > default). A variable that is empty counts as not set, as
// container files write those that nobody filled in.
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
		if v, _ := a.Getenv(key); v != "" {
			if err := setFlag(cmd, f, lines(v)); err != nil {
				first = Usage("%s: %w", key, err)
			}
			return
		}
		if s, ok := file[f.Name]; ok {
			if err := setFlag(cmd, f, s.values); err != nil {
				first = Usage("settings: %s: %s: %w", s.at, f.Name, err)
			}
		}
	})
	return first
}

// lines splits the value of a variable: one element per line.
func lines(v string) []string {
	var out []string
	for line := range strings.Lines(v) {
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			out = append(out, line)
		}
	}
	return out
}

// setFlag sets a flag to a value, or a list flag to some.
func setFlag(cmd *cobra.Command, f *pflag.Flag, values []string) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		f.Changed = true
		return list.Replace(values)
	}
	if len(values) != 1 {
		return fmt.Errorf("one value is wanted, not %d", len(values))
	}
	return cmd.Flags().Set(f.Name, values[0])
}

// fileSetting is one entry of the file with its place, for errors.
type fileSetting struct {
	values []string
	at     string // file:line:column
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
		if !isMapping(doc.Body) {
			pos := doc.Body.GetToken().Position
			return nil, Usage("settings: %s:%d:%d: the file must hold lines of the form `name: value`", path, pos.Line, pos.Column)
		}
	}
	return out, nil
}

// isMapping accepts an empty document too.
func isMapping(n ast.Node) bool {
	if n == nil {
		return true
	}
	switch n.Type() {
	case ast.MappingType, ast.MappingValueType, ast.NullType, ast.CommentType:
		return true
	}
	return false
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
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		text, err := scalar(n)
		return fileSetting{values: []string{text}}, err
	}
	var s fileSetting
	for _, v := range seq.Values {
		text, err := scalar(v)
		if err != nil {
			return s, err
		}
		s.values = append(s.values, text)
	}
	return s, nil
}

func scalar(n ast.Node) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, nil
	}
	return "", errors.New("a value or a list of values is wanted")
}
