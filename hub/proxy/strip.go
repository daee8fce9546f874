package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

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
	whole, leave, err := c.whole(res)
	if err != nil {
		return err
	}
	cannot := func(why string) error {
		leave()
		return c.cannotKeep(why)
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
	res.Body = &rewritten{bytes.NewReader(whole), sync.OnceFunc(leave)}
	res.ContentLength = int64(len(whole))
	res.TransferEncoding = nil
	for _, name := range []string{"Etag", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		res.Header.Del(name) // of what it was
	}
	res.Header.Set("Content-Length", strconv.Itoa(len(whole)))
	return nil
}

func (c *call) cannotKeep(why string) error {
	return api.Errorf(api.CodeServiceDown, "the answer of %s of node %s %s, so that the hub cannot keep its keys back", c.service.Name, c.node.name, why)
}

// rewritten is the body of a rewritten answer. It holds room until it has been passed on.
type rewritten struct {
	*bytes.Reader
	leave func()
}

// Close implements io.Closer.
func (r *rewritten) Close() error {
	r.leave()
	return nil
}

// whole reads an answer that is to be rewritten, in the room that there is for such and
// in limited time, and one byte more at most than it may have. Call leave when it is
// needed no longer.
func (c *call) whole(res *http.Response) (whole []byte, leave func(), err error) {
	defer res.Body.Close()
	size := res.ContentLength
	if size > api.MaxRewritten {
		return nil, nil, c.cannotKeep(fmt.Sprintf("is larger than %d bytes", api.MaxRewritten))
	}
	if size < 0 {
		size = api.MaxRewritten
	}
	wait, cancel := context.WithTimeout(c.in.Context(), c.proxy.cfg.RoomTimeout)
	defer cancel()
	leave, err = c.proxy.room.Take(wait, c.node.name, size)
	if err != nil {
		e := api.Errorf(api.CodeUnavailable, "too many large answers of node %s are on their way through the hub; try again", c.node.name)
		e.RetryAfter = retryBusy
		return nil, nil, e
	}
	late := time.AfterFunc(c.proxy.cfg.RewriteTimeout, c.cancel) // breaks the read
	var b bytes.Buffer
	if res.ContentLength > 0 {
		b.Grow(int(size) + bytes.MinRead) // there is room for it, not for copies while it grows
	}
	_, err = b.ReadFrom(io.LimitReader(res.Body, api.MaxRewritten+1))
	if !late.Stop() && err != nil {
		err = api.Errorf(api.CodeTimeout, "the answer of %s of node %s, which the hub has to read whole, did not arrive in %s", c.service.Name, c.node.name, c.proxy.cfg.RewriteTimeout)
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return b.Bytes(), leave, nil
}

// stripKeys takes secrets out of a JSON text: members whose names say that they hold
// one, all values of headers and environments, and passwords inside URLs. The rest
// stays as it is, byte for byte. The result is never longer, and stands where the text was.
func stripKeys(text []byte) ([]byte, error) {
	if !json.Valid(text) {
		return nil, errors.New("not JSON")
	}
	s := &stripper{in: text, out: text[:0]}
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
	var clean bytes.Buffer
	enc := json.NewEncoder(&clean)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(u.String()); err != nil || clean.Len()-1 > len(raw) { // with its line end
		return []byte(`""`)
	}
	return clean.Bytes()[:clean.Len()-1]
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
