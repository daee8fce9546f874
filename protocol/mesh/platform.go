package mesh

import "strings"

// Platform is a machine's operating system and architecture in Go's spelling,
// such as "windows/amd64"; "" when unknown. The spelling of an env tag
// ("win32/x64") is understood too.
type Platform string

const unknownPart = "?"

// nodeOS and nodeArch hold the names of process.platform and process.arch for
// Go's; what node.js does not know is left out and becomes "?".
var (
	nodeOS = map[string]string{
		"windows": "win32", "win32": "win32", "linux": "linux", "darwin": "darwin", "android": "android",
		"freebsd": "freebsd", "openbsd": "openbsd", "netbsd": "netbsd", "aix": "aix",
		"solaris": "sunos", "illumos": "sunos", "sunos": "sunos",
	}
	nodeArch = map[string]string{
		"amd64": "x64", "x64": "x64", "386": "ia32", "ia32": "ia32", "arm64": "arm64", "arm": "arm",
		"loong64": "loong64", "mips": "mips", "mipsle": "mipsel", "mipsel": "mipsel",
		"ppc64": "ppc64", "ppc64le": "ppc64", "riscv64": "riscv64", "s390x": "s390x",
	}
)

// Tag returns the platform in node.js spelling: "win32/x64", "linux/?" when half
// of it is unknown, "?" when all of it is.
func (p Platform) Tag() string {
	goos, goarch, _ := strings.Cut(string(p), "/")
	name, known := nodeOS[strings.ToLower(goos)]
	if !known {
		name = unknownPart
	}
	arch, knownArch := nodeArch[strings.ToLower(goarch)]
	if !knownArch {
		arch = unknownPart
	}
	if !known && !knownArch {
		return unknownPart
	}
	return name + "/" + arch
}

// EnvTag returns the value of an envelope's env key, such as
// "s=win32/x64 r=linux/x64".
func EnvTag(sender, receiver Platform) string {
	return "s=" + sender.Tag() + " r=" + receiver.Tag()
}
