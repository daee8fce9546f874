package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func written(lines []diffLine) string {
	var out []string
	for _, l := range lines {
		out = append(out, string(l.mark)+l.text)
	}
	return strings.Join(out, " ")
}

func TestADiffKeepsWhatIsCommon(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"", "", ""},
		{"a", "", "-a"},
		{"", "a", "+a"},
		{"a b c", "a b c", " a  b  c"},
		{"a b c", "a x c", " a -b +x  c"},
		{"a b c d", "b d", "-a  b -c  d"},
		{"a b", "b a", "-a  b +a"},
		{"a a a", "a a", " a  a -a"},
	} {
		if got := written(diffLines(strings.Fields(c.a), strings.Fields(c.b))); got != c.want {
			t.Errorf("%q to %q: %q, want %q", c.a, c.b, got, c.want)
		}
	}
}

func TestADiffLeadsFromOneListToTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		a, b := rapid.SliceOfN(word, 0, 12).Draw(t, "a"), rapid.SliceOfN(word, 0, 12).Draw(t, "b")
		var from, to []string
		common := 0
		for _, l := range diffLines(a, b) {
			if l.mark != added {
				from = append(from, l.text)
			}
			if l.mark != removed {
				to = append(to, l.text)
			}
			if l.mark == kept {
				common++
			}
		}
		if !slices.Equal(from, a) || !slices.Equal(to, b) {
			t.Fatalf("from %q to %q leads from %q to %q", a, b, from, to)
		}
		if want := longest(a, b); common != want {
			t.Fatalf("%d lines are kept, %d could be", common, want)
		}
	})
}

// longest is the length of a longest common subsequence, found in the plainest way.
func longest(a, b []string) int {
	if len(a) == 0 || len(b) == 0 {
		return 0
	}
	if a[0] == b[0] {
		return 1 + longest(a[1:], b[1:])
	}
	return max(longest(a[1:], b), longest(a, b[1:]))
}

func TestADiffThatWouldTakeTooMuchIsAWholeReplacement(t *testing.T) {
	var a, b []string
	for i := range 5000 {
		a, b = append(a, fmt.Sprint("a", i)), append(b, fmt.Sprint("b", i))
	}
	got := diffLines(append([]string{"same"}, a...), append([]string{"same"}, b...))
	if len(got) != 10001 || got[0].mark != kept || got[1].mark != removed || got[10000].mark != added {
		t.Errorf("%d lines", len(got))
	}
}
