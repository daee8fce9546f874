package install

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/node/opencomms/pins"
)

// at is the clock of the tests.
var at = time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)

// project makes a project that has a state file and some others.
func project(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write(".opencomms/state.json", "{}")
	for name, text := range files {
		write(name, text)
	}
	return dir
}

func request(dir, host, id string) Request {
	return Request{Project: dir, Host: host, ID: id, Command: "/opt/bin/meshnode", Now: func() time.Time { return at }}
}

// install must work.
func install(t *testing.T, r Request) Result {
	t.Helper()
	res, err := Install(r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// tree is every file of a directory with its content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			name, _ := filepath.Rel(dir, path)
			out[filepath.ToSlash(name)] = string(data)
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// goldens are what is written for each host, DIR standing for the project.
var goldens = map[string]struct{ file, text, start string }{
	"opencode": {"opencode.json", `{
  "$schema": "https://opencode.ai/config.json",
  "mcp": {
    "opencomms": {
      "type": "local",
      "command": [
        "/opt/bin/meshnode",
        "mcp",
        "--project",
        "DIR",
        "--host",
        "opencode"
      ],
      "environment": {
        "OPENCOMMS_MEMBER_ID": "builder"
      },
      "enabled": true
    }
  }
}
`, `OPENCODE_CONFIG_CONTENT='{"mcp":{"opencomms":{"type":"local","command":["/opt/bin/meshnode","mcp","--project","DIR","--host","opencode"],"environment":{"OPENCOMMS_MEMBER_ID":"builder"},"enabled":true}}}' opencode`},
	"claude-code": {".mcp.json", `{
  "mcpServers": {
    "opencomms": {
      "type": "stdio",
      "command": "/opt/bin/meshnode",
      "args": [
        "mcp",
        "--project",
        "DIR",
        "--host",
        "claude-code"
      ],
      "env": {
        "OPENCOMMS_MEMBER_ID": "builder"
      }
    }
  }
}
`, `claude --mcp-config '{"mcpServers":{"opencomms":{"type":"stdio","command":"/opt/bin/meshnode","args":["mcp","--project","DIR","--host","claude-code"],"env":{"OPENCOMMS_MEMBER_ID":"builder"}}}}'`},
	"codex": {".codex/config.toml", `[mcp_servers.opencomms]
command = "/opt/bin/meshnode"
args = ["mcp", "--project", "DIR", "--host", "codex"]

[mcp_servers.opencomms.env]
OPENCOMMS_MEMBER_ID = "builder"
`, `codex -c 'mcp_servers.opencomms.env.OPENCOMMS_MEMBER_ID="builder"'`},
}

func TestEachHostGetsItsConfigurationAndThePin(t *testing.T) {
	if len(goldens) != len(Hosts()) {
		t.Errorf("%v are known, and %d have a golden", Hosts(), len(goldens))
	}
	for name, want := range goldens {
		t.Run(name, func(t *testing.T) {
			dir := project(t, nil)
			res := install(t, request(dir, name, "builder"))
			plain := func(s string) string { return strings.ReplaceAll(s, dir, "DIR") }
			files := tree(t, dir)
			if diff := cmp.Diff(want.text, plain(files[want.file])); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			pin := "{\n  \"member_id\": \"builder\",\n  \"host\": \"" + name + "\",\n  \"saved_at\": 1796032800000\n}"
			if diff := cmp.Diff(pin, files[".opencomms/pins/builder.json"]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if len(files) != 3 {
				t.Errorf("got %v", files)
			}
			if diff := cmp.Diff(want.start, plain(res.Start)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if res.Config != Written || res.Backup != "" || res.ConfigFile != filepath.Join(dir, want.file) || res.Entry != files[want.file] {
				t.Errorf("got %+v", res)
			}
			if info, err := os.Stat(res.PinFile); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
				t.Errorf("got %v, %v", info.Mode(), err)
			}
			t.Run("again changes nothing", func(t *testing.T) {
				if res := install(t, request(dir, name, "builder")); res.Config != Unchanged {
					t.Errorf("got %+v", res)
				}
				if diff := cmp.Diff(files, tree(t, dir)); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
			t.Run("removing takes it back", func(t *testing.T) {
				res, err := Remove(dir, "builder", at)
				if err != nil || res.Host != name || res.ConfigFile == "" || res.Reason != "" {
					t.Fatalf("got %+v, %v", res, err)
				}
				files := tree(t, dir)
				if strings.Contains(files[want.file], "opencomms") || len(files) != 3 { // state, configuration, backup
					t.Errorf("got %v", files)
				}
				if _, err := Remove(dir, "builder", at); !errors.Is(err, ErrNotPinned) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

func TestAnIDIsMintedOnlyForAHostWithoutAMember(t *testing.T) {
	dir := project(t, nil)
	res := install(t, request(dir, "opencode", ""))
	if !regexp.MustCompile(`^sess_[0-9a-f]{24}$`).MatchString(res.MemberID) {
		t.Errorf("got %s", res.MemberID)
	}
	before := tree(t, dir)
	if _, err := Install(request(dir, "opencode", "")); !errors.Is(err, ErrPinned) || !strings.Contains(err.Error(), res.MemberID) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if other := install(t, request(dir, "codex", "")); other.MemberID == res.MemberID {
		t.Error("two hosts have one id")
	}
}

func TestWhatIsNoMemberIsRefusedAndNothingWritten(t *testing.T) {
	dir := project(t, nil)
	install(t, request(dir, "codex", "taken"))
	before := tree(t, dir)
	for _, r := range []Request{
		request(dir, "opencode", "../x"), request(dir, "opencode", "_x"), request(dir, "opencode", strings.Repeat("x", 65)),
		request(dir, "opencode", "operator"), request(dir, "opencode", "taken"), request(dir, "../x", "x"), request(dir, "", "x"),
	} {
		if res, err := Install(r); err == nil {
			t.Errorf("%+v was installed: %+v", r, res)
		}
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := Install(request(t.TempDir(), "opencode", "x")); !errors.Is(err, ErrNoState) {
		t.Errorf("got %v", err)
	}
}

func TestAnExistingConfigurationIsMergedAndKept(t *testing.T) {
	const jsonc = "{\n\t// the model\n\t\"model\": \"stub/x\", /* why */\n\t\"mcp\": {\n\t\t\"docs\": { \"type\": \"remote\", \"url\": \"https://x/{y}\" }, // docs\n\t},\n}\n"
	dir := project(t, map[string]string{"opencode.jsonc": jsonc})
	res := install(t, request(dir, "opencode", "builder"))
	if res.ConfigFile != filepath.Join(dir, "opencode.jsonc") || read(t, dir, "opencode.jsonc.20261130-100000.bak") != jsonc {
		t.Errorf("got %+v", res)
	}
	got := read(t, dir, "opencode.jsonc")
	at := strings.Index(got, "\n\t\t\"opencomms\": {")
	if at < 0 || got[:at] != jsonc[:strings.Index(jsonc, "\n\t},")] || !strings.HasSuffix(got, "\n\t\t},\n\t},\n}\n") {
		t.Errorf("got %s", got)
	}
	if info, err := os.Stat(res.ConfigFile); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o640 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if _, err := Remove(dir, "builder", time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(jsonc, read(t, dir, "opencode.jsonc")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if read(t, dir, "opencode.jsonc.20261130-100000-1.bak") != got {
		t.Error("the second copy is not what was there")
	}
}

func TestAnEntryOfOursIsBroughtUpToDateWithWhatIsSetInIt(t *testing.T) {
	for name, c := range map[string]struct{ host, file, text, want string }{
		"JSON": {
			"claude-code", ".mcp.json",
			"{\"mcpServers\": {\n  \"opencomms\": {\n    \"command\": \"/old/meshnode\",\n    \"timeout\": 5,\n    \"args\": [\"mcp\"]\n  }\n}}",
			"{\"mcpServers\": {\n  \"opencomms\": {\n    \"command\": \"/opt/bin/meshnode\",\n    \"timeout\": 5,\n    \"args\": [\n      \"mcp\",\n      \"--project\",\n      \"DIR\",\n      \"--host\",\n      \"claude-code\"\n    ],\n    \"env\": {\n      \"OPENCOMMS_MEMBER_ID\": \"builder\"\n    }\n  }\n}}",
		},
		"TOML": {
			"codex", ".codex/config.toml",
			"[mcp_servers.opencomms]\ncommand = 'C:\\bin\\meshnode.exe'\nargs = [\"mcp\"]\nstartup_timeout_sec = 5\nenv.OPENCOMMS_MEMBER_ID = \"gone\"\n\n[b]\nx = 1\n",
			"",
		},
		"TOML with a table": {
			"codex", ".codex/config.toml",
			"[mcp_servers.opencomms]\ncommand = 'C:\\bin\\meshnode.exe'\nargs = [\"mcp\"]\nstartup_timeout_sec = 5\nenv_vars = []\n\n[mcp_servers.opencomms.env]\nOPENCOMMS_MEMBER_ID = \"gone\"\nX = \"1\"\n",
			"[mcp_servers.opencomms]\ncommand = \"/opt/bin/meshnode\"\nargs = [\"mcp\", \"--project\", \"DIR\", \"--host\", \"codex\"]\nstartup_timeout_sec = 5\nenv_vars = []\n\n[mcp_servers.opencomms.env]\nOPENCOMMS_MEMBER_ID = \"builder\"\nX = \"1\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := project(t, map[string]string{c.file: c.text})
			res := install(t, request(dir, c.host, "builder"))
			got := strings.ReplaceAll(read(t, dir, c.file), dir, "DIR")
			if c.want == "" { // a form that is not edited
				if res.Config != ByHand || got != c.text {
					t.Errorf("got %+v\n%s", res, got)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" || res.Config != Written {
				t.Errorf("%+v; -want +got:\n%s", res, diff)
			}
		})
	}
}

func TestAnotherMembersEntryIsLeftAndTheCommandToStartThisOneGiven(t *testing.T) {
	for _, name := range Hosts() {
		dir := project(t, nil)
		install(t, request(dir, name, "first"))
		before := read(t, dir, goldens[name].file)
		res := install(t, request(dir, name, "second"))
		if res.Config != OtherMember || !strings.Contains(res.Start, "second") || read(t, dir, goldens[name].file) != before {
			t.Errorf("%s: got %+v", name, res)
		}
		if list, err := pins.List(dir); err != nil || len(list) != 2 {
			t.Errorf("%s: got %v, %v", name, list, err)
		}
		r := request(dir, name, "second")
		r.Replace = true
		if res := install(t, r); res.Config != Written || !strings.Contains(read(t, dir, goldens[name].file), `"second"`) {
			t.Errorf("%s: got %+v", name, res)
		}
		// The entry is the second's now: removing the first leaves it.
		if res, err := Remove(dir, "first", at); err != nil || res.ConfigFile != "" {
			t.Errorf("%s: got %+v, %v", name, res, err)
		}
	}
}

func TestAnEntryThatStartsAnotherProgramIsLeftUnlessItIsToBeReplaced(t *testing.T) {
	const theirs = `{"mcpServers":{"opencomms":{"command":"node","args":["opencomms-mcp.mjs"]},"b":{"command":"x"}}}`
	dir := project(t, map[string]string{".mcp.json": theirs})
	res := install(t, request(dir, "claude-code", "builder"))
	if res.Config != ByHand || !strings.Contains(res.Reason, "node opencomms-mcp.mjs") || read(t, dir, ".mcp.json") != theirs {
		t.Errorf("got %+v", res)
	}
	r := request(dir, "claude-code", "builder")
	r.Replace = true
	if res = install(t, r); res.Config != Written || read(t, dir, ".mcp.json.20261130-100000.bak") != theirs {
		t.Errorf("got %+v", res)
	}
	wantIn(t, read(t, dir, ".mcp.json"), `"b":{"command":"x"}`, "/opt/bin/meshnode", "builder")
}

func TestALinkToAConfigurationStaysOne(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // links need a right there
	}
	dir := project(t, map[string]string{"dotfiles/mcp.json": "{}"})
	link := filepath.Join(dir, ".mcp.json")
	if err := os.Symlink(filepath.Join("dotfiles", "mcp.json"), link); err != nil {
		t.Fatal(err)
	}
	install(t, request(dir, "claude-code", "builder"))
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("got %v, %v", info, err)
	}
	wantIn(t, read(t, dir, "dotfiles/mcp.json"), "builder")
}

func wantIn(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in %s", p, text)
		}
	}
}

func TestAFileThatCannotBeReadIsLeftAndWhatToAddIsSaid(t *testing.T) {
	for file, host := range map[string]string{"opencode.json": "opencode", ".mcp.json": "claude-code", ".codex/config.toml": "codex"} {
		const broken = "{\n  \"a\": [1,\n"
		dir := project(t, map[string]string{file: broken})
		res := install(t, request(dir, host, "builder"))
		if res.Config != ByHand || !strings.Contains(res.Reason, "line ") || !strings.Contains(res.Reason, filepath.Base(file)) {
			t.Errorf("got %+v", res)
		}
		wantIn(t, res.Entry, "/opt/bin/meshnode", "builder", dir)
		if files := tree(t, dir); files[file] != broken || len(files) != 3 {
			t.Errorf("got %v", files)
		}
		if res, err := Remove(dir, "builder", at); err != nil || res.Reason == "" || read(t, dir, file) != broken {
			t.Errorf("got %+v, %v", res, err)
		}
	}
	t.Run("also when it holds something else than tables", func(t *testing.T) {
		dir := project(t, map[string]string{"opencode.json": `{"mcp": null}`})
		if res := install(t, request(dir, "opencode", "builder")); res.Config != ByHand || read(t, dir, "opencode.json") != `{"mcp": null}` {
			t.Errorf("got %+v", res)
		}
	})
	t.Run("also when TOML lets no table be added", func(t *testing.T) {
		for text, says := range map[string]string{
			"mcp_servers = { a = { command = \"x\" } }\n":          "mcp_servers is set by a key",
			"mcp_servers.a.command = \"x\"\n":                      "mcp_servers is set by a key",
			"mcp_servers = { a = { command = \"x\" } } # c\n[b]\n": "mcp_servers is set by a key",
			"[a]\nb = 1\n[a]\nc = 1\n":                             "line 3",
			"a = { b = 1 }\n[a.c]\n":                               "line 2",
		} {
			dir := project(t, map[string]string{".codex/config.toml": text})
			res := install(t, request(dir, "codex", "builder"))
			if res.Config != ByHand || !strings.Contains(res.Reason, says) || read(t, dir, ".codex/config.toml") != text {
				t.Errorf("%q: got %+v", text, res)
			}
			wantIn(t, res.Entry, "[mcp_servers.opencomms]")
		}
	})
	t.Run("also when the host would read another path in it", func(t *testing.T) {
		r := request(project(t, nil), "claude-code", "builder")
		r.Command = "/opt/${X}/meshnode"
		if res := install(t, r); res.Config != ByHand || !strings.Contains(res.Reason, "${") {
			t.Errorf("got %+v", res)
		}
	})
}

func TestAnUnknownHostIsPinnedAndToldWhatToAdd(t *testing.T) {
	dir := project(t, nil)
	res := install(t, request(dir, "gemini-cli", ""))
	if res.Config != ByHand || res.ConfigFile != "" || res.Start != "" {
		t.Errorf("got %+v", res)
	}
	wantIn(t, res.Entry, `"mcpServers"`, `"--host"`, "gemini-cli", res.MemberID)
	if list, err := pins.List(dir); err != nil || len(list) != 1 || list[0].Host != "gemini-cli" {
		t.Errorf("got %v, %v", list, err)
	}
}

func TestADryRunWritesNothing(t *testing.T) {
	for _, name := range Hosts() {
		dir := project(t, nil)
		before := tree(t, dir)
		r := request(dir, name, "builder")
		r.DryRun = true
		if res := install(t, r); res.Config != Written || res.Entry == "" {
			t.Errorf("got %+v", res)
		}
		if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}
