package shown_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"opencode-mesh/hub/shown"
)

func TestALineHasNoControlCharactersAndABound(t *testing.T) {
	for in, want := range map[string]string{
		"":                       "",
		"plain":                  "plain",
		"  \x1b[31mred\x1b[0m\n": "red",
		"two\nlines":             "two lines",
		"a\x00b\u202ec":          "abc",
		"12345678901":            "1234567890",
		"123456789ä":             "123456789", // not half of a character
	} {
		if got := shown.Line(in, 10); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestATextKeepsItsLinesAndTheirIndentation(t *testing.T) {
	got := shown.Text("\n which?\r\n  1. \x1b[2Jone\n\t2. two\x07 \n", 100)
	if want := "which?\n  1. one\n\t2. two"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := shown.Text(strings.Repeat("ä\n", 1000), 101); len(got) > 101 || !utf8.ValidString(got) {
		t.Errorf("%d bytes, %q", len(got), got)
	}
}

func TestAListIsBoundedInBothWays(t *testing.T) {
	got := shown.Lines([]string{"one", "\x07", "two", "three", "four"}, 3, 4)
	if want := []string{"one", "two", "thre"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestOnlyACleanLineOfThatLengthIsOne(t *testing.T) {
	for s, want := range map[string]bool{"ok": true, "": false, " ok": false, "a\nb": false, "too long": false} {
		if shown.IsLine(s, 4) != want {
			t.Errorf("%q: not %v", s, want)
		}
	}
}

func TestCuttingNeverBreaksACharacter(t *testing.T) {
	const s = "aä€😀"
	for n := range len(s) + 3 {
		if got := shown.Cut(s, n); !utf8.ValidString(got) || len(got) > n || !strings.HasPrefix(s, got) {
			t.Errorf("cut at %d: %q", n, got)
		}
	}
}
