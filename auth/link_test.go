package auth_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"opencode-mesh/auth"
)

const (
	pin      = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	pinQuery = "?pin=sha256:" + pin
)

func TestLinkForms(t *testing.T) {
	for _, c := range []struct {
		in, text, base, tunnel string // text "" means equal to in
	}{
		{"mesh://hub.lan:8443" + pinQuery, "", "https://hub.lan:8443", "wss://hub.lan:8443/v1/tunnel"},
		{"mesh://192.168.1.5:8443" + pinQuery, "", "https://192.168.1.5:8443", "wss://192.168.1.5:8443/v1/tunnel"},
		{"mesh://[2001:db8::1]:8443" + pinQuery, "", "https://[2001:db8::1]:8443", "wss://[2001:db8::1]:8443/v1/tunnel"},
		{"mesh://[fe80::1%25eth0]:8443" + pinQuery, "", "https://[fe80::1%25eth0]:8443", "wss://[fe80::1%25eth0]:8443/v1/tunnel"},
		{"mesh://[fe80::1%eth0.5]:8443" + pinQuery, "mesh://[fe80::1%25eth0.5]:8443" + pinQuery, "https://[fe80::1%25eth0.5]:8443", "wss://[fe80::1%25eth0.5]:8443/v1/tunnel"},
		{"mesh+plain://127.0.0.1:8080", "", "http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/tunnel"},
		{"mesh+plain://hub.lan:8080", "", "http://hub.lan:8080", "ws://hub.lan:8080/v1/tunnel"},
		{"mesh+plain://[::1]:8080/", "mesh+plain://[::1]:8080", "http://[::1]:8080", "ws://[::1]:8080/v1/tunnel"},
		{"https://hub.example.org", "", "https://hub.example.org", "wss://hub.example.org/v1/tunnel"},
		{"https://hub.example.org:8443", "", "https://hub.example.org:8443", "wss://hub.example.org:8443/v1/tunnel"},
		{"https://[2001:db8::1]", "", "https://[2001:db8::1]", "wss://[2001:db8::1]/v1/tunnel"},
		{"https://hub.example.org/", "https://hub.example.org", "https://hub.example.org", "wss://hub.example.org/v1/tunnel"},
		{"  mesh://hub:1" + pinQuery + "\n", "mesh://hub:1" + pinQuery, "https://hub:1", "wss://hub:1/v1/tunnel"},
		{"MESH://Hub.LAN:08443?pin=SHA256:" + strings.ToUpper(pin), "mesh://hub.lan:8443" + pinQuery, "https://hub.lan:8443", "wss://hub.lan:8443/v1/tunnel"},
		{"mesh://hub:8443?pin=sha256%3A" + pin, "mesh://hub:8443" + pinQuery, "https://hub:8443", "wss://hub:8443/v1/tunnel"},
		{"http://127.0.0.1:8080", "mesh+plain://127.0.0.1:8080", "http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/tunnel"},
		{"http://localhost", "mesh+plain://localhost:80", "http://localhost:80", "ws://localhost:80/v1/tunnel"},
		{"http://[::1]:8080", "mesh+plain://[::1]:8080", "http://[::1]:8080", "ws://[::1]:8080/v1/tunnel"},
		{"https://my_host-1:65535", "", "https://my_host-1:65535", "wss://my_host-1:65535/v1/tunnel"},
	} {
		t.Run(c.in, func(t *testing.T) {
			l := must(auth.ParseLink(c.in))(t)
			if c.text == "" {
				c.text = c.in
			}
			if got := l.String(); got != c.text {
				t.Errorf("formats as %s, want %s", got, c.text)
			}
			if got := l.BaseURL(); got != c.base {
				t.Errorf("base URL %s, want %s", got, c.base)
			}
			if got := l.TunnelURL(); got != c.tunnel {
				t.Errorf("tunnel URL %s, want %s", got, c.tunnel)
			}
		})
	}
}

func TestBadLinkSaysWhatIsWrongAndWhatALinkLooksLike(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "it is empty"},
		{" \n", "it is empty"},
		{"hub.lan:8443", "does not begin with"},
		{"ftp://hub.lan:8443", "another word"},
		{"mesh:hub.lan:8443", "does not begin with"},
		{"mesh://hub.lan:8443", "the pin is missing"},
		{"mesh://hub.lan:8443?", "the pin is missing"},
		{"mesh://hub.lan:8443?pin=", "the pin is missing"},
		{"mesh://hub.lan:8443?pin=" + pin, "does not begin with sha256:"},
		{"mesh://hub.lan:8443?pin=md5:" + pin, "does not begin with sha256:"},
		{"mesh://hub.lan:8443" + pinQuery[:len(pinQuery)-1], "63 hex digits instead of 64"},
		{"mesh://hub.lan:8443" + pinQuery + "0", "65 hex digits instead of 64"},
		{"mesh://hub.lan:8443" + pinQuery[:len(pinQuery)-1] + "g", "something other than hex digits"},
		{"mesh://hub.lan:8443" + pinQuery + "&pin=sha256:" + pin, "beside one pin"},
		{"mesh://hub.lan:8443" + pinQuery + "&x=1", "beside one pin"},
		{"mesh://hub.lan:8443?pin=%zz", "cannot be read"},
		{"mesh://hub.lan" + pinQuery, "the port is missing"},
		{"mesh+plain://hub.lan", "the port is missing"},
		{"mesh+plain://hub.lan:80" + pinQuery, "only a mesh:// link"},
		{"https://hub.lan" + pinQuery, "only a mesh:// link"},
		{"https://hub.lan?", "only a mesh:// link"},
		{"https://hub.lan/some/path", "a path"},
		{"https://hub.lan//", "a path"},
		{"https://hub.lan#x", "a # part"},
		{"https://me:hunter2@hub.lan", "a user or password"},
		{"mesh://me@hub.lan:1" + pinQuery, "a user or password"},
		{"http://hub.lan:8080", "mesh+plain:// instead"},
		{"http://192.168.1.5:8080", "mesh+plain:// instead"},
		{"http://127.0.0.1.example.org", "mesh+plain:// instead"},
		{"http://localhost.example.org", "mesh+plain:// instead"},
		{"https://", "the host is missing"},
		{"https://:8443", "the host is missing"},
		{"mesh://0.0.0.0:8443" + pinQuery, "the address of no machine"},
		{"mesh://[::]:8443" + pinQuery, "the address of no machine"},
		{"mesh://2001:db8::1:8443" + pinQuery, "needs [ and ]"},
		{"mesh://[2001:db8::1:8443" + pinQuery, "the ]"},
		{"mesh://[2001:db8::1]8443" + pinQuery, "other than a port"},
		{"mesh://[hub]:8443" + pinQuery, "no IPv6 address"},
		{"mesh://[127.0.0.1]:8443" + pinQuery, "no IPv6 address"},
		{"mesh://[fe80::1%25a/b]:8443" + pinQuery, ""},
		{"mesh://[fe80::1%25a b]:8443" + pinQuery, "the zone"},
		{"mesh://hub:0" + pinQuery, "the port is not"},
		{"mesh://hub:65536" + pinQuery, "the port is not"},
		{"mesh://hub:-1" + pinQuery, "the port is not"},
		{"mesh://hub:http" + pinQuery, "the port is not"},
		{"https://hub:", "the port is not"},
		{"https://hub lan", "neither a name"},
		{"https://hüb.lan", "neither a name"},
		{"https://-hub", "neither a name"},
		{"https://hub..lan", "neither a name"},
		{"https://hub.", "neither a name"},
		{"https://256.1.1.1", "neither a name"},
		{"https://1.2.3", "neither a name"},
		{"https://" + strings.Repeat("a", 64), "neither a name"},
		{"https://" + strings.Repeat("a.", 200) + "b", "neither a name"},
		{"https://" + strings.Repeat("a", 2000), "too long"},
	} {
		t.Run(c.in, func(t *testing.T) {
			l, err := auth.ParseLink(c.in)
			if !errors.Is(err, auth.ErrBadLink) || l != (auth.Link{}) {
				t.Fatalf("got %v, %v; want ErrBadLink", l, err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q does not say %q", err, c.want)
			}
			if !strings.Contains(err.Error(), auth.LinkForms) {
				t.Errorf("%q does not say what a link looks like", err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q repeats a password", err)
			}
		})
	}
}

func TestLinkTravelsInJSON(t *testing.T) {
	type doc struct{ Link auth.Link }
	want := doc{must(auth.ParseLink("mesh://hub:8443" + pinQuery))(t)}
	data := must(json.Marshal(want))(t)
	if !strings.Contains(string(data), `"mesh://hub:8443?pin=sha256:`) {
		t.Errorf("encoded as %s", data)
	}
	var got doc
	if err := json.Unmarshal(data, &got); err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if err := json.Unmarshal([]byte(`{"Link":""}`), &got); err != nil || got != (doc{}) {
		t.Errorf("an empty link reads as %v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`{"Link":"nonsense"}`), &got); !errors.Is(err, auth.ErrBadLink) {
		t.Errorf("got %v, want ErrBadLink", err)
	}
}

func FuzzParseLink(f *testing.F) {
	for _, s := range []string{"mesh://hub.lan:8443" + pinQuery, "mesh+plain://[::1]:80", "https://hub", "http://127.0.0.1",
		"mesh://[fe80::1%25eth0]:1" + pinQuery, "https://user:pw@hub", "https://::ffff:1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := auth.ParseLink(s)
		if err != nil {
			if !errors.Is(err, auth.ErrBadLink) {
				t.Errorf("got %v, want ErrBadLink", err)
			}
			return
		}
		again, err := auth.ParseLink(l.String())
		if err != nil || again != l {
			t.Fatalf("%q formats as %q, which reads as %v, %v", s, l, again, err)
		}
		for _, text := range []string{l.BaseURL(), l.TunnelURL()} {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatalf("%q makes no URL: %v", s, err)
			}
			if u.Hostname() != l.Host || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
				t.Errorf("%q leads to %q instead of %q", s, u.Hostname(), l.Host)
			}
		}
	})
}
