package command

import (
	"runtime"
	"strings"
)

// TokenVariable carries the lineage token of a task to its program (semantics 20).
const TokenVariable = "MESH_TASK_TOKEN"

// meshPrefix begins every variable of the mesh: passwords, directories, flags.
const meshPrefix = "MESH"

// childEnv is env without the mesh's variables and with the task's token.
func childEnv(env []string, token string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !isMeshVariable(kv) {
			out = append(out, kv)
		}
	}
	if token != "" {
		out = append(out, TokenVariable+"="+token)
	}
	return out
}

func isMeshVariable(kv string) bool {
	if len(kv) < len(meshPrefix) {
		return false
	}
	if runtime.GOOS == "windows" { // names have no case there
		return strings.EqualFold(kv[:len(meshPrefix)], meshPrefix)
	}
	return strings.HasPrefix(kv, meshPrefix)
}
