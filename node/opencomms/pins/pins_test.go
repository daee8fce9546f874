package pins_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"opencode-mesh/node/opencomms/pins"
)

func TestAPinIsReadWhateverElseItHolds(t *testing.T) {
	for name, text := range map[string]string{
		"ours":            `{"member_id":"sess_1","host":"codex","saved_at":1770000000000}`,
		"a time in words": `{"member_id":"sess_1","host":"codex","saved_at":"2026-01-01T00:00:00Z","more":[1]}`,
	} {
		project := t.TempDir()
		put(t, project, "sess_1.json", text)
		pin, err := pins.Load(project, "sess_1")
		if err != nil || pin.MemberID != "sess_1" || pin.Host != "codex" {
			t.Errorf("%s: %+v, %v", name, pin, err)
		}
	}
}

func TestWhatIsNoPinOfTheMemberIsNone(t *testing.T) {
	for name, c := range map[string]struct{ member, file, text string }{
		"nothing there":    {"sess_1", "sess_2.json", `{"member_id":"sess_2"}`},
		"another's id":     {"sess_1", "sess_1.json", `{"member_id":"sess_2"}`},
		"another spelling": {"sess_1", "sess_1.json", `{"member_id":"SESS_1"}`},
		"no JSON":          {"sess_1", "sess_1.json", `{"member_id":"sess_1"`},
		"a list":           {"sess_1", "sess_1.json", `["sess_1"]`},
		"a way out":        {"../sess_1", "../sess_1.json", `{"member_id":"../sess_1"}`},
		"no id":            {"", ".json", `{"member_id":""}`},
	} {
		project := t.TempDir()
		put(t, project, c.file, c.text)
		if pin, err := pins.Load(project, c.member); !errors.Is(err, pins.ErrNone) {
			t.Errorf("%s: %+v, %v", name, pin, err)
		}
	}
}

func put(t *testing.T, project, name, text string) {
	t.Helper()
	if err := os.MkdirAll(pins.Dir(project), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pins.Dir(project), name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
