package proc

import "testing"

func TestStatLinesAreReadWhateverTheCommandIsCalled(t *testing.T) {
	const rest = " S 1 20 30 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 1 2 3"
	for _, name := range []string{"sh", "a b", "x) Z 9 9 9 (", "", "(())"} {
		st, ok := parseStat("10 (" + name + ")" + rest)
		if !ok || st.zombie || st.group != 20 || st.session != 30 || st.ticks != 777 || st.start != bootID()+"/777" {
			t.Errorf("%q: %+v, %t", name, st, ok)
		}
	}
	if st, ok := parseStat("10 (sh) Z 1 20 30 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 777 1"); !ok || !st.zombie {
		t.Errorf("zombie: %+v, %t", st, ok)
	}
	for _, bad := range []string{"", "10 sh S 1", "10 (sh) S 1 20 30", "10 (sh) S 1 x 30 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 777 1"} {
		if st, ok := parseStat(bad); ok {
			t.Errorf("%q: %+v", bad, st)
		}
	}
}
