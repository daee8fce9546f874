package ocp

import "strings"

// Family is a protocol: what comes before the first dot of a version.
type Family uint8

const (
	// FamilyOCP is ocp/1.
	FamilyOCP Family = 1 << iota
	// FamilyContextgraph is contextgraph/1, the successor of ocp/1.
	FamilyContextgraph
)

// Versions that are written here.
const (
	VersionOCP               = "ocp/1.0-draft"
	VersionContextgraph      = "contextgraph/1.0"
	VersionContextgraphDraft = "contextgraph/1.0-draft"
)

// majors names the families as versions do.
const (
	majorOCP          = "ocp/1"
	majorContextgraph = "contextgraph/1"
)

// String is the family as its versions name it, "ocp/1" for example.
func (f Family) String() string {
	switch f {
	case FamilyOCP:
		return majorOCP
	case FamilyContextgraph:
		return majorContextgraph
	default:
		return "no protocol"
	}
}

// Version is the version that is sent to a peer of a family that has not said more.
func (f Family) Version() string {
	if f == FamilyContextgraph {
		return VersionContextgraph
	}
	return VersionOCP
}

// major is the text before the first dot, or the whole where there is none.
func major(version string) string {
	before, _, _ := strings.Cut(version, ".")
	return before
}

// FamilyOf returns the family of a version. It is false for one that is not spoken
// here. As between the peers themselves, only the text before the first dot counts.
func FamilyOf(version string) (Family, bool) {
	switch major(version) {
	case majorOCP:
		return FamilyOCP, true
	case majorContextgraph:
		return FamilyContextgraph, true
	default:
		return 0, false
	}
}

// Compatible reports whether two versions are of one family. The syntax is not looked
// at: any two texts that are equal up to their first dot are compatible.
func Compatible(a, b string) bool { return major(a) == major(b) }

// Answer is the version with which a provider answers a host's: the host's own where
// its family is spoken, so that each host finds its family, else VersionOCP, from
// which the host learns of the mismatch by name. What is returned always keeps to the
// grammar of versions.
func Answer(hostVersion string) string {
	family, ok := FamilyOf(hostVersion)
	switch {
	case !ok:
		return VersionOCP
	case validVersion(hostVersion, family):
		return hostVersion
	default:
		return family.Version()
	}
}

// frozen reports whether a version is one of the successor after its freeze, which
// keeps kinds of frames that it does not know.
func frozen(version string) bool {
	family, ok := FamilyOf(version)
	return ok && family == FamilyContextgraph && version != VersionContextgraphDraft
}

// validVersion reports whether a version keeps to the grammar
// family/MAJOR.MINOR[-draft] of a family.
func validVersion(version string, f Family) bool {
	minor, ok := strings.CutPrefix(version, f.String()+".")
	if !ok {
		return false
	}
	minor = strings.TrimSuffix(minor, "-draft")
	return minor != "" && strings.Trim(minor, "0123456789") == ""
}
