package relay

import (
	"encoding/hex"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

// maxFileProblem bounds what a node says is wrong with a path, in bytes.
const maxFileProblem = 128

// hiddenName is what is wrong with a path that is not kept as its node wrote it: the
// node would find nothing under the name that is kept.
const hiddenName = "its name has characters that cannot be shown"

// tidyFiles keeps what a node says of the artifacts that are kept, in their order, and
// none of what it says of others.
func tidyFiles(paths []string, files []api.Artifact) []api.Artifact {
	said := make(map[string]api.Artifact, len(paths))
	for _, f := range files[:min(len(files), api.MaxArtifacts)] {
		name := mesh.CleanLine(f.Path)
		if name != f.Path {
			f = api.Artifact{Problem: hiddenName}
		}
		if _, twice := said[name]; !twice {
			said[name] = f
		}
	}
	var out []api.Artifact
	for _, p := range paths {
		f, ok := said[p]
		if !ok {
			continue
		}
		kept := api.Artifact{Path: p, Size: max(f.Size, 0), Problem: shown.Line(f.Problem, maxFileProblem)}
		if sum, err := hex.DecodeString(f.SHA256); err == nil && len(sum) == 32 {
			kept.SHA256 = hex.EncodeToString(sum)
		}
		out = append(out, kept)
	}
	return out
}
