package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"opencode-mesh/protocol/api"
)

// keepKeys takes the keys out of an answer that is JSON. An answer in which they
// could not be found is refused.
func (c *call) keepKeys(res *http.Response) error {
	if c.in.Method == http.MethodHead {
		res.Header.Del("Content-Length") // of what GET would answer nobody knows
		return nil
	}
	typ, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if typ != "application/json" && !strings.HasSuffix(typ, "+json") {
		return nil // the web interface's page, or an error of plain text
	}
	whole, err := io.ReadAll(io.LimitReader(res.Body, api.MaxRewritten+1))
	_ = res.Body.Close()
	if err != nil {
		return err
	}
	cannot := func(why string) error {
		return api.Errorf(api.CodeServiceDown, "the answer of %s of node %s %s, so that the hub cannot keep its keys back", c.service.Name, c.node.name, why)
	}
	switch {
	case len(whole) > api.MaxRewritten:
		return cannot(fmt.Sprintf("is larger than %d bytes", api.MaxRewritten))
	case res.Header.Get("Content-Encoding") != "" && !strings.EqualFold(res.Header.Get("Content-Encoding"), "identity"):
		return cannot("is compressed although that was not asked for")
	case len(bytes.TrimSpace(whole)) == 0:
	default:
		if whole, err = stripKeys(whole); err != nil {
			return cannot("is not the JSON that it says")
		}
	}
	res.Body = io.NopCloser(bytes.NewReader(whole))
	res.ContentLength = int64(len(whole))
	res.TransferEncoding = nil
	for _, name := range []string{"Etag", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		res.Header.Del(name) // of what it was
	}
	res.Header.Set("Content-Length", strconv.Itoa(len(whole)))
	return nil
}

// stripKeys takes secrets out of a JSON text: members whose names say that they hold
// one, all values of headers and environments, and passwords inside URLs. The rest
// stays as it is, byte for byte.
func stripKeys(text []byte) ([]byte, error) {
	if !json.Valid(text) {
		return nil, errors.New("not JSON")
	}
	s := &stripper{in: text, out: make([]byte, 0, len(text))}
	s.value(false)
	s.space()
	return s.out, nil
}

// secretNames are the names of members that hold a secret, without case, dashes and
// underscores.
var secretNames = map[string]bool{
	"key": true, "apikey": true, "token": true, "accesstoken": true, "refreshtoken": true, "idtoken": true, "authtoken": true,
	"secret": true, "clientsecret": true, "password": true, "passwd": true, "authorization": true, "credentials": true,
	"accesskey": true, "accesskeyid": true, "secretkey": true, "secretaccesskey": true, "sessiontoken": true, "privatekey": true,
	"bearertoken": true, "access": true, "refresh": true,
}

// opaqueNames are those of objects whose members may be called anything.
var opaqueNames = map[string]bool{"headers": true, "environment": true}

// stripper walks a valid JSON text once.
type stripper struct {
	in, out []byte
	pos     int
}

// space copies white space.
func (s *stripper) space() {
	from := s.pos
	for s.pos < len(s.in) && strings.IndexByte(" \t\r\n", s.in[s.pos]) >= 0 {
		s.pos++
	}
	s.out = append(s.out, s.in[from:s.pos]...)
}

// value copies the next value, or, with blank, an empty one of its type.
func (s *stripper) value(blank bool) {
	s.space()
	switch s.in[s.pos] {
	case '{':
		s.object(blank)
	case '[':
		s.array(blank)
	case '"':
		s.text(blank)
	default:
		from := s.pos
		for s.pos < len(s.in) && strings.IndexByte(",]} \t\r\n", s.in[s.pos]) < 0 {
			s.pos++
		}
		s.out = append(s.out, s.in[from:s.pos]...)
	}
}

// quoted passes over a string and returns it with its quotes.
func (s *stripper) quoted() []byte {
	from := s.pos
	for s.pos++; s.in[s.pos] != '"'; s.pos++ {
		if s.in[s.pos] == '\\' {
			s.pos++
		}
	}
	s.pos++
	return s.in[from:s.pos]
}

func (s *stripper) text(blank bool) {
	raw := s.quoted()
	if blank {
		raw = []byte(`""`)
	} else if bytes.Contains(raw, []byte("@")) && bytes.Contains(raw, []byte("//")) {
		raw = withoutPassword(raw)
	}
	s.out = append(s.out, raw...)
}

// withoutPassword takes user and password out of a string that is a URL.
func withoutPassword(raw []byte) []byte {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return raw
	}
	u, err := url.Parse(text)
	if err != nil || u.User == nil {
		return raw
	}
	u.User = nil
	clean, err := json.Marshal(u.String())
	if err != nil {
		return []byte(`""`)
	}
	return clean
}

func (s *stripper) array(blank bool) {
	s.out, s.pos = append(s.out, '['), s.pos+1
	s.space()
	for s.in[s.pos] != ']' {
		s.value(blank)
		s.space()
		if s.in[s.pos] == ',' {
			s.out, s.pos = append(s.out, ','), s.pos+1
		}
		s.space()
	}
	s.out, s.pos = append(s.out, ']'), s.pos+1
}

// object leaves the members out that hold a secret.
func (s *stripper) object(blank bool) {
	s.out, s.pos = append(s.out, '{'), s.pos+1
	s.space()
	kept := 0
	for s.in[s.pos] != '}' {
		mark := len(s.out) // of the member, with the comma before it
		if kept > 0 {
			s.out = append(s.out, ',')
		}
		name := s.quoted()
		s.out = append(s.out, name...)
		s.space()
		s.out, s.pos = append(s.out, ':'), s.pos+1
		plain := fold(name)
		s.space()
		// A secret is text; what is more than that is looked into.
		if secretNames[plain] && s.in[s.pos] != '{' && s.in[s.pos] != '[' {
			s.value(true)
			s.out = s.out[:mark]
		} else {
			s.value(blank || opaqueNames[plain])
			kept++
		}
		s.space()
		if s.in[s.pos] == ',' {
			s.pos++
		}
		s.space()
	}
	s.out, s.pos = append(s.out, '}'), s.pos+1
}

// fold reduces the name of a member to what secretNames has.
func fold(raw []byte) string {
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return ""
	}
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
}
