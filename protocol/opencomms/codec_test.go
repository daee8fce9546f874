package opencomms_test

import (
	"os"
	"testing"

	"opencode-mesh/protocol/opencomms"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestTheExampleIsWrittenAsItWasRead(t *testing.T) {
	data := read(t, "example.json")
	s, err := opencomms.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != string(data) {
		t.Fatalf("%s", out)
	}
}
