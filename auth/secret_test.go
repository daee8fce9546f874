package auth_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
)

const hidden = "hunter2-very-secret"

// wantHidden fails when s shows the secret as text, in hex or in bytes.
func wantHidden(t *testing.T, how, s string) {
	t.Helper()
	for _, form := range []string{hidden, fmt.Sprintf("%x", hidden), fmt.Sprintf("%X", hidden), fmt.Sprint([]byte(hidden))} {
		if strings.Contains(s, strings.Trim(form, "[]")) {
			t.Errorf("%s shows the secret: %s", how, s)
		}
	}
}

// holder is something that has a secret among other fields.
type holder struct {
	Name string
	Key  auth.Secret
	Ref  *auth.Secret
	List []auth.Secret
	Map  map[string]auth.Secret
}

func newHolder() holder {
	s := auth.Secret(hidden)
	return holder{"x", s, &s, []auth.Secret{s}, map[string]auth.Secret{"k": s}}
}

func TestSecretDoesNotPrint(t *testing.T) {
	s, h := auth.Secret(hidden), newHolder()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%t", "%c", "%U", "%10s", "%z"} {
		for how, v := range map[string]any{"alone": s, "by pointer": &s, "in a struct": h, "in a struct by pointer": &h} {
			wantHidden(t, verb+" "+how, fmt.Sprintf(verb, v))
		}
	}
	wantHidden(t, "Sprint", fmt.Sprint(s, h))
	wantHidden(t, "String", s.String())
	wantHidden(t, "GoString", s.GoString())
	wantHidden(t, "%w beside", fmt.Errorf("with %v: %w", s, errors.New("x")).Error())
	if s.Reveal() != hidden {
		t.Error("Reveal does not give the secret")
	}
}

func TestSecretDoesNotEncode(t *testing.T) {
	wantHidden(t, "JSON", string(must(json.Marshal(newHolder()))(t)))
	text := must(auth.Secret(hidden).MarshalText())(t)
	wantHidden(t, "text", string(text))
}

func TestSecretDoesNotLog(t *testing.T) {
	if v := slog.AnyValue(auth.Secret(hidden)).Resolve(); v.Kind() != slog.KindString || v.String() != "[redacted]" {
		t.Errorf("a handler sees %v", v)
	}
	var out bytes.Buffer
	for how, h := range map[string]slog.Handler{
		"text": slog.NewTextHandler(&out, nil),
		"JSON": slog.NewJSONHandler(&out, nil),
	} {
		out.Reset()
		log := slog.New(h)
		s, hold := auth.Secret(hidden), newHolder()
		profile := auth.NewProfile(auth.Link{}, "", api.Issued{Name: "x", Credential: hidden})
		log.Info("m", "secret", s, "pointer", &s, "holder", hold, "ref", &hold, "profile", profile,
			slog.Group("g", "secret", s), "list", []auth.Secret{s})
		log.With("secret", s).WithGroup("g").Info(fmt.Sprintf("%v %+v", s, profile), "err", fmt.Errorf("about %v", profile))
		wantHidden(t, "slog as "+how, out.String())
		if n := strings.Count(out.String(), "[redacted]"); n < 8 {
			t.Errorf("slog as %s: only %d values stand there as redacted:\n%s", how, n, out.String())
		}
	}
}
