package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func (m *Main) artifact() *cobra.Command {
	cmd := &cobra.Command{Use: "artifact", Short: "Fetch the files that results name", Example: "  meshctl artifact list laptop-m5x2k9-7f3q"}
	cmd.AddCommand(m.artifactList(), m.artifactGet())
	return cmd
}

func (m *Main) artifactList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list TASK", Short: "List the files that a task's result names", Example: "  meshctl artifact list laptop-m5x2k9-7f3q --json", Args: oneID,
		Long: "Lists the files that a task's result names, with size and hash as they were when the task ended.",
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			list, err := c.Artifacts(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return cli.List(m.app, cmd, list, "SIZE\tSHA256\tPATH", func(a api.Artifact) string {
				return fmt.Sprintf("%s\t%s\t%s", artifactSize(a), shortHash(a), cli.Or(a.Path))
			})
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

// artifactSize is a file's size, or what is wrong with it.
func artifactSize(a api.Artifact) string {
	if a.Problem != "" {
		return cli.Or(a.Problem)
	}
	return byteSize(a.Size)
}

// shortHash is enough of a hash to compare files by eye.
func shortHash(a api.Artifact) string {
	const digits = 12
	h := mesh.CleanLine(a.SHA256)
	return cli.Or(h[:min(len(h), digits)])
}

func (m *Main) artifactGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get TASK [PATH]", Short: "Fetch one of these files, or all", Example: "  meshctl artifact get laptop-m5x2k9-7f3q out/report.html -o report.html",
		Long: "Fetches a file that a task's result names from its node, or all of them below a directory. A broken transfer goes on where it was. The file must be the one that was there when the task ended; --changed takes it as it is now. What is named by the agent and not by you overwrites nothing unless --force says so.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return cli.Usage("name a task id, and one of its paths or none for all; meshctl artifact list shows them")
			}
			return oneID(cmd, args[:1])
		},
		RunE: m.with(m.runArtifactGet),
	}
	f := cmd.Flags()
	f.StringP("output", "o", "", "file or directory to write to, - for stdout (default: here, under its own name)")
	f.Bool("changed", false, "take a file that changed since the task ended")
	f.Bool("force", false, "overwrite files")
	return cmd
}

func (m *Main) runArtifactGet(cmd *cobra.Command, args []string, c *client.Client) error {
	out, _ := cmd.Flags().GetString("output")
	if out == "-" && len(args) == 1 {
		return cli.Usage("-o - takes one file: name its path")
	}
	list, err := c.Artifacts(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	g := &getter{m: m, c: c, ctx: cmd.Context(), task: args[0]}
	g.changed, _ = cmd.Flags().GetBool("changed")
	g.force, _ = cmd.Flags().GetBool("force")
	if len(args) == 1 {
		return g.all(list, out)
	}
	i := slices.IndexFunc(list, func(a api.Artifact) bool { return a.Path == args[1] })
	if i < 0 {
		return cli.Usage("the result of %s names no %s; see meshctl artifact list %s", args[0], cli.Or(args[1]), args[0])
	}
	return g.one(list[i], out)
}

// one fetches a file to where the person said.
func (g *getter) one(a api.Artifact, out string) error {
	if out == "-" {
		return g.stream(a)
	}
	at, err := os.Stat(out)
	if err == nil && !at.IsDir() && !at.Mode().IsRegular() {
		return g.into(out, a)
	}
	var dir, name string
	if out == "" || err == nil && at.IsDir() {
		local, err := localPath(a.Path)
		if err != nil {
			return err
		}
		dir, name = out, filepath.Base(local)
	} else {
		if os.IsPathSeparator(out[len(out)-1]) {
			return fmt.Errorf("there is no directory %s", cli.Or(out))
		}
		if real, err := filepath.EvalSymlinks(out); err == nil {
			out = real // the link stays one
		}
		dir, name = filepath.Split(filepath.Clean(out))
		g.force = true // the person named this very file
	}
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return g.save(root, name, a)
}

// all fetches every file to its own path below a directory. One that cannot be had
// does not keep the others away.
func (g *getter) all(list []api.Artifact, dir string) error {
	if dir == "" {
		dir = "."
	}
	if len(list) == 0 {
		fmt.Fprintln(g.m.app.Stderr, "the result names no files")
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // whatever the paths are, nothing is written outside of it
	if err != nil {
		return err
	}
	defer root.Close()
	failed := false
	for _, a := range list {
		name, err := localPath(a.Path)
		if err == nil {
			err = g.save(root, name, a)
		}
		var refusal *api.Error
		switch {
		case err == nil:
		case errors.Is(err, client.ErrUnreachable), g.ctx.Err() != nil,
			errors.As(err, &refusal) && refusal.Code != api.CodeNotFound:
			return err // neither will the others come
		default:
			failed = true
			fmt.Fprintf(g.m.app.Stderr, "%s: %v\n", cli.Or(a.Path), err)
		}
	}
	if failed {
		return cli.Exit(cli.ExitNotDone, nil)
	}
	return nil
}

// localPath makes the path of a file at its node one below a directory here,
// whatever system the node has.
func localPath(p string) (string, error) {
	p = strings.ReplaceAll(p, `\`, "/")
	if len(p) > 1 && p[1] == ':' {
		p = p[2:] // a drive
	}
	local, err := filepath.Localize(strings.TrimPrefix(path.Clean("/"+p), "/"))
	if err != nil || local == "." || local == "" {
		return "", fmt.Errorf("%s cannot be the name of a file here; give another with -o", cli.Or(p))
	}
	return local, nil
}
