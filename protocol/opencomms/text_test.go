package opencomms_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"opencode-mesh/protocol/opencomms"
)

func TestANameSaysWhichRuleItBreaks(t *testing.T) {
	for in, want := range map[string]error{
		"": errEmpty, " \uFEFF\n": errEmpty, strings.Repeat("a", 65): errLong, strings.Repeat("é", 65): errLong,
		"a b": errForm, "-a": errForm, "_a": errForm, "é": errForm, "a.b": errForm, "\u0085a": errForm, "İ": errForm,
		"a": nil, " Api-Review_2 ": nil, strings.Repeat("a", 64): nil, "7": nil,
	} {
		if _, err := opencomms.NormalName(in); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%q: %v, want %v", in, err, want)
		}
	}
	if name, _ := opencomms.NormalName("\uFEFF Api-Review\t"); name != "api-review" {
		t.Errorf("%q", name)
	}
}

var errEmpty, errLong, errForm = opencomms.ErrNameEmpty, opencomms.ErrNameLong, opencomms.ErrNameForm

func TestARoleKeepsItsSpellingAndOneBlank(t *testing.T) {
	if role, err := opencomms.NormalRole(" \tLead \u00a0 Re-viewer_2\n"); role != "Lead Re-viewer_2" || err != nil {
		t.Errorf("%q %v", role, err)
	}
	for _, in := range []string{"", " ", "2nd", "Rôle", "a.b", strings.Repeat("a", 33), "_a"} {
		if role, err := opencomms.NormalRole(in); !errors.Is(err, opencomms.ErrRoleForm) || role != "" {
			t.Errorf("%q: %q %v", in, role, err)
		}
	}
}

func TestMemberIDsThatAnOperatorMayChoose(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "7": true, "sess_1-B": true, strings.Repeat("a", 64): true,
		"": false, "_a": false, "-a": false, "a b": false, "a/b": false, "é": false, strings.Repeat("a", 65): false, "a\n": false,
	} {
		if opencomms.ValidMember(id) != want {
			t.Errorf("%q is not %v", id, want)
		}
	}
}

func TestNewIDsHaveTheFormOfTheirKind(t *testing.T) {
	for prefix, form := range map[string]string{
		opencomms.PrefixMessage:     `^ocm_[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`,
		opencomms.PrefixChannel:     `^chn_[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`,
		opencomms.PrefixCorrelation: `^cor_[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$`,
		opencomms.PrefixMember:      `^sess_[0-9a-f]{24}$`,
	} {
		seen := map[string]bool{}
		for range 100 {
			id := opencomms.NewID(prefix)
			if !regexp.MustCompile(form).MatchString(id) || seen[id] {
				t.Errorf("%s", id)
			}
			seen[id] = true
		}
	}
}

func TestTheKeysOfTheExampleAreThoseOfItsContents(t *testing.T) {
	c, messages := only(t, decode(t, example(t)))
	for _, e := range messages {
		if _, ok := c.SeenContent.Get(opencomms.SeenKey(e.Sender, e.Content)); !ok {
			t.Errorf("%s is not among those seen", opencomms.SeenKey(e.Sender, e.Content))
		}
	}
}

func TestCutIsTheLongestBeginningThatFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(anyText, rapid.StringOf(rapid.RuneFrom([]rune("aé😀")))).Draw(t, "text")
		limit := rapid.IntRange(0, 20).Draw(t, "limit")
		cut := opencomms.Cut(s, limit)
		if !strings.HasPrefix(s, cut) || opencomms.Length(cut) > limit {
			t.Fatalf("%q of %q", cut, s)
		}
		if rest := s[len(cut):]; rest != "" && opencomms.Length(cut) < limit-1 {
			t.Fatalf("%q of %q is too short", cut, s)
		}
		if opencomms.Length(cut)+opencomms.Length(s[len(cut):]) != opencomms.Length(s) {
			t.Fatalf("%q of %q cuts a character", cut, s)
		}
	})
}
