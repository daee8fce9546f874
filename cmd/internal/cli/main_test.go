package cli_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"opencode-mesh/cmd/internal/cli"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is a small command line with flags of every type. Its work command notes
// what the flags were.
type program struct {
	app      *cli.App
	out, err bytes.Buffer
	work     func(cmd *cobra.Command) error

	name  string
	list  []string
	count int
	wait  time.Duration
	loud  bool
}

func newProgram(env ...string) *program {
	p := &program{}
	p.app = &cli.App{Prefix: "MESHX", Env: env, Stdin: strings.NewReader(""), Stdout: &p.out, Stderr: &p.err, HardExit: func(int) {}}
	return p
}

func (p *program) run(args ...string) int { return p.runCtx(context.Background(), args...) }

func (p *program) runCtx(ctx context.Context, args ...string) int {
	root := &cobra.Command{Use: "meshx", Example: "  meshx work"}
	work := &cobra.Command{Use: "work", Short: "Work", Example: "  meshx work", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		f := cmd.Flags()
		p.name, _ = f.GetString("name")
		p.list, _ = f.GetStringArray("list")
		p.count, _ = f.GetInt("max-count")
		p.wait, _ = f.GetDuration("wait")
		p.loud, _ = f.GetBool("loud")
		if p.work != nil {
			return p.work(cmd)
		}
		return nil
	}}
	f := work.Flags()
	f.String("name", "nobody", "")
	f.StringArray("list", []string{"one"}, "")
	f.Int("max-count", 3, "")
	f.Duration("wait", time.Second, "")
	f.Bool("loud", false, "")
	f.String("id", "", "")
	f.Bool("new", false, "")
	f.Bool("yes", false, "")
	cli.JSONFlag(work)
	cli.PasswordFlag(work)
	group := &cobra.Command{Use: "group", Short: "Group", Example: "  meshx group list"}
	group.AddCommand(&cobra.Command{Use: "list", Short: "List", Example: "  meshx group list", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
	other := &cobra.Command{Use: "other", Short: "Other", Example: "  meshx other", Args: cobra.ExactArgs(1), RunE: func(*cobra.Command, []string) error { return nil }}
	other.Flags().String("elsewhere", "", "")
	root.AddCommand(work, group, other)
	return p.app.Run(ctx, root, args)
}

// want fails unless the command line ends with a code and says texts on stderr.
func (p *program) want(t *testing.T, code int, args []string, texts ...string) {
	t.Helper()
	if got := p.run(args...); got != code {
		t.Fatalf("%v: exit code %d, want %d: %s", args, got, code, p.err.String())
	}
	for _, text := range texts {
		if !strings.Contains(p.err.String(), text) {
			t.Errorf("%v: stderr lacks %q: %s", args, text, p.err.String())
		}
	}
}
