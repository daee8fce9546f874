package docs

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// programs are the commands whose lines are checked.
var programs = []string{"meshhub", "meshnode", "meshctl"}

// commandLine is a program at the place of a command, in a line of a code block or
// between backquotes, and what stands behind it up to what the shell would end it
// with.
var commandLine = regexp.MustCompile(`(?:^|&& |sudo -u \S+ )\s*(?:[A-Z_]+=\S+ )*(?:\S*/)?(meshhub|meshnode|meshctl)((?: [^\n|&;#>]*)?)`)

var quoted = regexp.MustCompile(`'[^']*'|"[^"]*"`)

func TestEveryCommandLineOnAPageIsOneThatTheProgramsTake(t *testing.T) {
	uses, flags := map[string][]string{}, map[string]map[string]bool{}
	for _, p := range programs {
		uses[p] = useWords(t, "cmd/"+p)
		flags[p] = flagNames(t, "cmd/"+p)
		maps.Copy(flags[p], flagNames(t, "cmd/internal/cli"))
		for _, name := range []string{"help", "version"} {
			flags[p][name] = true
		}
	}
	for page, text := range pages(t) {
		for _, line := range commandLines(text) {
			for _, m := range commandLine.FindAllStringSubmatch(line, -1) {
				checkCommand(t, page, m[1], m[2], uses[m[1]], flags[m[1]])
			}
		}
	}
}

// commandLines are the lines of a page in which a command is one to be typed.
func commandLines(text string) []string {
	var out []string
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			inside = !inside
		case inside:
			out = append(out, line)
		default:
			out = append(out, spans(line)...)
		}
	}
	return out
}

func checkCommand(t *testing.T, page, program, rest string, uses []string, flags map[string]bool) {
	t.Helper()
	rest, _, _ = strings.Cut(quoted.ReplaceAllString(rest, "X"), " -- ")
	words := strings.Fields(rest)
	if len(words) == 0 || words[0] == "X" || !regexp.MustCompile(`^[a-z-]+$`).MatchString(words[0]) {
		return // a mention of the program
	}
	if !strings.HasPrefix(words[0], "-") && !slices.Contains(uses, words[0]) && words[0] != "completion" {
		t.Errorf("%s: %s has no command %s", page, program, words[0])
	}
	for _, w := range words {
		name, isFlag := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(strings.Trim(name, "[]…,.)"), "=")
		if isFlag && name != "" && !flags[name] {
			t.Errorf("%s: %s %s has no flag --%s", page, program, words[0], name)
		}
	}
}

// declared are all functions of a directory.
func declared(t *testing.T, dir string) []*ast.FuncDecl {
	t.Helper()
	var out []*ast.FuncDecl
	for _, list := range allSources(t)[dir].funcs {
		out = append(out, list...)
	}
	return out
}

// useWords are the first words of the Use lines in a directory.
func useWords(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	for _, f := range declared(t, dir) {
		ast.Inspect(f, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Use" {
				out = append(out, firstWord(kv.Value))
			}
			return true
		})
	}
	return out
}

func firstWord(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	word, _, _ := strings.Cut(text, " ")
	return word
}

// flagMethods are pflag's methods that define a flag whose name comes first.
var flagMethods = []string{"String", "StringP", "Bool", "BoolP", "Int", "Duration", "StringArray"}

// flagNames are the flags that a directory defines.
func flagNames(t *testing.T, dir string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, f := range declared(t, dir) {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 3 {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(flagMethods, sel.Sel.Name) {
				if name := firstWord(call.Args[0]); name != "" {
					out[name] = true
				}
			}
			return true
		})
	}
	return out
}

var makeTarget = regexp.MustCompile(`(?m)^([a-z-]+):`)

func TestEveryMakeTargetOnAPageIsThere(t *testing.T) {
	targets := map[string]bool{}
	for _, m := range makeTarget.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	typed := regexp.MustCompile(`(?:^|\s)make ([a-z-]+)`)
	for page, text := range pages(t) {
		for _, line := range commandLines(text) {
			for _, m := range typed.FindAllStringSubmatch(line, -1) {
				if !targets[m[1]] {
					t.Errorf("%s: there is no make target %s", page, m[1])
				}
			}
		}
	}
}
