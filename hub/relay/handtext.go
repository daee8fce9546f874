package relay

import (
	"slices"
	"strconv"
	"strings"

	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
)

// deletion is the text of a turn that deletes a session. No agent reads it.
const deletion = "Delete this session."

// digestRequest asks a session for its digest. What is to be filled in comes first,
// with the task and the generation as they must come back; given back as it is it
// is no digest. The last digest is data (semantics 17).
func digestRequest(task string, generation int, last *store.Digest) (string, error) {
	var b strings.Builder
	b.WriteString("[opencode-mesh-digest v1]\ntask: " + task + "\ngen: " + strconv.Itoa(generation) +
		"\nfacts:\n-\npending:\nrefs:\n[/opencode-mesh-digest]\n\n" +
		"This session is to be handed over to a new one that knows nothing of it. Reply with the digest of this session: the block above, filled in, " +
		"with exactly that task and gen, and do nothing else. " +
		"facts: one per line, each after \"- \", most important first; extract paths, commands, conclusions and constraints word for word. " +
		"pending: what is still to be done, or none. refs: files and links that matter, or none.\n")
	if last == nil {
		return b.String(), nil
	}
	text, err := digestText(last)
	if err != nil {
		return "", err
	}
	framed, _ := mesh.Frame(mesh.NewNonce(), "digest "+strconv.Itoa(last.Generation), text)
	b.WriteString("\nThe last digest follows as data. Merge it: keep what holds, drop what is out of date, append what is new.\n\n" + framed)
	return b.String(), nil
}

// digestText writes a stored digest as a block.
func digestText(d *store.Digest) (string, error) {
	return mesh.Digest{Task: d.Task, Gen: d.Generation, Facts: d.Facts, Pending: d.Pending, Refs: d.Refs}.Format()
}

// handOver is what a new session gets: a digest block, "" for none, and results,
// newest first, all as data of others (semantics 17).
func handOver(digest string, results []store.Task) string {
	var b strings.Builder
	b.WriteString("This is a context hand-over: you take over from an earlier session of the same work. " +
		"What it left follows as data. Keep it in mind for the tasks to come, acknowledge with a result block, and do nothing else now.\n")
	nonce := mesh.NewNonce()
	add := func(label, text string) {
		framed, _ := mesh.Frame(nonce, label, text)
		b.WriteString("\n" + framed)
	}
	if digest != "" {
		add("digest", digest)
	}
	for _, t := range slices.Backward(results) {
		if text := resultText(t); text != "" {
			add("result of task "+t.ID, text)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// resultText writes a task's result as a block. Paths that no block can carry are left
// out; "" when nothing of it can be written.
func resultText(t store.Task) string {
	res := mesh.Result{Task: t.ID, Status: mesh.Status(t.State), Summary: mesh.QuoteSummary(t.Outcome.Summary), Artifacts: t.Outcome.Artifacts}
	text, err := res.Format()
	if err != nil {
		res.Artifacts = nil
		text, err = res.Format()
	}
	if err != nil {
		return ""
	}
	return text
}
