package hub_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"opencode-mesh/auth/local"
)

func TestTheDashboardIsServedUnderTheHubsNamesAndNoOther(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.WebHosts = []string{"mesh.lan"}
	cfg.ServiceDomain = "mesh.test"
	b := start(t, cfg)
	br := b.browser()
	for host, want := range map[string]int{"127.0.0.1": 200, "localhost": 200, "mesh.lan": 200, "MESH.lan": 200, "evil.example": 403, "lan": 403, "web.alpha.mesh.test": 401} {
		resp, body := br.do(http.MethodGet, "http://"+host+":"+br.port+"/login")
		if resp.StatusCode != want {
			t.Errorf("%s: %d %.200s", host, resp.StatusCode, body)
		}
	}
}

func TestABrowserLogsInAndTheNewPasswordLogsItOut(t *testing.T) {
	b := start(t, config(t.TempDir()))
	br := b.browser()
	at := "http://127.0.0.1:" + br.port
	req, _ := http.NewRequest(http.MethodPost, at+"/login", strings.NewReader(url.Values{"password": {password}}.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", at)
	resp, err := br.hc.Do(req) // leads to the fleet
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(page), `id="nodes"`) {
		t.Fatalf("%d %s", resp.StatusCode, page)
	}
	if resp, body := br.do(http.MethodGet, at+"/v1/credentials"); resp.StatusCode != http.StatusOK || !strings.Contains(body, `"browser":true`) {
		t.Errorf("the interface: %d %s", resp.StatusCode, body)
	}
	changed, err := local.Client(b.dir).Post("http://local/v1/passwd", "application/json", strings.NewReader(`{"password":"another one"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer changed.Body.Close()
	if changed.StatusCode != http.StatusNoContent {
		t.Fatalf("passwd: %d", changed.StatusCode)
	}
	if resp, _ := br.do(http.MethodGet, at+"/v1/nodes"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("after the new password: %d", resp.StatusCode)
	}
}
