package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// firstLines answers each request with the line that it began with, as it came.
func firstLines(c net.Conn, r *bufio.Reader) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		for h := line; strings.TrimSpace(h) != ""; {
			if h, err = r.ReadString('\n'); err != nil {
				return
			}
		}
		line = strings.TrimSuffix(line, "\r\n")
		if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(line), line); err != nil {
			return
		}
	}
}

// ask sends a request line as it is and returns the answer's body.
func (b *bed) ask(line string) string {
	b.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(b.root, "http://"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "%s\r\nHost: hub.example\r\nConnection: close\r\n\r\n", line)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(body)
}

func TestPathAndQueryArriveByteForByte(t *testing.T) {
	b := newBed(t, httpService(raw(t, firstLines)))
	const at = "/v1/nodes/alpha/services/web"
	for sent, arrives := range map[string]string{
		"":                          "/",
		"/":                         "/",
		"?":                         "/?",
		"/?":                        "/?",
		"/a/b":                      "/a/b",
		"/a%2Fb":                    "/a%2Fb",
		"/a%2fb%20c":                "/a%2fb%20c",
		"//":                        "//",
		"//evil.example/x":          "//evil.example/x",
		"/a//b/":                    "/a//b/",
		"/..":                       "/..",
		"/../../../../v1/nodes":     "/../../../../v1/nodes",
		"/a/../b/./c":               "/a/../b/./c",
		"/%2e%2e/%2E%2e/x":          "/%2e%2e/%2E%2e/x",
		"/..%2f..%2fx":              "/..%2f..%2fx",
		"/a;b=c;d":                  "/a;b=c;d",
		"/%41%7e~":                  "/%41%7e~",
		"/{x}|y^z`\"<>":             "/{x}|y^z`\"<>",
		"/é%C3%A9":                  "/é%C3%A9",
		"/%":                        "", // refused by the hub's own server
		"/:80":                      "/:80",
		"/http://other.example/":    "/http://other.example/",
		"/a?b=c&d":                  "/a?b=c&d",
		"/a?b;c=%zz&%":              "/a?b;c=%zz&%",
		"/a?x=1&x=2&=&&":            "/a?x=1&x=2&=&&",
		"/a?q=a+b%20c%2B&r=%E2%82":  "/a?q=a+b%20c%2B&r=%E2%82",
		"/a?auth_token=kept&b[]={}": "/a?auth_token=kept&b[]={}",
		"/a??b?c/d":                 "/a??b?c/d",
		"/a?b#c":                    "/a?b#c",
	} {
		got := b.ask("GET " + at + sent + " HTTP/1.1")
		if arrives == "" {
			if !strings.HasPrefix(got, "400") {
				t.Errorf("%q: got %q", sent, got)
			}
			continue
		}
		if want := "GET " + arrives + " HTTP/1.1"; got != want {
			t.Errorf("%q arrived as %q", sent, got)
		}
	}
	t.Run("also from a request that names the hub, and with any method", func(t *testing.T) {
		if got := b.ask("PROPFIND http://hub.example" + at + "/a%2Fb?c HTTP/1.1"); got != "PROPFIND /a%2Fb?c HTTP/1.1" {
			t.Errorf("got %q", got)
		}
	})
}

func TestWhatNamesNoServiceIsNotPassedOn(t *testing.T) {
	b := newBed(t, httpService(raw(t, firstLines)))
	for _, path := range []string{"/v1/nodes/alpha/services", "/v1/nodes/alpha/services/", "/v1/nodes//services/web/", "/v1/nodes/alpha/Services/web/", "/v1/nodes/alpha", "//v1/nodes/alpha/services/web/", "/v1//nodes/alpha/services/web/"} {
		if got := b.ask("GET " + path + " HTTP/1.1"); !strings.HasPrefix(got, "404") {
			t.Errorf("%s: got %q", path, got)
		}
	}
	for _, path := range []string{"/v1/nodes/alpha/services/../x", "/v1/nodes/alpha/services/w%65b/", "/v1/nodes/alpha/services/WEB/"} {
		if got := b.ask("GET " + path + " HTTP/1.1"); !strings.HasPrefix(got, "not_found") || !strings.Contains(got, "it offers: web") {
			t.Errorf("%s: got %q", path, got)
		}
	}
}
