package adopt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/node/agent"
)

func TestWhatIsProtectedIsRecognisedHoweverItIsSpelled(t *testing.T) {
	for text, want := range map[string]bool{
		// plain
		"AGENTS.md": true, "docs/agents.MD": true, "CLAUDE.md": true,
		"opencode.json": true, "opencode.jsonc": true, ".opencode/agent/x.md": true, "/home/u/.config/opencode/config.json": true,
		".env": true, ".ENV": true, "app/.env.local": true, "prod.env": true, ".envrc": true,
		"aws-credentials.txt": true, "client_secret.json": true, ".git-credentials": true, ".netrc": true, ".npmrc": true,
		"~/.ssh/config": true, "$HOME/.aws/x": true, "/root/.gnupg": true, "/home/u/.kube/config": true, ".docker/config.json": true,
		".bashrc": true, ".zshrc": true, ".zshenv": true, ".profile": true, "/etc/profile.d/x.sh": true, "~/.config/fish/config.fish": true,
		"/Users/u/Library/LaunchAgents/x.plist": true, "~/.config/autostart/x.desktop": true, "~/.config/systemd/user/x.service": true,
		"crontab -e": true, "/etc/cron.d/x": true, "/etc/sudoers": true, "sudo ls": true, "doas ls": true,
		`opencode run --permission '{"*":"allow"}'`: true, "OPENCODE_PERMISSION=x opencode": true,
		// paths
		"./x/../.env": true, "a//.ssh//id": true, ".ssh/../.ssh/x": true, `C:\Users\u\.ssh\id`: true, "file:///home/u/%2essh/x": true,
		// quotes and shells
		`cat ".env"`: true, `cat '.env'`: true, `cat .e"n"v`: true, `cat .e'n'v`: true, `cat \.env`: true, `cat .e\nv`: true,
		"cat<.env": true, "x=1;cat .env|sh": true, "cat `ls .env`": true, "$(cat .env)": true, "--file=.env": true, "command: cat .env": true,
		// globs
		"cat .e*": true, "cat .en?": true, "cat .[e]nv": true, "cat .{env,x}": true, "cat .*": true, "ls ~/.s*h/*": true, "AGENT?.md": true,
		"cat ~/.ss[h]/id": true, "id_rs*": true,
		// what is not
		"git push *": false, "npm test": false, "/etc/*": false, "src/**/*.go": false, "cat /etc/hostname": false, "*": false, "**": false,
		"src/environment.go": false, "docs/rc.md": false, "sshd.md": false, "cat *": false, "/tmp/work/*": false, "go test ./...": false,
		".github/workflows/ci.yml": false, "docker compose up": false, "pseudo": false, "": false, "src*": false, "cd opencode && make": false,
	} {
		if got := protected(agent.Request{Permission: "bash", Patterns: []string{text}}, t.TempDir()); got != want {
			t.Errorf("%q: protected %v", text, got)
		}
		if got := protected(agent.Request{Permission: "bash", Details: []string{"command: " + text}}, t.TempDir()); got != want {
			t.Errorf("%q, as a detail: protected %v", text, got)
		}
	}
	if !protected(agent.Request{Permission: "permission_config"}, "/") {
		t.Error("a permission about permissions is not protected")
	}
	if !protected(agent.Request{Permission: "bash", Patterns: []string{strings.Repeat("x ", maxRead)}}, "/") {
		t.Error("what is too long to be read is not protected")
	}
}

func TestALinkToWhatIsProtectedIsProtected(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"keys": ".ssh", "other": "plain"} {
		if err := os.Symlink(filepath.Join(dir, target), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]bool{
		"keys": true, "cat keys/new": true, "./x/../keys": true, filepath.Join(dir, "keys"): true, `cat "keys"`: true,
		"plain": false, "other": false, "nothing": false,
	} {
		if got := protected(agent.Request{Patterns: []string{text}}, dir); got != want {
			t.Errorf("%q: protected %v", text, got)
		}
	}
}

// FuzzProtected looks for texts that take it long or make it panic.
func FuzzProtected(f *testing.F) {
	for _, s := range []string{"cat .e*", "a*b*c*?*d", `\`, "%zz", "[", "{", "//", ".*.*.*.*.*.*rc"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, text string) { protected(agent.Request{Patterns: []string{text}}, "/") })
}
