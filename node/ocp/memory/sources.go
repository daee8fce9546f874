package memory

import (
	"fmt"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// titleWords is how much of a text a title has, in bytes.
const titleWords = 120

// resultItem is what is remembered of a task. What a query for context put below its words
// is not, nor where the answer repeats it: it is remembered where it is from, and would be
// quoted in quotes without end.
func resultItem(r *api.MemoryResult) Item {
	summary, reply := strings.TrimSpace(ocp.WithoutQuotes(r.Summary)), strings.TrimSpace(ocp.WithoutQuotes(r.Reply))
	asked := strings.TrimSpace(ocp.Unquoted(r.Text))
	subject := firstWords(asked, titleWords)
	if subject == "" {
		subject = firstWords(summary, titleWords)
	}
	if subject == "" {
		subject = "a task without words"
	}
	var b strings.Builder
	if asked != "" {
		fmt.Fprintf(&b, "Task: %s\n\n", strings.TrimSpace(ocp.Cut(asked, MaxContent/4)))
	}
	fmt.Fprintf(&b, "Result (%s): %s\n", r.State, summary)
	if reply != "" && reply != summary {
		fmt.Fprintf(&b, "\n%s\n", reply)
	}
	it := Item{
		ID: fromResult + brief(r.Task), Kind: ocp.KindEpisode,
		Title:   fmt.Sprintf("%s (%s, %s)", subject, between(r.Controller, r.Target), r.State),
		Label:   fmt.Sprintf("Task %s, %s: %s", between(r.Controller, r.Target), r.EndedAt.Format(time.DateOnly), ocp.Cut(subject, titleWords/2)),
		Content: ocp.Cut(ocp.Clean(b.String()), MaxContent), URI: "task:" + r.Task, Workspace: r.Workspace,
		Controller: r.Controller.ID, Target: r.Target.ID, ControllerName: r.Controller.Name, TargetName: r.Target.Name,
		At: r.EndedAt,
	}
	it.Provenance = []ocp.Provenance{{Type: "episode", URI: it.URI, Digest: ocp.Digest(it.Content), By: nameOf(r.Target)}}
	for _, a := range r.Artifacts {
		if len(it.Paths) == MaxPaths {
			break
		}
		it.Paths = append(it.Paths, a.Path)
		if len(it.Relations) < maxLinks {
			it.Relations = append(it.Relations, ocp.Relation{Rel: "produced", TargetURI: "file:" + a.Path, DisplayName: line("File " + a.Path)})
		}
	}
	return it
}

// digestID is unique over all bindings.
func digestID(d *api.MemoryDigest) string {
	return fmt.Sprintf("%s%s/%s/%s/%d", fromDigest, brief(d.Controller.ID), brief(d.Target.ID), brief(d.Workspace), d.Digest.Generation)
}

// digestItem is what is remembered of a digest: its facts hold until another digest takes
// their place.
func digestItem(d *api.MemoryDigest) Item {
	var b strings.Builder
	for _, fact := range d.Digest.Facts {
		fmt.Fprintf(&b, "- %s\n", fact)
	}
	for _, part := range []struct{ name, text string }{{"Pending", d.Digest.Pending}, {"References", d.Digest.Refs}} {
		if part.text != "" && part.text != "none" {
			fmt.Fprintf(&b, "%s: %s\n", part.name, part.text)
		}
	}
	where := between(d.Controller, d.Target)
	if d.Workspace != "" {
		where += ", workspace " + d.Workspace
	}
	it := Item{
		ID: digestID(d), Kind: ocp.KindFact,
		Title: fmt.Sprintf("What was established by %s (%s)", d.Digest.At.Format(time.DateOnly), where),
		Label: fmt.Sprintf("Digest %d of %s, %s", d.Digest.Generation, where, d.Digest.At.Format(time.DateOnly)), Content: ocp.Cut(ocp.Clean(b.String()), MaxContent),
		URI: "task:" + d.Digest.Task, Workspace: d.Workspace, Controller: d.Controller.ID, Target: d.Target.ID,
		ControllerName: d.Controller.Name, TargetName: d.Target.Name, At: d.Digest.At, ValidTo: d.ValidTo,
	}
	it.Provenance = []ocp.Provenance{{Type: "derivation", URI: it.URI, Digest: ocp.Digest(it.Content), Method: "digest", By: nameOf(d.Target)}}
	for ref := range strings.SplitSeq(d.Digest.Refs, ",") {
		if ref = strings.TrimSpace(ref); ref != "" && ref != "none" && len(it.Paths) < MaxPaths {
			it.Paths = append(it.Paths, ref)
		}
	}
	return it
}
