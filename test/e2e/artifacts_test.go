package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"opencode-mesh/protocol/api"
	"opencode-mesh/test/fleet"
	"opencode-mesh/test/stubllm"
)

// naming is a task whose result names paths.
func naming(paths string) string {
	return `REPLY:[opencode-mesh-result v1]\ntask: {task}\nstatus: done\nsummary: made files\nartifacts: ` + paths + `\n[/opencode-mesh-result]`
}

func TestArtifactsOnTheRealOpencode(t *testing.T) {
	t.Parallel()
	llm := stubllm.Start(t)
	server := served(t, llm)
	f := fleet.New(t)
	proxy, via := f.Proxy()
	alpha := f.Node("alpha", using(server), fleet.Via(via))
	ctl := f.Ctl("desk")
	ctl.Healthy("alpha")
	write := func(path string, content []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(path string) string { return filepath.Join(alpha.Work, path) }
	fileURL := func(task, path string) string {
		return "/v1/tasks/" + task + "/artifacts/file?path=" + url.QueryEscape(path)
	}
	large := make([]byte, 24<<20)
	for i := range large {
		large[i] = byte(rand.Uint32()) // nothing compresses it away
	}
	write(in("out/large.bin"), large)
	write(filepath.Join(f.Dir, "secret.txt"), []byte("not yours"))

	t.Run("what the agent made is listed with size and hash, and fetched", func(t *testing.T) {
		ctl := ctl.In(t)
		task := do(t, ctl, api.StateDone, "alpha", "--", "TOOL:mkdir -p out && printf 'a report' > out/report.txt\n"+naming("out/report.txt"))
		sum := sha256.Sum256([]byte("a report"))
		out := ctl.Run("artifact", "list", task.Task, "--json")
		var a api.Artifact
		if err := json.Unmarshal([]byte(strings.TrimSpace(out.Stdout)), &a); err != nil || a.Path != "out/report.txt" || a.Size != 8 || a.SHA256 != hex.EncodeToString(sum[:]) || a.Problem != "" {
			t.Errorf("%v %+v", err, out)
		}
		if out := ctl.Run("artifact", "list", task.Task); out.Code != 0 || !has("out/report.txt", "8")(out.Stdout) {
			t.Errorf("%+v", out)
		}
		if out := ctl.Run("artifact", "get", task.Task, "out/report.txt", "-o", "-"); out.Code != 0 || out.Stdout != "a report" {
			t.Errorf("%+v", out)
		}
		dir := t.TempDir()
		if out := ctl.Run("artifact", "get", task.Task, "-o", dir); out.Code != 0 {
			t.Errorf("%+v", out)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "out", "report.txt")); err != nil || string(b) != "a report" {
			t.Errorf("%q %v", b, err)
		}
		write(in("out/report.txt"), []byte("b report"))
		if out := ctl.Run("artifact", "get", task.Task, "out/report.txt", "-o", filepath.Join(dir, "x")); out.Code != 1 || !strings.Contains(out.Stderr, "changed") {
			t.Errorf("a file that changed: %+v", out)
		}
		if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
			t.Error("a file that changed was kept")
		}
		if out := ctl.Run("artifact", "get", task.Task, "out/report.txt", "-o", filepath.Join(dir, "x"), "--changed"); out.Code != 0 {
			t.Errorf("--changed: %+v", out)
		}
	})
	t.Run("ranges go through the tunnel", func(t *testing.T) {
		ctl := ctl.In(t)
		task := do(t, ctl, api.StateDone, "alpha", "--", naming("out/large.bin"))
		path := fileURL(task.Task, "out/large.bin")
		for spec, want := range map[string][]byte{
			"bytes=0-9":           large[:10],
			"bytes=20000000-":     large[20000000:],
			"bytes=-5":            large[len(large)-5:],
			"bytes=100000-299999": large[100000:300000],
		} {
			status, got, header := ctl.APIWith(http.MethodGet, path, http.Header{"Range": {spec}})
			if status != http.StatusPartialContent || !bytes.Equal(got, want) || header.Get("Content-Range") == "" {
				t.Errorf("%s: %d, %d bytes", spec, status, len(got))
			}
		}
		if status, _, _ := ctl.APIWith(http.MethodGet, path, http.Header{"Range": {"bytes=99999999-"}}); status != http.StatusRequestedRangeNotSatisfiable {
			t.Errorf("beyond the end: %d", status)
		}
		status, _, header := ctl.APIWith(http.MethodGet, path, nil)
		for name, want := range map[string]string{
			"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox",
		} {
			if status != 200 || !strings.Contains(header.Get(name), want) {
				t.Errorf("%d %s: %q", status, name, header.Get(name))
			}
		}
		if !strings.HasPrefix(header.Get("Content-Disposition"), "attachment") {
			t.Errorf("disposition %q", header.Get("Content-Disposition"))
		}
	})
	t.Run("a download goes on after its connection broke", func(t *testing.T) {
		ctl := ctl.In(t)
		task := do(t, ctl, api.StateDone, "alpha", "--", naming("out/large.bin"))
		proxy.CutAfter(5 << 20)
		file := filepath.Join(t.TempDir(), "large.bin")
		if out := ctl.Run("artifact", "get", task.Task, "out/large.bin", "-o", file); out.Code != 0 {
			t.Fatalf("%+v", out)
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, large) {
			t.Errorf("%d bytes: %v", len(got), err)
		}
		if n := proxy.Cuts(); n != 1 {
			t.Errorf("the connection was cut %d times", n)
		}
	})
	t.Run("nothing but what the result names, and nothing outside", func(t *testing.T) {
		ctl := ctl.In(t)
		write(in("unnamed.txt"), []byte("x"))
		write(in("out/a b.txt"), []byte("spaced"))
		for link, to := range map[string]string{
			"leads-out": filepath.Join(f.Dir, "secret.txt"), "climbs": "../secret.txt", "dir-out": "..", "inside": "out/a b.txt",
		} {
			if err := os.Symlink(to, in(link)); err != nil {
				t.Fatal(err)
			}
		}
		good := map[string]string{"out/a b.txt": "spaced", "inside": "spaced", in("out/a b.txt"): "spaced", "./out/../out/a b.txt": "spaced"}
		bad := []string{"leads-out", "climbs", "dir-out/secret.txt", "../secret.txt", filepath.Join(f.Dir, "secret.txt"), "out", "missing.txt", "out/../../secret.txt"}
		paths := append([]string{}, bad...)
		for p := range good {
			paths = append(paths, p)
		}
		task := do(t, ctl, api.StateDone, "alpha", "--", naming(strings.Join(paths, ", ")))
		var list api.ArtifactList
		ctl.Get("/v1/tasks/"+task.Task+"/artifacts", &list)
		if len(list.Artifacts) != len(paths) {
			t.Errorf("%d artifacts of %d: %+v", len(list.Artifacts), len(paths), list.Artifacts)
		}
		for _, a := range list.Artifacts {
			if _, isGood := good[a.Path]; isGood != (a.Problem == "") {
				t.Errorf("%+v", a)
			}
		}
		for path, want := range good {
			if status, got := ctl.API("GET", fileURL(task.Task, path), nil); status != 200 || string(got) != want {
				t.Errorf("%s: %d %q", path, status, got)
			}
		}
		for _, path := range bad {
			if status, got := ctl.API("GET", fileURL(task.Task, path), nil); status == 200 || bytes.Contains(got, []byte("not yours")) {
				t.Errorf("%s: %d %q", path, status, got)
			}
		}
		for _, path := range []string{"unnamed.txt", "out/large.bin", "", "./unnamed.txt", "out/a b.txt/", "out//a b.txt"} {
			if status, got := ctl.API("GET", fileURL(task.Task, path), nil); status != 404 && (path != "" || status != 400) {
				t.Errorf("unnamed %q: %d %q", path, status, got)
			}
		}
		if out := ctl.Run("artifact", "get", task.Task, "unnamed.txt", "-o", "-"); out.Code == 0 || out.Stdout != "" {
			t.Errorf("%+v", out)
		}
		if status, got := f.In(t).Ctl("stranger").API("GET", fileURL(task.Task, "out/a b.txt"), nil); status != 404 {
			t.Errorf("a stranger reads it: %d %q", status, got)
		}
		// A link that is put there later leads nowhere either.
		if err := os.Remove(in("out/a b.txt")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(f.Dir, "secret.txt"), in("out/a b.txt")); err != nil {
			t.Fatal(err)
		}
		for path := range good {
			if status, got := ctl.API("GET", fileURL(task.Task, path), nil); status == 200 || bytes.Contains(got, []byte("not yours")) {
				t.Errorf("swapped %s: %d %q", path, status, got)
			}
		}
	})
	t.Run("a node that is away is said to be", func(t *testing.T) {
		ctl := ctl.In(t)
		task := do(t, ctl, api.StateDone, "alpha", "--", naming("out/large.bin"))
		alpha.Kill()
		ctl.AwaitNode("alpha", func(n api.Node) bool { return n.State == api.NodeOffline })
		if out := ctl.Run("artifact", "list", task.Task); out.Code != 0 || !strings.Contains(out.Stdout, "out/large.bin") {
			t.Errorf("the list is on record: %+v", out)
		}
		if status, got := ctl.API("GET", fileURL(task.Task, "out/large.bin"), nil); status != 502 || !strings.Contains(string(got), string(api.CodeNodeOffline)) {
			t.Errorf("%d %q", status, got)
		}
	})
}
