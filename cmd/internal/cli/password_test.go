package cli_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"opencode-mesh/auth"
	"opencode-mesh/cmd/internal/cli"
)

func passwordFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ask runs work, which takes a password, and returns it.
func (p *program) ask(t *testing.T, code int, twice bool, args ...string) string {
	t.Helper()
	var got auth.Secret
	p.work = func(cmd *cobra.Command) (err error) {
		got, err = p.app.Password(cmd, twice)
		return err
	}
	p.want(t, code, append([]string{"work"}, args...))
	return got.Reveal()
}

// typist answers prompts.
func (p *program) typist(answers ...string) *int {
	asked := new(int)
	p.app.StdinTerminal = true
	p.app.ReadPassword = func() (string, error) {
		*asked++
		if len(answers) == 0 {
			return "", errors.New("nobody types")
		}
		a := answers[0]
		answers = answers[1:]
		return a, nil
	}
	return asked
}

func TestThePasswordComesFromFileThenVariableThenPrompt(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		p := newProgram("MESH_PASSWORD=from env")
		asked := p.typist("typed")
		if got := p.ask(t, 0, false, "--password-file", passwordFile(t, "from file \r\nsecond line\n")); got != "from file " || *asked != 0 {
			t.Errorf("got %q, asked %d times", got, *asked)
		}
	})
	t.Run("file named by a variable", func(t *testing.T) {
		p := newProgram("MESHX_PASSWORD_FILE=" + passwordFile(t, "from file"))
		if got := p.ask(t, 0, false); got != "from file" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("variable", func(t *testing.T) {
		p := newProgram("MESH_PASSWORD=from env")
		asked := p.typist("typed")
		if got := p.ask(t, 0, true); got != "from env" || *asked != 0 {
			t.Errorf("got %q, asked %d times", got, *asked)
		}
	})
	t.Run("prompt", func(t *testing.T) {
		p := newProgram()
		asked := p.typist("typed")
		if got := p.ask(t, 0, false); got != "typed" || *asked != 1 {
			t.Errorf("got %q, asked %d times", got, *asked)
		}
		if p.out.Len() > 0 {
			t.Errorf("the prompt went to stdout: %q", p.out.String())
		}
	})
	t.Run("prompt for a new one, twice", func(t *testing.T) {
		p := newProgram()
		asked := p.typist("typed", "typed")
		if got := p.ask(t, 0, true); got != "typed" || *asked != 2 {
			t.Errorf("got %q, asked %d times", got, *asked)
		}
	})
}

func TestWithoutATerminalThereIsNoPrompt(t *testing.T) {
	p := newProgram()
	asked := p.typist("typed")
	p.app.StdinTerminal = false
	p.ask(t, cli.ExitUsage, false)
	if *asked != 0 {
		t.Error("it asked")
	}
	if says := p.err.String(); !strings.Contains(says, "MESH_PASSWORD") || !strings.Contains(says, "--password-file") {
		t.Errorf("it does not say what to do: %s", says)
	}
}

func TestUnusablePasswordsAreErrorsOfUsage(t *testing.T) {
	t.Run("empty variable", func(t *testing.T) {
		p := newProgram("MESH_PASSWORD=")
		asked := p.typist("typed")
		p.ask(t, cli.ExitUsage, false)
		if *asked != 0 {
			t.Error("it asked")
		}
	})
	t.Run("empty first line", func(t *testing.T) {
		newProgram().ask(t, cli.ExitUsage, false, "--password-file", passwordFile(t, "\nsecret\n"))
	})
	t.Run("endless first line", func(t *testing.T) {
		newProgram().ask(t, cli.ExitUsage, false, "--password-file", passwordFile(t, strings.Repeat("x", 65<<10)))
	})
	t.Run("missing file", func(t *testing.T) {
		newProgram().ask(t, cli.ExitUsage, false, "--password-file", "/nowhere")
	})
	t.Run("nothing typed", func(t *testing.T) {
		p := newProgram()
		p.typist("")
		p.ask(t, cli.ExitUsage, false)
	})
	t.Run("two that differ", func(t *testing.T) {
		p := newProgram()
		p.typist("typed-one", "typed-two")
		p.ask(t, cli.ExitUsage, true)
		if strings.Contains(p.err.String(), "typed-") {
			t.Errorf("a password was repeated: %s", p.err.String())
		}
	})
	t.Run("terminal that closes", func(t *testing.T) {
		p := newProgram()
		p.typist()
		p.ask(t, cli.ExitUsage, false)
	})
}
