package api

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

// artifactStall is how long a file that is passed on may stand still.
const artifactStall = 30 * time.Second

// artifactChunk is how much of a file is in the hub's memory at a time, in bytes.
const artifactChunk = 32 << 10

// artifacts lists the files that a task's result names, as they were when it ended.
func (s *Server) artifacts(w http.ResponseWriter, r *http.Request) {
	t, err := s.find(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := api.ArtifactList{Artifacts: []api.Artifact{}}
	if t.Outcome != nil {
		for _, p := range t.Outcome.Artifacts {
			a := api.Artifact{Path: p, Problem: "its node did not look at it"}
			if i := slices.IndexFunc(t.Outcome.Files, func(f api.Artifact) bool { return f.Path == p }); i >= 0 {
				a = t.Outcome.Files[i]
			}
			out.Artifacts = append(out.Artifacts, a)
		}
	}
	reply(w, http.StatusOK, out)
}

// errStalled ends the transfer of a file that stands still.
var errStalled = errors.New("no byte came for too long")

// artifact passes a file on that the task's result names, or a part of it, through
// the tunnel of its node, as it is now. Nothing of it is stored.
func (s *Server) artifact(w http.ResponseWriter, r *http.Request) {
	t, err := s.find(r)
	name := r.URL.Query().Get("path")
	if err == nil && !names(t, name) {
		err = api.Errorf(api.CodeNotFound, "the result of %s names no such path; see which it names with GET /v1/tasks/%s/artifacts", t.ID, t.ID)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, done, err := s.hold(r, who(r), streams)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(s.cfg.ArtifactStall, func() { cancel(errStalled) })
	defer stall.Stop()
	resp, err := s.fetch(ctx, t, name, r.Header)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer resp.Body.Close()
	h := w.Header()
	for _, key := range []string{"Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Last-Modified"} {
		if v := resp.Header.Get(key); v != "" {
			h.Set(key, v)
		}
	}
	if resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		h.Del("Content-Length") // of the node's words
		w.WriteHeader(resp.StatusCode)
		return
	}
	// A browser saves it, and never shows it with this origin's rights (semantics 23).
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", attachment(name))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox")
	w.WriteHeader(resp.StatusCode)
	if err := pass(w, resp.Body, stall, s.cfg.ArtifactStall); err != nil {
		s.cfg.Log.Debug("a file was not passed on whole", "task", t.ID, "err", errors.Join(err, context.Cause(ctx)))
		panic(http.ErrAbortHandler) // part of a file is never taken for the whole
	}
}

// names reports whether the result that a task has now names a path.
func names(t store.Task, path string) bool {
	return t.Outcome != nil && slices.Contains(t.Outcome.Artifacts, path)
}

// fetch opens a file at the task's node. What a node refuses is, for the client, not
// there: it must not be able to answer in the hub's name.
func (s *Server) fetch(ctx context.Context, t store.Task, name string, header http.Header) (*http.Response, error) {
	away := api.Errorf(api.CodeNodeOffline, "%s is not connected; try again when it is", t.Target.Name)
	c, ok := s.cfg.Registry.Locate(t.Target.ID)
	if !ok {
		return nil, away
	}
	if strings.Contains(header.Get("Range"), ",") { // several parts would need a content type of their own
		header = header.Clone()
		header.Del("Range")
	}
	resp, err := c.Client.Artifact(ctx, t.Workspace, name, header)
	var refusal *api.Error
	switch {
	case err == nil:
		return resp, nil
	case errors.Is(context.Cause(ctx), errStalled):
		return nil, api.Errorf(api.CodeUnavailable, "%s does not answer; try again", t.Target.Name)
	case errors.As(err, &refusal) && refusal.Code.Status() < 500:
		return nil, api.Errorf(api.CodeNotFound, "%s does not give the file: %s", t.Target.Name, shown.Line(refusal.Message, maxDetail))
	case errors.As(err, &refusal):
		return nil, api.Errorf(api.CodeUnavailable, "%s cannot give the file now: %s", t.Target.Name, shown.Line(refusal.Message, maxDetail))
	case c.Session.Err() != nil:
		return nil, away
	}
	return nil, api.Errorf(api.CodeUnavailable, "the file did not come from %s; try again", t.Target.Name)
}

// attachment tells a browser to save a file, under its own name.
func attachment(name string) string {
	base := path.Base(strings.ReplaceAll(name, `\`, "/"))
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": base}); v != "" {
		return v
	}
	return "attachment"
}

// pass copies a body without keeping more of it than a chunk. stall is armed while
// the node is waited for; a client that takes nothing is bounded by the deadline of
// its connection.
func pass(w http.ResponseWriter, body io.Reader, stall *time.Timer, limit time.Duration) error {
	rc := http.NewResponseController(w)
	buf := make([]byte, artifactChunk)
	for {
		stall.Reset(limit)
		n, err := body.Read(buf)
		stall.Stop()
		_ = rc.SetWriteDeadline(time.Now().Add(limit))
		if _, werr := w.Write(buf[:n]); werr != nil {
			return werr
		}
		switch {
		case errors.Is(err, io.EOF):
			err = rc.Flush()
			_ = rc.SetWriteDeadline(time.Time{}) // the connection goes on
			return err
		case err != nil:
			return err
		}
	}
}
