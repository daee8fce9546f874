package fleet

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"time"

	"opencode-mesh/auth"
)

// API sends one request to the hub's public interface with the controller's
// credential and returns status and body. body is sent as JSON; nil sends none.
func (c *Ctl) API(method, path string, body any) (status int, answer []byte) {
	c.f.TB.Helper()
	status, answer, _ = c.request(method, path, body, nil)
	return status, answer
}

// APIWith is API without a body, with headers both ways.
func (c *Ctl) APIWith(method, path string, header http.Header) (status int, answer []byte, got http.Header) {
	c.f.TB.Helper()
	return c.request(method, path, nil, header)
}

// Get decodes what a GET of the public interface answers, which must be 200.
func (c *Ctl) Get(path string, into any) {
	c.f.TB.Helper()
	status, answer := c.API(http.MethodGet, path, nil)
	if status != http.StatusOK {
		c.f.TB.Fatalf("GET %s: %d %s", path, status, answer)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		c.f.TB.Fatalf("GET %s: %v: %s", path, err, answer)
	}
}

func (c *Ctl) request(method, path string, body any, header http.Header) (status int, answer []byte, got http.Header) {
	c.f.TB.Helper()
	profile, err := auth.LoadProfile(filepath.Join(c.dir, "default.json"))
	if err != nil {
		c.f.TB.Fatal(err)
	}
	client, err := profile.Link.HTTPClient(profile.CAFile)
	if err != nil {
		c.f.TB.Fatal(err)
	}
	client.Timeout = patience
	// One request each: the hub may be another process by the next one.
	client.Transport.(*http.Transport).DisableKeepAlives = true
	var sent io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			c.f.TB.Fatal(err)
		}
		sent = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(c.f.TB.Context(), method, profile.Link.BaseURL()+path, sent)
	if err != nil {
		c.f.TB.Fatal(err)
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Authorization", "Bearer "+profile.Credential.Reveal())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		resp, err := client.Do(req)
		if err == nil {
			answer, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			return resp.StatusCode, answer, resp.Header
		}
		// A hub that was killed is coming back.
		if body != nil || time.Now().After(deadline) {
			c.f.TB.Fatalf("%s %s: %v", method, path, err)
		}
	}
}
