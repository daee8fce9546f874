//go:build browser

package dashboard

import (
	"os"
	"path/filepath"
	"testing"

	"opencode-mesh/test/fleet"
)

// parrot is an agent that says what its task tells it to: the lines between SAY and END,
// or, once its question was answered, those between THEN and END; {task} is the id.
const parrot = `in=$(sed -n '/^\[opencode-mesh v1\]/,$p')
task=$(printf '%s\n' "$in" | sed -n 's/^task: *//p' | head -n 1)
from=SAY
case "$in" in *"Answer to your question ("*) from=THEN ;; esac
printf '%s\n' "$in" | sed -n "/^$from\$/,/^END\$/p" | sed '1d;$d' | sed "s/{task}/$task/g"
`

func parrots(t *testing.T) fleet.NodeOption {
	t.Helper()
	script := filepath.Join(t.TempDir(), "parrot.sh")
	if err := os.WriteFile(script, []byte(parrot), 0o600); err != nil {
		t.Fatal(err)
	}
	return fleet.Args("--agent", "command", "--", "/bin/sh", script)
}

// ending is a reply with a block in it, for a task of the parrot.
func ending(before, status, summary, artifacts string) string {
	return before + "[opencode-mesh-result v1]\ntask: {task}\nstatus: " + status + "\nsummary: " + summary + "\nartifacts: " + artifacts + "\n[/opencode-mesh-result]"
}

func say(reply string) string { return "SAY\n" + reply + "\nEND" }

// asking is a task that asks first.
func asking(question, options, reply string) string {
	return "SAY\n[opencode-mesh-question v1]\ntask: {task}\nquestion: " + question + "\noptions: " + options + "\n[/opencode-mesh-question]\nEND\nTHEN\n" + reply + "\nEND"
}
