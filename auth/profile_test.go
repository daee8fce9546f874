package auth_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
)

func newProfile(t *testing.T) auth.Profile {
	t.Helper()
	link := must(auth.ParseLink("mesh://hub.lan:8443" + pinQuery))(t)
	return auth.NewProfile(link, "", issuedBy(request(), api.RoleNode))
}

func TestProfileSurvivesItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "dir", "credential.json")
	for _, caFile := range []string{"", "/etc/hub/ca.pem"} { // the second replaces the first
		want := newProfile(t)
		want.CAFile = caFile
		if err := auth.SaveProfile(path, want); err != nil {
			t.Fatal(err)
		}
		if got := must(auth.LoadProfile(path))(t); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		var fields map[string]any
		if err := json.Unmarshal(must(os.ReadFile(path))(t), &fields); err != nil {
			t.Fatal(err)
		}
		for field, value := range map[string]any{
			"link": want.Link.String(), "hub_id": "hub_1", "identity_id": "idn_1", "name": "alpha",
			"role": "node", "credential": want.Credential.Reveal(),
		} {
			if fields[field] != value {
				t.Errorf("field %s is %v, want %v", field, fields[field], value)
			}
		}
	}
	if runtime.GOOS != "windows" {
		for p, want := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700, filepath.Dir(filepath.Dir(path)): 0o700} {
			if got := must(os.Stat(p))(t).Mode().Perm(); got != want {
				t.Errorf("%s has mode %o, want %o", p, got, want)
			}
		}
	}
	if entries := must(os.ReadDir(filepath.Dir(path)))(t); len(entries) != 1 {
		t.Errorf("the directory holds more than the file: %v", entries)
	}
}

func TestSaveProfileTightensAFileThatWasOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credential.json")
	write(t, path, []byte("old"))
	chmod(t, path, 0o666)
	if err := auth.SaveProfile(path, newProfile(t)); err != nil {
		t.Fatal(err)
	}
	must(auth.LoadProfile(path))(t)
}

func TestProfileThatOthersCanReadIsRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // access rights are not in the mode there
	}
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620, 0o602, 0o644, 0o610, 0o777} {
		path := filepath.Join(t.TempDir(), "credential.json")
		p := newProfile(t)
		if err := auth.SaveProfile(path, p); err != nil {
			t.Fatal(err)
		}
		chmod(t, path, mode)
		_, err := auth.LoadProfile(path)
		if !errors.Is(err, auth.ErrExposed) {
			t.Fatalf("mode %o: got %v, want ErrExposed", mode, err)
		}
		if !strings.Contains(err.Error(), "chmod 600 "+path) || strings.Contains(err.Error(), p.Credential.Reveal()) {
			t.Errorf("mode %o: %q does not say what to do, or says too much", mode, err)
		}
	}
}

func TestDamagedProfileIsReportedWithoutItsSecret(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "credential.json")
	if err := auth.SaveProfile(path, newProfile(t)); err != nil {
		t.Fatal(err)
	}
	good := string(must(os.ReadFile(path))(t))
	secret := must(auth.LoadProfile(path))(t).Credential.Reveal()
	for name, text := range map[string]string{
		"empty":                 "",
		"half":                  good[:len(good)/2],
		"half in the secret":    good[:strings.Index(good, secret)+20],
		"not JSON":              secret,
		"another type":          strings.Replace(good, `"`+secret+`"`, "12345", 1),
		"no link":               strings.Replace(good, `"link"`, `"lonk"`, 1),
		"bad link":              strings.Replace(good, "mesh://", "ftp://", 1),
		"no hub":                strings.Replace(good, "hub_1", "", 1),
		"no identity":           strings.Replace(good, "idn_1", "", 1),
		"bad name":              strings.Replace(good, "alpha", "Al pha", 1),
		"bad role":              strings.Replace(good, `"node"`, `"king"`, 1),
		"no credential":         strings.Replace(good, secret, "", 1),
		"a credential cut":      strings.Replace(good, secret, secret[:20], 1),
		"a redacted credential": strings.Replace(good, secret, "[redacted]", 1),
	} {
		write(t, path, []byte(text))
		p, err := auth.LoadProfile(path)
		if !errors.Is(err, auth.ErrBadProfile) || p != (auth.Profile{}) {
			t.Errorf("%s: got %v, want ErrBadProfile", name, err)
			continue
		}
		if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %q does not name the file", name, err)
		}
		if strings.Contains(err.Error(), secret[:12]) || strings.Contains(err.Error(), "12345") {
			t.Errorf("%s: %q shows the secret", name, err)
		}
	}
	write(t, path, []byte(good+strings.Repeat(" ", 1<<20)))
	if _, err := auth.LoadProfile(path); err == nil {
		t.Error("a file of a megabyte was taken")
	}
	if _, err := auth.LoadProfile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	if _, err := auth.LoadProfile(dir); err == nil {
		t.Error("a directory was taken")
	}
}

func TestIncompleteProfileIsNotSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "credential.json")
	good := newProfile(t)
	if err := auth.SaveProfile(path, good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(p *auth.Profile){
		"no link":        func(p *auth.Profile) { p.Link = auth.Link{} },
		"no credential":  func(p *auth.Profile) { p.Credential = "" },
		"bad credential": func(p *auth.Profile) { p.Credential = hidden },
	} {
		p := newProfile(t)
		change(&p)
		err := auth.SaveProfile(path, p)
		if err == nil {
			t.Errorf("%s: saved", name)
			continue
		}
		wantHidden(t, name, err.Error())
	}
	if got := must(auth.LoadProfile(path))(t); got != good {
		t.Error("the good one was replaced")
	}
	blocked := filepath.Join(path, "below-a-file", "credential.json")
	if err := auth.SaveProfile(blocked, good); err == nil {
		t.Error("saved below a file")
	}
}
