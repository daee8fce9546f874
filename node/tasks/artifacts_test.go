package tasks_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

const (
	inside = "what the agent made\n"
	secret = "what nobody may see"
)

// naming ends turns at once with artifacts.
func naming(state api.State, paths ...string) runFunc {
	return func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
		return api.Outcome{State: state, Artifacts: paths}, nil
	}
}

// places makes a workspace with a file, out/report.txt, and a secret beside it.
func places(t *testing.T) (ws, beside string) {
	t.Helper()
	ws, beside = filepath.Join(t.TempDir(), "ws"), filepath.Join(t.TempDir(), "secret.txt")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(ws, "out", "deep"), 0o755),
		os.WriteFile(filepath.Join(ws, "out", "report.txt"), []byte(inside), 0o644),
		os.WriteFile(beside, []byte(secret), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return ws, beside
}

// link makes a symbolic link.
func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

// in offers one workspace.
func in(dir string) option {
	return func(c *tasks.Config) { c.Workspaces = []agent.Workspace{{Name: "main", Dir: dir}} }
}

// fetch asks for a file as the hub does.
func (g *rig) fetch(method, workspace, path string, header map[string]string) *httptest.ResponseRecorder {
	g.t.Helper()
	q := url.Values{"workspace": {workspace}, "path": {path}}
	req := httptest.NewRequest(method, "/v1/artifacts?"+q.Encode(), nil)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	g.mux.ServeHTTP(w, req)
	return w
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// escape is a path that a result names and what it leads to.
type escape struct {
	path    string
	content string // "" when there is a problem
	problem string
	status  int // of a request for it, when there is a problem; 0: 404
}

// escapes prepares the workspace and lists paths with what they lead to.
func escapes(t *testing.T, ws, beside string) map[string]escape {
	t.Helper()
	link(t, beside, filepath.Join(ws, "link-out"))
	link(t, filepath.Dir(beside), filepath.Join(ws, "dir-out"))
	link(t, "link-out", filepath.Join(ws, "chain"))
	up, err := filepath.Rel(ws, beside)
	if err != nil {
		t.Fatal(err)
	}
	link(t, up, filepath.Join(ws, "link-up"))
	link(t, "report.txt", filepath.Join(ws, "out", "newest"))
	link(t, "../out/newest", filepath.Join(ws, "out", "chain-inside"))
	link(t, filepath.Join(ws, "out", "report.txt"), filepath.Join(ws, "absolute-inside"))
	link(t, "loop", filepath.Join(ws, "loop"))
	link(t, "nothing", filepath.Join(ws, "dangling"))
	if err := os.Link(beside, filepath.Join(ws, "second-name")); err != nil {
		t.Fatal(err)
	}
	file := escape{content: inside}
	out, away := escape{problem: "outside the workspace"}, escape{problem: "not there"}
	odd, dir := escape{problem: "not a path", status: http.StatusBadRequest}, escape{problem: "not a file"}
	with := func(e escape, path string) escape { e.path = path; return e }
	return map[string]escape{
		"a file":                                with(file, "out/report.txt"),
		"a file, with detours":                  with(file, "./out/deep/../report.txt"),
		"a file, absolute":                      with(file, filepath.Join(ws, "out", "report.txt")),
		"a link inside":                         with(file, "out/newest"),
		"a chain of links inside":               with(file, "out/chain-inside"),
		"dot dot":                               with(out, up),
		"dot dot behind a directory":            with(out, "out/../"+up),
		"absolute outside":                      with(out, beside),
		"absolute, out by dot dot":              with(out, ws+"/../"+filepath.Base(filepath.Dir(beside))+"/secret.txt"),
		"a neighbour whose name begins alike":   with(out, ws+"-other/secret.txt"),
		"a link out":                            with(out, "link-out"),
		"a relative link out":                   with(out, "link-up"),
		"a chain of links out":                  with(out, "chain"),
		"through a linked directory":            with(out, "dir-out/secret.txt"),
		"a link to an absolute path inside":     with(out, "absolute-inside"),
		"the workspace":                         with(dir, "."),
		"the workspace, absolute":               with(dir, ws),
		"a directory":                           with(dir, "out"),
		"a trailing slash":                      with(dir, "out/report.txt/"),
		"a trailing slash, absolute":            with(dir, filepath.Join(ws, "out", "report.txt")+"/"),
		"below a file":                          with(away, "out/report.txt/x"),
		"nothing":                               with(away, "out/nothing.txt"),
		"a link to nothing":                     with(away, "dangling"),
		"a link to itself":                      with(away, "loop"),
		"another case":                          with(away, "OUT/Report.txt"),
		"a URL":                                 with(away, "file://"+beside),
		"a home directory":                      with(away, "~/secret.txt"),
		"a name that is too long":               with(away, strings.Repeat("n", 300)),
		"a NUL":                                 with(odd, "out/report.txt\x00.png"),
		"an empty path":                         with(odd, ""),
		"a second name of a file outside":       with(escape{content: secret}, "second-name"), // cannot be told apart
		"the parent":                            with(out, ".."),
		"a file whose name only looks like one": with(away, "..secret.txt"),
	}
}

func TestArtifactPaths(t *testing.T) {
	ws, beside := places(t)
	table := escapes(t, ws, beside)
	var paths []string
	for _, e := range table {
		paths = append(paths, e.path)
	}
	g := newRig(t, newAgent(true, naming(api.StateDone, paths...)), in(ws))
	g.take("t1")
	files := map[string]api.Artifact{}
	for _, f := range g.result().Outcome.Files {
		files[f.Path] = f
	}
	for name, e := range table {
		t.Run(name, func(t *testing.T) {
			want := api.Artifact{Path: e.path, Problem: e.problem}
			if e.problem == "" {
				want.Size, want.SHA256 = int64(len(e.content)), sum(e.content)
			}
			if files[e.path] != want {
				t.Errorf("in the result %+v, wanted %+v", files[e.path], want)
			}
			w := g.fetch(http.MethodGet, "", e.path, nil)
			switch {
			case e.problem == "" && (w.Code != http.StatusOK || w.Body.String() != e.content):
				t.Errorf("%d %q", w.Code, w.Body)
			case e.problem != "" && w.Code != cmp.Or(e.status, http.StatusNotFound):
				t.Errorf("%d %q", w.Code, w.Body)
			}
			if e.content != secret && strings.Contains(w.Body.String(), secret) {
				t.Errorf("the secret was told")
			}
		})
	}
	t.Run("too long for a result", func(t *testing.T) {
		if w := g.fetch(http.MethodGet, "", strings.Repeat("p/", 600)+"x", nil); w.Code != http.StatusBadRequest {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

func TestArtifacts(t *testing.T) {
	t.Run("are looked at in their order when the task settles, whatever the state", func(t *testing.T) {
		ws, _ := places(t)
		for _, state := range []api.State{api.StateDone, api.StatePartial, api.StateFailed} {
			g := newRig(t, newAgent(true, naming(state, "nothing", "out/report.txt", "out", "out/report.txt")), in(ws))
			g.take("t1")
			file := api.Artifact{Path: "out/report.txt", Size: int64(len(inside)), SHA256: sum(inside)}
			want := []api.Artifact{{Path: "nothing", Problem: "not there"}, file, {Path: "out", Problem: "not a file"}, file}
			if out := g.result().Outcome; !slices.Equal(out.Files, want) {
				t.Errorf("%s: %+v", state, out.Files)
			}
		}
	})

	t.Run("are not looked at while the task waits for an answer", func(t *testing.T) {
		ws, _ := places(t)
		g := newRig(t, newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{State: api.StateQuestion, Question: &api.Asked{Text: "?"}, Artifacts: []string{"out/report.txt"}}, nil
		}), in(ws))
		g.take("t1")
		if out := g.result().Outcome; out.Files != nil {
			t.Fatalf("%+v", out.Files)
		}
	})

	t.Run("include the whole of a reply that was too long", func(t *testing.T) {
		ws, _ := places(t)
		reply := strings.Repeat("r", api.MaxReply+1)
		g := newRig(t, newAgent(true, func(context.Context, agent.Turn, agent.Host) (api.Outcome, error) {
			return api.Outcome{State: api.StateDone, Reply: reply}, nil
		}), in(ws))
		g.take("t1")
		out := g.result().Outcome
		if len(out.Files) != 1 || out.Files[0].Path != out.Artifacts[0] || out.Files[0].SHA256 != sum(reply) {
			t.Fatalf("%v %+v", out.Artifacts, out.Files)
		}
	})

	t.Run("of a workspace that is not there are named with that", func(t *testing.T) {
		ws, _ := places(t)
		g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			if err := os.RemoveAll(ws); err != nil {
				return api.Outcome{}, err
			}
			return naming(api.StateDone, "a")(ctx, turn, h)
		}), in(ws))
		g.take("t1")
		if out := g.result().Outcome; len(out.Files) != 1 || out.Files[0].Problem != "the workspace is not there" {
			t.Fatalf("%+v", out.Files)
		}
		if w := g.fetch(http.MethodGet, "", "a", nil); w.Code != http.StatusNotFound {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if w := g.fetch(http.MethodGet, "elsewhere", "a", nil); w.Code != http.StatusNotFound {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	})

	t.Run("in a workspace that is reached by a link may be named by their real path", func(t *testing.T) {
		ws, _ := places(t)
		alias := filepath.Join(t.TempDir(), "alias")
		link(t, ws, alias)
		g := newRig(t, newAgent(true, naming(api.StateDone, filepath.Join(ws, "out/report.txt"), filepath.Join(alias, "out/report.txt"))), in(alias))
		g.take("t1")
		for _, f := range g.result().Outcome.Files {
			if f.SHA256 != sum(inside) {
				t.Errorf("%+v", f)
			}
		}
	})

	t.Run("whose paths are too long together are left out with a flag", func(t *testing.T) {
		ws, _ := places(t)
		var paths []string
		for i := range 100 {
			paths = append(paths, fmt.Sprintf("%03d%s", i, strings.Repeat("p", 1000)))
		}
		g := newRig(t, newAgent(true, naming(api.StateDone, paths...)), in(ws))
		g.take("t1")
		out := g.result().Outcome
		if len(out.Artifacts) != 65 || len(out.Files) != 65 || !slices.Contains(out.Flags, api.FlagTruncated) {
			t.Fatalf("%d artifacts, %d files, flags %v", len(out.Artifacts), len(out.Files), out.Flags)
		}
	})

	t.Run("beyond a gibibyte together have no hash", func(t *testing.T) {
		ws, _ := places(t)
		f, err := os.Create(filepath.Join(ws, "large"))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(api.MaxHashed - int64(len(inside)) + 1); err != nil { // sparse
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		g := newRig(t, newAgent(true, naming(api.StateDone, "out/report.txt", "large", "out/newest")), in(ws))
		link(t, "report.txt", filepath.Join(ws, "out", "newest"))
		g.take("t1")
		out := g.result().Outcome
		if out.Files[0].SHA256 == "" || out.Files[1].SHA256 != "" || out.Files[1].Size != api.MaxHashed-int64(len(inside))+1 || out.Files[2].SHA256 == "" {
			t.Fatalf("%+v", out.Files)
		}
	})

	t.Run("are served whole, in parts, and only if they are still the same", func(t *testing.T) {
		ws, _ := places(t)
		g := newRig(t, newAgent(true, done), in(ws))
		whole := g.fetch(http.MethodGet, "main", "out/report.txt", nil)
		etag := whole.Header().Get("Etag")
		if whole.Code != http.StatusOK || whole.Body.String() != inside || etag == "" || strings.HasPrefix(etag, "W/") ||
			whole.Header().Get("Content-Type") != "application/octet-stream" || whole.Header().Get("Accept-Ranges") != "bytes" {
			t.Fatalf("%d %v %q", whole.Code, whole.Header(), whole.Body)
		}
		head := g.fetch(http.MethodHead, "main", "out/report.txt", nil)
		if head.Code != http.StatusOK || head.Body.Len() != 0 || head.Header().Get("Content-Length") != fmt.Sprint(len(inside)) || head.Header().Get("Etag") != etag {
			t.Errorf("HEAD: %d %v", head.Code, head.Header())
		}
		for _, c := range []struct {
			header map[string]string
			status int
			body   string
		}{
			{map[string]string{"Range": "bytes=5-8"}, http.StatusPartialContent, inside[5:9]},
			{map[string]string{"Range": "bytes=5-", "If-Range": etag}, http.StatusPartialContent, inside[5:]},
			{map[string]string{"Range": "bytes=5-", "If-Range": `"another"`}, http.StatusOK, inside},
			{map[string]string{"If-None-Match": etag}, http.StatusNotModified, ""},
			{map[string]string{"Range": "bytes=500-"}, http.StatusRequestedRangeNotSatisfiable, ""},
		} {
			w := g.fetch(http.MethodGet, "main", "out/report.txt", c.header)
			if w.Code != c.status || c.body != "" && w.Body.String() != c.body {
				t.Errorf("%v: %d %q", c.header, w.Code, w.Body)
			}
		}
		if err := os.WriteFile(filepath.Join(ws, "out/report.txt"), []byte("another text of it\n."), 0o644); err != nil {
			t.Fatal(err)
		}
		w := g.fetch(http.MethodGet, "main", "out/report.txt", map[string]string{"Range": "bytes=5-", "If-Range": etag})
		if w.Code != http.StatusOK || w.Header().Get("Etag") == etag {
			t.Errorf("after a change: %d %v", w.Code, w.Header())
		}
	})

	t.Run("that became a link out between the result and the request are not there", func(t *testing.T) {
		ws, beside := places(t)
		g := newRig(t, newAgent(true, naming(api.StateDone, "out/report.txt")), in(ws))
		g.take("t1")
		if f := g.result().Outcome.Files; f[0].Problem != "" {
			t.Fatalf("%+v", f)
		}
		at := filepath.Join(ws, "out", "report.txt")
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
		link(t, beside, at)
		if w := g.fetch(http.MethodGet, "", "out/report.txt", nil); w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), secret) {
			t.Fatalf("%d %q", w.Code, w.Body)
		}
	})

	t.Run("that change from file to link out all the time never tell what is outside", func(t *testing.T) {
		ws, beside := places(t)
		g := newRig(t, newAgent(true, done), in(ws))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		at, spare := filepath.Join(ws, "out", "x"), filepath.Join(ws, "out", "y")
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = os.Symlink(beside, spare)
				_ = os.Rename(spare, at)
				_ = os.WriteFile(spare, []byte(inside), 0o644)
				_ = os.Rename(spare, at)
			}
		})
		for range 500 {
			if w := g.fetch(http.MethodGet, "", "out/x", nil); strings.Contains(w.Body.String(), secret) {
				t.Error("the secret was told")
				break
			}
		}
		close(stop)
		wg.Wait()
	})
}

// large makes a file that takes a while to be hashed, and no room.
func large(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err == nil {
		err = errors.Join(f.Truncate(api.MaxHashed/2), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestHashing(t *testing.T) {
	t.Run("holds up no other lane, and its own until it is done", func(t *testing.T) {
		ws, _ := places(t)
		large(t, filepath.Join(ws, "large"))
		gate := newGated()
		a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			if turn.Task == "t1" {
				<-gate.gate("t1")
				return naming(api.StateDone, "large")(ctx, turn, h)
			}
			return done(ctx, turn, h)
		})
		g := newRig(t, a, in(ws), func(c *tasks.Config) { c.MaxParallel = 1 })
		g.take("t1")
		g.take("t2")
		g.take("t3", from("beta"))
		gate.open("t1")
		for range 3 {
			if res := g.result(); res.Task == "t1" && res.Outcome.Files[0].SHA256 == "" {
				t.Fatalf("%+v", res.Outcome)
			}
		}
		if starts := a.starts(); !slices.Equal(starts, []string{"t1/1/1", "t3/1/1", "t2/1/1"}) {
			t.Fatalf("started %v", starts)
		}
	})

	t.Run("stops when the node stops, and the result is kept without the hash", func(t *testing.T) {
		ws, _ := places(t)
		large(t, filepath.Join(ws, "large"))
		g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
			<-ctx.Done() // it is done in the moment of the stop
			return naming(api.StateDone, "large")(ctx, turn, h)
		}), in(ws))
		g.take("t1")
		g.began()
		g.stop()
		out := g.result().Outcome
		if out.State != api.StateDone || out.Files[0].Size != api.MaxHashed/2 || out.Files[0].SHA256 != "" {
			t.Fatalf("%+v", out)
		}
	})

	t.Run("keeps a superseded process until its result is delivered", func(t *testing.T) {
		ws, _ := places(t)
		large(t, filepath.Join(ws, "large"))
		g := newRig(t, newAgent(true, naming(api.StateDone, "large")), in(ws))
		g.take("t1")
		g.began()
		g.r.Park()
		eventually(t, "the runner to be drained", func() bool {
			select {
			case <-g.r.Drained():
				return true
			default:
				return false
			}
		})
		select {
		case res := <-g.hub.results:
			if res.Outcome.Files[0].SHA256 == "" {
				t.Fatalf("%+v", res.Outcome)
			}
		default:
			t.Fatal("drained before the result was delivered")
		}
	})
}
