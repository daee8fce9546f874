package opencomms_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/protocol/opencomms"
)

func TestAnArchiveIsReadAsItWasWritten(t *testing.T) {
	text := exampleArchive(t)
	a, err := opencomms.DecodeArchive([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.Encode()
	if err != nil || string(out) != text {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := opencomms.DecodeArchive(out)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(a, b, sameState); d != "" {
		t.Fatal(d)
	}
	for _, line := range []string{`{
  "schema": 1,
  "channel_id": "chn_1a2b3c4d5e6f47089a0b1c2d3e4f5061",
  "name": "api-review",
  "parent_channel_id": null,
  "description": "Review the store package",
  "summary": "All is well.",
  "members": [
    {
      "session_id": "ses_4f1c0a9be",`, `
  "message_count": 2,
  "messages": [
    {
      "message_id": "ocm_0b7d2f5ac1e94c0f8f3e6a1b2c3d4e5f",`, `
  ],
  "final_state_note": "Looks fine, two nits inline"
}`} {
		if !strings.Contains(text, line) {
			t.Errorf("%s\nis not in\n%s", line, text)
		}
	}
}

func TestAnArchiveKeepsWhatWeDoNotKnow(t *testing.T) {
	text := strings.NewReplacer(`"summary": `, `"x-archive": [], "summary": `, `"role": "Builder"`, `"x-member": 1, "role": "Builder"`,
		`"hop_count": 1`, `"x-message": 1, "hop_count": 1`).Replace(exampleArchive(t))
	a, err := opencomms.DecodeArchive([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	a.Summary = "other"
	out, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"x-archive": [],`, `"x-member": 1,`, `"x-message": 1,`, `"summary": "other"`} {
		if strings.Count(string(out), want) != 1 {
			t.Errorf("%s is not in\n%s", want, out)
		}
	}
}

func TestArchivesThatAreNoneAreRefused(t *testing.T) {
	text := exampleArchive(t)
	for path, change := range map[string][2]string{
		"schema":      {`"schema": 1`, `"schema": 2`},
		"channel_id":  {`"channel_id": "chn_1a2b3c4d5e6f47089a0b1c2d3e4f5061",` + "\n  \"name\"", `"name"`},
		"name":        {`"name": "api-review"`, `"name": 1`},
		"members":     {`"members": [`, `"fellows": [`},
		"messages":    {`"messages": [`, `"messages": {}, "mail": [`},
		"saved_at":    {`"saved_at": 1770000030000`, `"saved_at": null`},
		"members[0]":  {`"members": [`, `"members": [1, `},
		"messages[0]": {`"messages": [`, `"messages": [null, `},
	} {
		if strings.Count(text, change[0]) != 1 {
			t.Fatalf("%s: %q", path, change[0])
		}
		_, err := opencomms.DecodeArchive([]byte(strings.Replace(text, change[0], change[1], 1)))
		var invalid *opencomms.InvalidError
		if !errors.As(err, &invalid) || invalid.Path != path {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, bad := range []string{"", "[]", "null", text + "x", text[:len(text)-1], "\uFEFF" + text} {
		if _, err := opencomms.DecodeArchive([]byte(bad)); err == nil {
			t.Errorf("%.20q was read", bad)
		}
	}
}

func TestAnArchiveThatCouldNotBeFoundAgainIsNotWritten(t *testing.T) {
	for id, want := range map[string]bool{
		"chn_1": true, "chn_" + strings.Repeat("a", 64): true, "chn_-_": true,
		"": false, "chn_": false, "chn_" + strings.Repeat("a", 65): false, "chn_../x": false, "ocm_1": false, "chn_1\n": false, "Chn_1": false, "chn_é": false,
	} {
		if opencomms.ValidArchiveID(id) != want {
			t.Errorf("%q is not %v", id, want)
		}
		_, err := (&opencomms.Archive{ChannelID: id, Name: "x"}).Encode()
		if (err == nil) != want {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, a := range []opencomms.Archive{{Members: []*opencomms.Member{nil}}, {Members: []*opencomms.Member{{}}}, {Messages: []*opencomms.Envelope{nil}}} {
		a.ChannelID = "chn_1"
		if _, err := a.Encode(); err == nil {
			t.Errorf("%+v was written", a)
		}
	}
}
