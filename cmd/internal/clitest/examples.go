package clitest

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Examples checks that the help of every command of root shows an example, and that
// each is a command line which that command takes.
func Examples(tb testing.TB, root *cobra.Command) {
	tb.Helper()
	var ran *cobra.Command
	var stub func(cmd *cobra.Command)
	stub = func(cmd *cobra.Command) {
		if cmd.Runnable() {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { ran = cmd; return nil }
		}
		for _, c := range cmd.Commands() {
			stub(c)
		}
	}
	stub(root)
	root.SilenceErrors, root.SilenceUsage = true, true
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		lines := strings.Split(strings.Trim(cmd.Example, "\n"), "\n")
		if cmd.Example == "" || len(lines) != 1 {
			tb.Errorf("%s: the help must show one example, and shows %q", cmd.CommandPath(), cmd.Example)
		}
		args := words(lines[0])
		if len(args) == 0 || args[0] != root.Name() {
			tb.Errorf("%s: %q is no command line of %s", cmd.CommandPath(), lines[0], root.Name())
			return
		}
		ran = nil
		root.SetArgs(args[1:])
		if err := root.Execute(); err != nil {
			tb.Errorf("%s: the example %q fails: %v", cmd.CommandPath(), lines[0], err)
		}
		if ran == nil || cmd.Runnable() && ran != cmd || !strings.HasPrefix(ran.CommandPath(), cmd.CommandPath()) {
			tb.Errorf("%s: the example %q runs %v", cmd.CommandPath(), lines[0], ran)
		}
		for _, c := range cmd.Commands() {
			if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
				check(c)
			}
		}
	}
	check(root)
}

// words splits a line as a shell would, as far as examples go that far: quotes,
// variables before the command and redirections after it.
func words(line string) []string {
	var out []string
	quoted := false
	for _, field := range strings.FieldsFunc(line, func(r rune) bool {
		if r == '\'' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	}) {
		out = append(out, strings.ReplaceAll(field, "'", ""))
	}
	for i, w := range out {
		if w == "<" || w == ">" {
			out = out[:i]
			break
		}
	}
	for len(out) > 0 && strings.Contains(out[0], "=") {
		out = out[1:]
	}
	return out
}
