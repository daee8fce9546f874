package peers

import (
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf16"
)

// maxDefaultName is how much of a directory's name a default name takes, in UTF-16 units.
const maxDefaultName = 27

// DefaultName is how a process in a directory is called that has no name of its own: after
// the directory, with the end of its process id.
func DefaultName(directory, processID string) string {
	base := filepath.Base(directory)
	if directory == "" || base == string(filepath.Separator) {
		base = "opencode"
	}
	if units := utf16.Encode([]rune(base)); len(units) > maxDefaultName {
		base = string(utf16.Decode(units[:maxDefaultName]))
	}
	return base + "-" + processID[max(0, len(processID)-4):]
}

var (
	validName = regexp.MustCompile(`^[A-Za-z0-9 _-]{1,32}$`)
	processID = regexp.MustCompile(`^[0-9a-f]{8}$`)
	idLike    = regexp.MustCompile(`^(session|workspace)-[A-Za-z0-9][A-Za-z0-9_-]*$`)
)

// ValidName says whether a person may give this name to a process. Names that come from
// configuration or from others may be anything.
func ValidName(name string) bool { return validName.MatchString(name) }

// IDLike says whether the target of a message is meant as an id and never as a name.
func IDLike(target string) bool { return idLike.MatchString(target) }

// ProcessIDLike says whether an endpoint is a whole process: that of a peer of version 1.
func ProcessIDLike(endpoint string) bool { return processID.MatchString(endpoint) }

// meshSoftware begins the plugin version of what a node of the mesh publishes.
const meshSoftware = "opencode-mesh/"

// MeshSoftware is the plugin version of what a node publishes, by its own version.
func MeshSoftware(version string) string { return meshSoftware + version }

// OfMesh says whether a plugin version is one of MeshSoftware.
func OfMesh(pluginVersion string) bool { return strings.HasPrefix(pluginVersion, meshSoftware) }

// Cut leaves at most n bytes of a text, no part of a character and nothing that is no UTF-8.
func Cut(s string, n int) string { return strings.ToValidUTF8(s[:min(n, len(s))], "") }

// Safe is an id as part of a file's name: whatever is no ASCII letter, digit, "-" or "_"
// is a "_", once for each UTF-16 unit.
func Safe(id string) string {
	var b strings.Builder
	for _, r := range id {
		switch {
		case r == '-' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z':
			b.WriteRune(r)
		case r > 0xFFFF:
			b.WriteString("__")
		default:
			b.WriteByte('_')
		}
	}
	return b.String()
}

// SameDirectory says whether two directories are the same by their text, as PolicyAuto
// compares them: links are not followed, and what is not absolute is never the same.
func SameDirectory(a, b string) bool {
	return filepath.IsAbs(a) && filepath.Clean(a) == filepath.Clean(b)
}
