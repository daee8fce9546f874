package peers_test

import (
	"strings"
	"testing"

	"opencode-mesh/protocol/peers"
)

// Answers that the original gave.
func TestIDsAreThoseOfTheOriginal(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{peers.EndpointID("ses_abc123"), "session-523abb64d3b098ee780b13e7"},
		{peers.EndpointID("ses_héé"), "session-76ac949c50994349ebb427ca"},
		{peers.WorkspaceID("/srv/proj"), "workspace-49a719879a1d09394ff82409"},
		{peers.WorkspaceID("/srv/./x/../proj/"), "workspace-49a719879a1d09394ff82409"},
		{peers.RecordName("session-sender", "0123456789abcdef"), "238da08b06d3afae4711f373cc9803579b7e6d6991bb0614edbe893d4df3432c.json"},
		{peers.PromptID("ses_abc123", "session-sender", "0123456789abcdef"), "msg_ba54a7cfa64a5b13c954b018bd"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

func TestAProxyHasAnIDOfItsOwnThatTheOriginalTakesForOne(t *testing.T) {
	a, b := peers.ProxyID("beta", "session-1"), peers.ProxyID("bet", "asession-1")
	if a == b || a == peers.ProxyID("gamma", "session-1") || a != peers.ProxyID("beta", "session-1") {
		t.Error("proxies are not told apart by node and endpoint")
	}
	if !peers.IDLike(a) || peers.Safe(a) != a {
		t.Errorf("%s is not of the form of an id", a)
	}
}

func TestWhatChanceMakesHasTheLengthOfTheOriginal(t *testing.T) {
	for _, c := range []struct {
		name string
		make func() string
		want int
	}{
		{"process", peers.NewProcessID, 8}, {"token", peers.NewToken, 48}, {"message", peers.NewMessageID, 16},
	} {
		a, b := c.make(), c.make()
		if len(a) != c.want || strings.Trim(a, "0123456789abcdef") != "" || a == b {
			t.Errorf("%s: %q and %q, want %d hex digits by chance", c.name, a, b, c.want)
		}
	}
}

func TestADefaultNameIsThatOfTheDirectoryWithTheEndOfTheProcess(t *testing.T) {
	for _, c := range []struct{ directory, process, want string }{
		{"/home/u/my-app", "0011a3f2", "my-app-a3f2"},
		{"/home/u/my-app/", "0011a3f2", "my-app-a3f2"},
		{"/home/u/v1.2 ü", "0011a3f2", "v1.2 ü-a3f2"},
		{"/", "0011a3f2", "opencode-a3f2"},
		{"", "0011a3f2", "opencode-a3f2"},
		{"/x/" + strings.Repeat("a", 27), "0011a3f2", strings.Repeat("a", 27) + "-a3f2"},
		{"/x/" + strings.Repeat("a", 28), "0011a3f2", strings.Repeat("a", 27) + "-a3f2"},
		{"/x/" + strings.Repeat("ü", 30), "0011a3f2", strings.Repeat("ü", 27) + "-a3f2"},
		{"/x/" + strings.Repeat("😀", 13) + "ab", "0011a3f2", strings.Repeat("😀", 13) + "a-a3f2"},
		// What is left of a pair that was cut is read like this in the original's files.
		{"/x/" + strings.Repeat("😀", 14), "0011a3f2", strings.Repeat("😀", 13) + "\uFFFD-a3f2"},
		{"/x", "f2", "x-f2"},
	} {
		if got := peers.DefaultName(c.directory, c.process); got != c.want {
			t.Errorf("DefaultName(%q, %q) = %q, want %q", c.directory, c.process, got, c.want)
		}
	}
}

func TestNamesThatPeopleMayGive(t *testing.T) {
	for name, want := range map[string]bool{
		"alpha": true, "A b_c-9": true, strings.Repeat("x", 32): true, " ": true,
		"": false, strings.Repeat("x", 33): false, "a.b": false, "ä": false, "a/b": false, "a\n": false, "\na": false,
	} {
		if peers.ValidName(name) != want {
			t.Errorf("ValidName(%q) = %v", name, !want)
		}
	}
}

func TestTargetsThatAreMeantAsIDs(t *testing.T) {
	for target, want := range map[string]bool{
		"session-523abb64d3b098ee780b13e7": true, "workspace-0": true, "session-demo_x-Y": true,
		"session-": false, "session--x": false, "session-_": false, "session-a b": false, "Session-a": false,
		"my session-a": false, "session-ä": false, "8caabdbb": false, "session-a\n": false,
	} {
		if peers.IDLike(target) != want {
			t.Errorf("IDLike(%q) = %v", target, !want)
		}
	}
}

func TestIDsBecomeNamesOfFiles(t *testing.T) {
	for id, want := range map[string]string{
		"session-a_B9": "session-a_B9", "../../etc/passwd": "______etc_passwd", "a.b c": "a_b_c", "ü": "_", "😀": "__", "a\x00": "a_", "": "",
	} {
		if got := peers.Safe(id); got != want {
			t.Errorf("Safe(%q) = %q, want %q", id, got, want)
		}
	}
	e := peers.Entry{EndpointID: "session-a/b", ProcessID: "8caabdbb"}
	if got := e.FileName(); got != "8caabdbb.session-a_b.v2.json" {
		t.Errorf("the file is %q", got)
	}
	if got := e.Compat(1).FileName(); got != "8caabdbb.json" {
		t.Errorf("the file of version 1 is %q", got)
	}
}

func TestDirectoriesAreTheSameByTheirText(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"/srv/proj", "/srv/./x/../proj/", true},
		{"/srv/proj", "/srv/Proj", false},
		{"/srv/proj", "/srv/proj/sub", false},
		{"beta:/srv/proj", "/srv/proj", false}, // of another machine
		{"beta:/srv/proj", "beta:/srv/proj", false},
		{"proj", "proj", false},
		{"", "", false},
	} {
		if got := peers.SameDirectory(c.a, c.b); got != c.want {
			t.Errorf("SameDirectory(%q, %q) = %v", c.a, c.b, got)
		}
	}
}
