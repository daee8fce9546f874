package adopt

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"opencode-mesh/node/agent"
)

const (
	// maxResolved is how many words of one request are followed as links of the file
	// system.
	maxResolved = 64
	// maxRead is how long a text of a request may be, in bytes; a longer one counts as
	// protected.
	maxRead = 64 << 10
	// maxName is how much of a part of a path is compared, in bytes: no file has more.
	maxName = 255
)

// protectedNames are files and directories that a peer's turn does not touch without a
// person, as globs on one part of a path.
var protectedNames = []string{
	"agents.md", "claude.md", // what agents are told
	"opencode.json", "opencode.jsonc", ".opencode",
	".env", ".env.*", ".env-*", ".env_*", ".*rc", "_netrc",
	".ssh", ".aws", ".gnupg", ".kube", ".docker",
	"id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".pgpass", ".htpasswd",
	".profile", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".zprofile", ".zshenv", ".zlogin", ".zlogout",
	"config.fish", "profile.d", "bash.bashrc", "zshrc", "rc.local",
	"launchagents", "launchdaemons", "autostart",
	"crontab", "cron.*", "sudoers", "sudoers.d", "sudo", "doas", "pkexec",
}

// protectedWords are protected wherever they stand.
var protectedWords = []string{
	"credential", "secret", "permission", "launchagent", "launchdaemon", "crontab", "sudoers",
	"config/opencode", "systemd/user", "systemd/system",
}

var (
	classes = regexp.MustCompile(`\[[^\]\s]*\]`)
	braces  = regexp.MustCompile(`\{[^}\s]*\}`)
)

// protected says whether a request touches what only a person allows. It reads the words of
// the request as well as it can, and no better: whatever a shell makes of variables,
// substitutions or programs is not seen. It keeps honest peers from accidents and is no
// boundary.
func protected(q agent.Request, dir string) bool {
	if touches(q.Permission) {
		return true
	}
	resolved := 0
	for _, text := range append(append([]string{}, q.Patterns...), q.Details...) {
		if touches(text) {
			return true
		}
		for _, word := range words(text) {
			if resolved++; resolved > maxResolved {
				break
			}
			if target := follow(dir, word); target != "" && touches(target) {
				return true
			}
		}
	}
	return false
}

// touches looks at a text in the ways that it may be meant.
func touches(text string) bool {
	if len(text) > maxRead {
		return true
	}
	text = strings.ToLower(text)
	forms := []string{text}
	if plain, err := url.PathUnescape(text); err == nil && plain != text {
		forms = append(forms, plain)
	}
	for _, f := range forms {
		// A backslash parts the names of a path or quotes what follows.
		for _, form := range []string{strings.ReplaceAll(f, `\`, "/"), strings.ReplaceAll(f, `\`, "")} {
			if named(form) {
				return true
			}
		}
	}
	return false
}

func named(text string) bool {
	text = strings.NewReplacer(`"`, "", "'", "").Replace(text)
	for _, w := range protectedWords {
		if strings.Contains(text, w) {
			return true
		}
	}
	// Whatever stands for several characters is read as a glob.
	text = braces.ReplaceAllString(classes.ReplaceAllString(text, "?"), "*")
	for _, word := range words(text) {
		for _, name := range strings.Split(word, "/") {
			if strings.HasSuffix(name, ".env") {
				return true
			}
			if strings.ContainsAny(name, "*?") && !specific(name) {
				continue
			}
			for _, p := range protectedNames {
				if overlap(p, name) {
					return true
				}
			}
		}
	}
	return false
}

// specific says whether a glob is meant for certain names. Every request of opencode ends
// in a "*" for whatever else may stand there, and a glob that does not begin with a dot
// means no hidden file.
func specific(glob string) bool {
	literal := len(strings.NewReplacer("*", "", "?", "").Replace(glob))
	return glob[0] == '.' || literal >= 2 && glob[0] != '*' && glob[0] != '?'
}

// overlap says whether a name can be what two globs mean.
func overlap(a, b string) bool {
	if !strings.ContainsAny(a+b, "*?") {
		return a == b
	}
	b = b[:min(len(b), maxName)]
	// can[j] says whether the first i bytes of a and the first j of b can be one name.
	can := make([]bool, len(b)+1)
	for i := 0; i <= len(a); i++ {
		next := make([]bool, len(b)+1)
		for j := 0; j <= len(b); j++ {
			star := func(s string, n int) bool { return n > 0 && s[n-1] == '*' }
			switch {
			case i == 0 && j == 0:
				next[j] = true
			case i > 0 && star(a, i) && can[j], j > 0 && star(b, j) && next[j-1]:
				next[j] = true // the star is nothing
			case i > 0 && j > 0 && star(a, i):
				next[j] = next[j-1]
			case i > 0 && j > 0 && star(b, j):
				next[j] = can[j]
			case i > 0 && j > 0:
				next[j] = can[j-1] && (a[i-1] == b[j-1] || a[i-1] == '?' || b[j-1] == '?')
			}
		}
		can = next
	}
	return can[len(b)]
}

// words are the parts of a text that may be paths.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool {
		return r <= ' ' || strings.ContainsRune("=:,;|&<>()`\"'", r)
	})
}

// follow is where a path of this machine leads, "" if it is none that is there.
func follow(dir, word string) string {
	if rest, ok := strings.CutPrefix(word, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		word = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(word) {
		word = filepath.Join(dir, word)
	}
	for _, path := range []string{word, filepath.Dir(word)} {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if rel, err := filepath.Rel(path, real); err == nil && rel == "." {
				return "" // no link
			}
			return real
		}
	}
	return ""
}
