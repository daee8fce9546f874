// Package docs holds the documentation to the code: every test, constant, error
// code, route and field that a page names must be there and mean what the page
// says, and every one that a page has to name must be on it. What pages explain in
// words is not checked.
package docs

import (
	"go/ast"
	"go/build"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// root is the top of the tree, seen from this package.
const root = "../.."

// read returns a file of the tree.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// source is what the checks know of the Go files of one directory.
type source struct {
	funcs map[string][]*ast.FuncDecl // by name, methods of all types among them
	texts map[string]bool            // string literals, unquoted
}

// sources parses every Go file of the tree once, whatever its build constraints,
// and returns it by directory, as in "hub/relay".
var sources = sync.OnceValues(func() (map[string]source, error) {
	out := map[string]source{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != root || d.Name() == "node_modules" || d.Name() == "bin"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(rel)
		if out[dir].funcs == nil {
			out[dir] = source{funcs: map[string][]*ast.FuncDecl{}, texts: map[string]bool{}}
		}
		out[dir].add(f)
		return nil
	})
	return out, err
})

func (s source) add(f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			s.funcs[n.Name.Name] = append(s.funcs[n.Name.Name], n)
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				s.texts[text] = true
			}
		}
		return true
	})
}

func allSources(t *testing.T) map[string]source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// checker evaluates the constants of packages of this module. Only the names that
// they are made of are resolved: of the standard library the units of time, of
// other modules nothing.
type checker struct {
	fset *token.FileSet
	pkgs map[string]*types.Package
}

func newChecker() *checker {
	return &checker{fset: token.NewFileSet(), pkgs: map[string]*types.Package{"time": unitsOfTime()}}
}

// unitsOfTime is as much of package time as constants need.
func unitsOfTime() *types.Package {
	p := types.NewPackage("time", "time")
	name := types.NewTypeName(token.NoPos, p, "Duration", nil)
	duration := types.NewNamed(name, types.Typ[types.Int64], nil)
	p.Scope().Insert(name)
	for unit, ns := range map[string]int64{
		"Nanosecond": 1, "Microsecond": 1e3, "Millisecond": 1e6, "Second": 1e9, "Minute": 60e9, "Hour": 3600e9,
	} {
		p.Scope().Insert(types.NewConst(token.NoPos, p, unit, duration, constant.MakeInt64(ns)))
	}
	p.MarkComplete()
	return p
}

// Import implements types.Importer.
func (c *checker) Import(name string) (*types.Package, error) {
	if p := c.pkgs[name]; p != nil {
		return p, nil
	}
	dir, ours := strings.CutPrefix(name, "opencode-mesh/")
	if !ours {
		p := types.NewPackage(name, path.Base(name))
		p.MarkComplete()
		c.pkgs[name] = p
		return p, nil
	}
	full := filepath.Join(root, filepath.FromSlash(dir))
	entries, err := os.ReadDir(full)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		if match, err := build.Default.MatchFile(full, e.Name()); err != nil || !match {
			continue
		}
		f, err := parser.ParseFile(c.fset, filepath.Join(full, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	// What cannot be resolved is of no interest here.
	conf := types.Config{Importer: c, IgnoreFuncBodies: true, Error: func(error) {}}
	p, _ := conf.Check(name, c.fset, files, nil)
	c.pkgs[name] = p
	return p, nil
}

// constants returns the constants of a package of this module by name.
func (c *checker) constants(t *testing.T, dir string) map[string]*types.Const {
	t.Helper()
	p, err := c.Import("opencode-mesh/" + dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*types.Const{}
	for _, name := range p.Scope().Names() {
		if v, ok := p.Scope().Lookup(name).(*types.Const); ok && v.Val().Kind() != constant.Unknown {
			out[name] = v
		}
	}
	return out
}

// rows returns the cells of every table row of a Markdown page whose header row
// begins with the given cells, without the header.
func rows(page string, header ...string) [][]string {
	var out [][]string
	inside := false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) >= len(header) && slices.Equal(cells[:len(header)], header):
			inside = true
		case inside && !strings.HasPrefix(cells[0], "---"):
			out = append(out, cells)
		}
	}
	return out
}

var span = regexp.MustCompile("`([^`\n]+)`")

// spans returns what stands between backquotes in a text.
func spans(text string) []string {
	var out []string
	for _, m := range span.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// pages are the Markdown files of the tree that people read.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{"README.md": read(t, "README.md"), "CONTRIBUTING.md": read(t, "CONTRIBUTING.md")}
	list, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list {
		name = "docs/" + filepath.Base(name)
		out[name] = read(t, name)
	}
	return out
}

// same compares two sets and names what one of them lacks.
func same[D, R any](t *testing.T, what string, documented map[string]D, real map[string]R) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(documented)) {
		if _, ok := real[name]; !ok {
			t.Errorf("%s %s is documented and not there", what, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(real)) {
		if _, ok := documented[name]; !ok {
			t.Errorf("%s %s is not documented", what, name)
		}
	}
}
