package docs

import (
	"go/ast"
	"strings"
	"testing"
)

// TestEveryPackageLooksForGoroutinesThatItLeavesBehind looks at those with tests that are
// not of programs as a whole, which are below test.
func TestEveryPackageLooksForGoroutinesThatItLeavesBehind(t *testing.T) {
	seen := 0
	for dir, src := range allSources(t) {
		tested := false
		for name := range src.funcs {
			tested = tested || strings.HasPrefix(name, "Test") && len(name) > 4 && name[4] >= 'A' && name[4] <= 'Z'
		}
		if !tested || strings.HasPrefix(dir, "test/") {
			continue
		}
		seen++
		if !looksForLeaks(src.funcs["TestMain"]) {
			t.Errorf("%s has no TestMain that looks for goroutines: give it a main_test.go like that of tunnel", dir)
		}
	}
	if seen < 40 {
		t.Errorf("only %d packages were looked at", seen)
	}
}

// looksForLeaks reports whether one of these uses goleak, or the main of the commands'
// tests or of those with a fleet beside them, which do.
func looksForLeaks(mains []*ast.FuncDecl) bool {
	found := false
	for _, f := range mains {
		ast.Inspect(f, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && (id.Name == "goleak" || id.Name == "clitest") {
				found = true
			}
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Verify" {
				of, ok := sel.X.(*ast.Ident)
				found = found || ok && of.Name == "fleet"
			}
			return true
		})
	}
	return found
}
