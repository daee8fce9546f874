package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"opencode-mesh/protocol/api"
)

// ErrChanged means that a file became another one while it was read.
var ErrChanged = errors.New("the file changed while it was read; start again")

// Artifacts lists the files that a task's result names.
func (c *Client) Artifacts(ctx context.Context, id string) ([]api.Artifact, error) {
	var out api.ArtifactList
	err := c.repeat(ctx, http.MethodGet, taskPath(id)+"/artifacts", nil, &out)
	return out.Artifacts, err
}

// Artifact is the content of a file that a task's result names. When the connection
// breaks, reading goes on where it was; a file that changed meanwhile is ErrChanged,
// never a mixture. For one goroutine; Close it.
type Artifact struct {
	c    *Client
	ctx  context.Context //nolint:containedctx // a reader's Read takes none
	path string
	size int64  // of the whole, -1 when unknown
	etag string // of what is read
	at   int64  // how much was read
	try  int    // since the last byte
	body io.ReadCloser
	// end ends the present connection, and watch does when it is silent.
	end   context.CancelFunc
	watch *time.Timer
}

// Artifact opens a file that a task's result names; ctx is for all of its reading.
func (c *Client) Artifact(ctx context.Context, id, path string) (*Artifact, error) {
	a := &Artifact{c: c, ctx: ctx, path: taskPath(id) + "/artifacts/file?path=" + url.QueryEscape(path), size: -1}
	for {
		err := a.open()
		if err == nil {
			return a, nil
		}
		if !Passing(err) || !a.again(err) {
			return nil, err
		}
	}
}

// Size is the file's size in bytes, -1 when it is not known.
func (a *Artifact) Size() int64 { return a.size }

// Close ends the transfer.
func (a *Artifact) Close() error {
	a.drop()
	return nil
}

// Read implements io.Reader.
func (a *Artifact) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := a.read(p)
		if n > 0 {
			a.at += int64(n)
			a.try = 0
			return n, nil
		}
		if errors.Is(err, io.EOF) && (a.size < 0 || a.at == a.size) {
			return 0, io.EOF
		}
		a.drop()
		if a.ctx.Err() != nil {
			return 0, context.Cause(a.ctx)
		}
		// A node that is away comes back, as it was there a moment ago.
		if !Passing(err) && api.ErrorCode(err) != api.CodeNodeOffline || !a.again(err) {
			return 0, err
		}
	}
}

// read reads from the present connection, or from a new one.
func (a *Artifact) read(p []byte) (int, error) {
	if a.body == nil {
		if err := a.open(); err != nil {
			return 0, err
		}
	}
	a.watch.Reset(a.c.pace.silence)
	n, err := a.body.Read(p)
	a.watch.Stop()
	switch {
	case n > 0, err == nil:
		return n, nil
	case errors.Is(err, io.EOF) && (a.size < 0 || a.at >= a.size):
		return 0, io.EOF
	}
	return 0, fmt.Errorf("%w: the file broke off: %w", ErrUnreachable, err)
}

// again waits before the next try, and reports whether there is one.
func (a *Artifact) again(err error) bool {
	a.try++
	return a.try < tries && a.c.pause(a.ctx, a.try-1, err)
}

// open makes a connection that goes on where reading was.
func (a *Artifact) open() error {
	ctx, end := context.WithCancel(a.ctx)
	watch := time.AfterFunc(a.c.pace.silence, end)
	header := http.Header{}
	if a.at > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(a.at, 10)+"-")
		if a.etag != "" {
			header.Set("If-Range", a.etag)
		}
	}
	resp, err := a.c.send(ctx, http.MethodGet, a.path, nil, header) //nolint:bodyclose // drop closes it
	watch.Stop()
	if err != nil {
		end()
		return err
	}
	a.body, a.end, a.watch = resp.Body, end, watch
	etag := resp.Header.Get("Etag")
	if a.at == 0 {
		a.size, a.etag = resp.ContentLength, etag
		return nil
	}
	want := fmt.Sprintf("bytes %d-%d/%d", a.at, a.size-1, a.size)
	if resp.StatusCode != http.StatusPartialContent || etag != a.etag || a.size >= 0 && resp.Header.Get("Content-Range") != want {
		a.drop()
		return ErrChanged
	}
	return nil
}

// drop ends the present connection, if there is one.
func (a *Artifact) drop() {
	if a.body == nil {
		return
	}
	a.watch.Stop()
	a.end()
	_ = a.body.Close()
	a.body = nil
}
