package e2e

import (
	"strings"
	"testing"

	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

func TestTheFillHasItsColours(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	f.Node("alpha", using(server))
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	for _, c := range []struct{ usage, want string }{
		{"USAGE:118000,0", "ctx 59%"},
		{"USAGE:120000,0", "\x1b[33mctx 60%"},
		{"USAGE:158000,0", "\x1b[33mctx 79%"},
		{"USAGE:160000,0", "\x1b[31mctx 80%"},
	} {
		for _, args := range [][]string{{"dispatch", "alpha", "--", c.usage}, {"nodes"}, {"session", "list"}} {
			p := ctl.Terminal(args...)
			if code := p.Wait(); code != 0 {
				t.Errorf("%v: exit %d", args, code)
			}
			eventually(t, strings.Join(args, " ")+" shows "+c.want, func() bool { return strings.Contains(p.Output(), c.want) })
			if strings.Contains(p.Output(), "mctx") != strings.HasPrefix(c.want, "\x1b") {
				t.Errorf("%v paints %q, want %q", args, p.Output(), c.want)
			}
		}
	}
}
