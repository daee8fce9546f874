package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
)

// getter fetches files of one task.
type getter struct {
	m       *Main
	c       *client.Client
	ctx     context.Context //nolint:containedctx // of the one command that it lives for
	task    string
	changed bool // take what changed since the task ended
	force   bool // overwrite
}

// errFileChanged is about a file that is not what the task left.
var errFileChanged = errors.New("changed since the task ended; --changed takes it as it is now")

// save fetches a file to a path below root. It is there whole or not at all.
func (g *getter) save(root *os.Root, name string, a api.Artifact) error {
	if !g.force {
		if _, err := root.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already; --force overwrites it, -o names another file", cli.Or(name))
		}
	}
	dir := filepath.Dir(name)
	if err := root.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	temp := filepath.Join(dir, ".meshctl-"+rand.Text())
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	n, err := g.copy(f, a)
	if err = errors.Join(err, f.Close()); err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		_ = root.Remove(temp)
		return err
	}
	fmt.Fprintf(g.m.app.Stderr, "saved %s (%s)\n", cli.Or(filepath.Join(root.Name(), name)), byteSize(n))
	return nil
}

// stream fetches a file to stdout.
func (g *getter) stream(a api.Artifact) error {
	_, err := g.copy(g.m.app.Stdout, a)
	return err
}

// into writes one to what is no file, such as a device or a pipe, and leaves it that.
func (g *getter) into(out string, a api.Artifact) error {
	f, err := os.OpenFile(out, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = g.copy(f, a)
	return errors.Join(err, f.Close())
}

// copy fetches a file and compares it with what the task left.
func (g *getter) copy(w io.Writer, a api.Artifact) (int64, error) {
	if a.Problem != "" && !g.changed {
		return 0, fmt.Errorf("it could not be had when the task ended: %s; --changed tries all the same", cli.Or(a.Problem))
	}
	src, err := g.c.Artifact(g.ctx, g.task, a.Path)
	if api.ErrorCode(err) == api.CodeNotFound { // what the result names was there once
		return 0, cli.Exit(cli.ExitNotDone, err)
	}
	if err != nil {
		return 0, err
	}
	defer src.Close()
	if src.Size() >= 0 && src.Size() != a.Size && !g.changed {
		return 0, errFileChanged
	}
	var from io.Reader = src
	if !g.changed {
		from = io.LimitReader(src, a.Size+1) // more than that shows already that it changed
	}
	hash := sha256.New()
	to := io.MultiWriter(w, hash)
	if g.m.app.StderrTerminal {
		b := &bar{m: g.m, name: cli.Or(a.Path), total: src.Size(), start: time.Now()}
		defer b.end()
		to = io.MultiWriter(w, hash, b)
	}
	n, err := io.Copy(to, from)
	switch {
	case g.ctx.Err() != nil:
		return n, context.Cause(g.ctx)
	case err != nil:
		return n, err
	case !g.changed && (n != a.Size || a.SHA256 != "" && hex.EncodeToString(hash.Sum(nil)) != a.SHA256):
		return n, errFileChanged
	}
	return n, nil
}

// bar shows on a terminal how far a file came; it is fed what was written.
type bar struct {
	m     *Main
	name  string
	total int64 // -1 when unknown
	at    int64
	start time.Time
	drawn time.Time
	width int // of what stands on the line
}

// Write implements io.Writer.
func (b *bar) Write(p []byte) (int, error) {
	b.at += int64(len(p))
	if now := time.Now(); now.Sub(b.drawn) >= redrawEvery {
		b.drawn = now
		b.draw(b.line(now))
	}
	return len(p), nil
}

// line is the picture of a moment.
func (b *bar) line(now time.Time) string {
	const cells = 20
	rate := byteSize(int64(float64(b.at)/max(now.Sub(b.start).Seconds(), 0.001))) + "/s"
	if b.total <= 0 {
		return fmt.Sprintf("%s  %s  %s", b.name, byteSize(b.at), rate)
	}
	share := min(float64(b.at)/float64(b.total), 1)
	full := int(share * cells)
	return fmt.Sprintf("[%s%s] %3d%%  %s of %s  %s  %s", strings.Repeat("#", full), strings.Repeat("-", cells-full),
		int(share*100), byteSize(b.at), byteSize(b.total), rate, b.name)
}

// draw writes over the line that stands there; it needs no escape sequences.
func (b *bar) draw(line string) {
	w, _ := b.m.app.Size()
	line = fit(line, w-1)
	width := columns(line)
	fmt.Fprintf(b.m.app.Stderr, "\r%s%s", line, strings.Repeat(" ", max(b.width-width, 0)))
	b.width = width
}

// end takes the bar away.
func (b *bar) end() {
	if b.width > 0 {
		b.draw("")
		fmt.Fprint(b.m.app.Stderr, "\r")
	}
}

// byteSize shows a number of bytes.
func byteSize(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v := float64(n)
	unit := ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v /= 1 << 10; v < 1000 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
