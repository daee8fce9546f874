package cli_test

import (
	"encoding/json"
	"testing"
)

func TestAJSONLineHoldsNoRawCharacterThatSteersATerminal(t *testing.T) {
	p := newProgram()
	text := "a\x1b[2J\u007f\u009b2J\u202eb\u2066\u200b\ufeff\U000e0041 é 漢 😀\n"
	if err := p.app.JSONLine(map[string]string{"k\u009b": text}); err != nil {
		t.Fatal(err)
	}
	want := `{"k\u009b":"a\u001b[2J\u007f\u009b2J\u202eb\u2066\u200b\ufeff\udb40\udc41 é 漢 😀\n"}` + "\n"
	if got := p.out.String(); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	var back map[string]string
	if err := json.Unmarshal(p.out.Bytes(), &back); err != nil || back["k\u009b"] != text {
		t.Errorf("%v, read again: %q", err, back)
	}
}
