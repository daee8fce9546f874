package pins_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"opencode-mesh/node/opencomms/pins"
)

func TestFilesThatAreNoPinsAreNotListed(t *testing.T) {
	project := t.TempDir()
	if list, err := pins.List(project); err != nil || list != nil {
		t.Errorf("got %v, %v", list, err)
	}
	put(t, project, "b.json", `{"member_id":"b","host":"codex","saved_at":1,"principal":"operator"}`)
	put(t, project, "a.json", `{"member_id":"a","host":"opencode","saved_at":2}`)
	put(t, project, "c.json", `{"member_id":"a"}`)
	put(t, project, "d.txt", `{"member_id":"d"}`)
	put(t, project, "_e.json", `{"member_id":"_e"}`)
	if err := os.Mkdir(filepath.Join(pins.Dir(project), "f.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	list, err := pins.List(project)
	want := []pins.Pin{{MemberID: "a", Host: "opencode", SavedAt: 2}, {MemberID: "b", Host: "codex", SavedAt: 1, Principal: pins.PrincipalOperator}}
	if diff := cmp.Diff(want, list); err != nil || diff != "" {
		t.Errorf("%v; -want +got:\n%s", err, diff)
	}
}
