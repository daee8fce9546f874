package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// settings writes a file for --config.
func settings(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagBeatsVariableBeatsFileBeatsDefault(t *testing.T) {
	file := settings(t, "name: from-file\nmax-count: 30\nwait: 3m\n")
	for _, c := range []struct {
		what string
		env  []string
		args []string
		want string
	}{
		{"default", nil, []string{"work"}, "nobody"},
		{"file", nil, []string{"work", "--config", file}, "from-file"},
		{"variable over file", []string{"MESHX_NAME=from-env"}, []string{"work", "--config", file}, "from-env"},
		{"flag over all", []string{"MESHX_NAME=from-env"}, []string{"work", "--config", file, "--name", "from-flag"}, "from-flag"},
		{"flag set to its default", []string{"MESHX_NAME=from-env"}, []string{"work", "--name", "nobody"}, "nobody"},
		{"file named by a variable", []string{"MESHX_CONFIG=" + file}, []string{"work"}, "from-file"},
		{"empty variable is not set", []string{"MESHX_NAME="}, []string{"work", "--config", file}, "from-file"},
		{"last of two", []string{"MESHX_NAME=a", "MESHX_NAME=b"}, []string{"work"}, "b"},
		{"other program's variable", []string{"MESHY_NAME=from-env"}, []string{"work"}, "nobody"},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := newProgram(c.env...)
			p.want(t, 0, c.args)
			if p.name != c.want {
				t.Errorf("name is %q, want %q", p.name, c.want)
			}
		})
	}
}

func TestEveryTypeOfFlagIsSetByVariableAndFile(t *testing.T) {
	check := func(t *testing.T, p *program) {
		t.Helper()
		if p.count != 7 || p.wait != 90*time.Second || !p.loud || !slices.Equal(p.list, []string{"a b", "c"}) {
			t.Errorf("got count %d, wait %s, loud %v, list %q", p.count, p.wait, p.loud, p.list)
		}
	}
	t.Run("by variables, lists separated by newlines", func(t *testing.T) {
		p := newProgram("MESHX_MAX_COUNT=7", "MESHX_WAIT=1m30s", "MESHX_LOUD=true", "MESHX_LIST=a b\nc\n")
		p.want(t, 0, []string{"work"})
		check(t, p)
	})
	t.Run("by a file", func(t *testing.T) {
		p := newProgram()
		p.want(t, 0, []string{"work", "--config", settings(t, "# ours\nmax-count: 7\nwait: \"1m30s\" # long\nloud: true\nlist:\n  - a b\n  - 'c'\n")})
		check(t, p)
	})
	t.Run("a list of one as a plain value", func(t *testing.T) {
		p := newProgram()
		p.want(t, 0, []string{"work", "--config", settings(t, "list: x=y\n")})
		if !slices.Equal(p.list, []string{"x=y"}) {
			t.Errorf("got %q", p.list)
		}
	})
	t.Run("a list that is given replaces the default", func(t *testing.T) {
		p := newProgram("MESHX_LIST=two")
		p.want(t, 0, []string{"work", "--list", "three", "--list", "four"})
		if !slices.Equal(p.list, []string{"three", "four"}) {
			t.Errorf("got %q", p.list)
		}
	})
}

func TestOneFileServesAllCommandsOfAProgram(t *testing.T) {
	p := newProgram()
	p.want(t, 0, []string{"work", "--config", settings(t, "elsewhere: x\nname: y\nlog-level: warn\n")})
	if p.name != "y" {
		t.Errorf("name is %q", p.name)
	}
}

func TestAnEmptyFileIsFine(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing yet\n", "---\n", "{}\n"} {
		p := newProgram()
		p.want(t, 0, []string{"work", "--config", settings(t, text)})
	}
}

func TestBadSettingsSayWhere(t *testing.T) {
	for _, c := range []struct {
		what, text string
		says       []string
	}{
		{"unknown key", "name: a\n\n  \n# x\nnmae: b\n", []string{"mesh.yaml:5:1", `unknown key "nmae"`}},
		{"unknown key in braces", "{name: a, nmae: b}\n", []string{"mesh.yaml:1:11", `unknown key "nmae"`}},
		{"key given twice", "name: a\nname: b\n", []string{"2:1", "name"}},
		{"wrong type", "name: a\nmax-count: many\n", []string{"mesh.yaml:2:1", "max-count", "many"}},
		{"list for a single value", "name: [a, b]\n", []string{"mesh.yaml:1:1", "one value is wanted, not 2"}},
		{"map for a value", "name:\n  first: a\n", []string{"mesh.yaml:1:1", "a value or a list"}},
		{"nothing for a value", "name:\n", []string{"mesh.yaml:1:1", "a value or a list"}},
		{"map in a list", "list:\n  - a: b\n", []string{"mesh.yaml:1:1", "a value or a list"}},
		{"no mapping", "- name\n", []string{"mesh.yaml:1:1", "name: value"}},
		{"just a word", "name\n", []string{"mesh.yaml:1:1", "name: value"}},
		{"broken", "name: [a\n", []string{"mesh.yaml"}},
		{"flag for the command line only", "id: x\n", []string{"mesh.yaml:1:1", `unknown key "id"`}},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := newProgram()
			p.want(t, 2, []string{"work", "--config", settings(t, c.text)}, c.says...)
		})
	}
	t.Run("missing file", func(t *testing.T) {
		newProgram().want(t, 2, []string{"work", "--config", "/nowhere.yaml"}, "/nowhere.yaml")
	})
	t.Run("bad variable", func(t *testing.T) {
		newProgram("MESHX_WAIT=soon").want(t, 2, []string{"work"}, "MESHX_WAIT", "soon")
		newProgram("MESHX_NAME=a\nb").want(t, 2, []string{"work"}, "MESHX_NAME", "one value is wanted")
	})
}

func TestFlagsOfOneCallAreNotSettableElsewhere(t *testing.T) {
	p := newProgram("MESHX_ID=from-env", "MESHX_JSON=true", "MESHX_YES=true", "MESHX_NEW=true", "MESHX_HELP=true")
	p.work = func(cmd *cobra.Command) error {
		for _, name := range []string{"id", "json", "yes", "new", "help"} {
			if cmd.Flags().Changed(name) {
				t.Errorf("--%s was set", name)
			}
		}
		return nil
	}
	p.want(t, 0, []string{"work"})
	for _, key := range []string{"id: a", "yes: true", "new: true", "json: true", "config: b"} {
		newProgram().want(t, 2, []string{"work", "--config", settings(t, key+"\n")}, "unknown key")
	}
}
