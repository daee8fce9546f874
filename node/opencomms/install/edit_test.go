package install

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var entry = object{{"command", "x"}, {"env", object{{"A", "1"}}}}

func TestASetJSONMemberLeavesEverythingElseAsItIs(t *testing.T) {
	const nested = "\"s\": {\n    \"command\": \"x\",\n    \"env\": {\n      \"A\": \"1\"\n    }\n  }"
	for name, c := range map[string]struct{ text, want string }{
		"into an empty object":   {"{}", "{\n  \"s\": {\n    \"command\": \"x\",\n    \"env\": {\n      \"A\": \"1\"\n    }\n  }\n}"},
		"behind the last member": {"{\n  \"a\": 1\n}\n", "{\n  \"a\": 1,\n  " + nested + "\n}\n"},
		"behind a last comma":    {"{\n  \"a\": 1,\n}\n", "{\n  \"a\": 1,\n  " + nested + ",\n}\n"},
		"behind a comment":       {"{\n  \"a\": 1 // why, or \"not\"\n}", "{\n  \"a\": 1, // why, or \"not\"\n  " + nested + "\n}"},
		"behind a block comment": {"{\n  \"a\": 1, /* } */\n}", "{\n  \"a\": 1, /* } */\n  " + nested + ",\n}"},
		"on the one line":        {`{"a":1}`, `{"a":1, "s": {"command":"x","env":{"A":"1"}}}`},
		"with the file's tabs":   {"{\n\t\"a\": 1\n}", "{\n\t\"a\": 1,\n\t" + strings.ReplaceAll(nested, "  ", "\t") + "\n}"},
		"with its line ends":     {"{\r\n  \"a\": 1\r\n}\r\n", strings.ReplaceAll("{\n  \"a\": 1,\n  "+nested+"\n}\n", "\n", "\r\n")},
		"over one of its name":   {"{\n  \"s\": [1, {\"}\": 2}], // it\n  \"b\": 2\n}", "{\n  " + nested + ", // it\n  \"b\": 2\n}"},
		"over the last of two":   {"{\n  \"s\": 1,\n  \"s\": 2\n}", "{\n  \"s\": 1,\n  " + nested + "\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			doc, err := parseJSON([]byte(c.text), true)
			if err != nil {
				t.Fatal(err)
			}
			got, err := doc.set([]string{"s"}, entry)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestARemovedJSONMemberTakesItsCommaAlong(t *testing.T) {
	for text, want := range map[string]string{
		"{\n  \"a\": 1,\n  \"s\": {}\n}":                   "{\n  \"a\": 1\n}",
		"{\n  \"a\": 1,\n  \"s\": {},\n}":                  "{\n  \"a\": 1,\n}",
		"{\n  \"s\": {},\n  \"a\": 1\n}":                   "{\n  \"a\": 1\n}",
		"{\n  \"s\": {}\n}":                                "{\n}",
		"{\"a\":1, \"s\": {}}":                             "{\"a\":1}",
		"{\n  \"a\": 1, // of a\n  // of s\n  \"s\": 2\n}": "{\n  \"a\": 1 // of a\n  // of s\n}",
		"{\n  \"a\": 1\n}":                                 "{\n  \"a\": 1\n}",
	} {
		doc, err := parseJSON([]byte(text), true)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(doc.remove([]string{"s"})); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestBrokenJSONIsRefusedWithItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"{\n  \"a\": 1\n  \"b\": 2\n}": "line 3, column 3: a comma or } is wanted",
		"":                             "line 1, column 1: a value is wanted",
		"[]":                           "line 1, column 1: an object",
		"{} x":                         "line 1, column 4",
		"{\"a\": tru}":                 "line 1, column 7",
		"{\"a\" 1}":                    "a colon is wanted",
		"{\"a\": \"x":                  "the string has no end",
		"{\"a\": \"x\ny\"}":            "a string is wanted",
		"{/* }":                        "the comment has no end",
		"{,}":                          "a string is wanted",
		"\xef\xbb\xbf{}":               "line 1, column 1",
		"{\"a\":" + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "}": "nested deeper than 100",
	} {
		if _, err := parseJSON([]byte(text), true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"{ // c\n}", "{\"a\": 1,}", "{\"a\": [1,]}"} {
		if _, err := parseJSON([]byte(text), false); err == nil {
			t.Errorf("%q is no JSON, and was taken", text)
		}
	}
}

func TestTOMLIsReadAsFarAsEditingNeeds(t *testing.T) {
	text := strings.Join([]string{
		`# mine`,
		`model = "o5" # the one`,
		`"quoted.key" = 'c:\path'`,
		`many = """`,
		`[mcp_servers.fake]`,
		`a \`,
		`   b "" c"""`,
		`lines = '''[x]'''`,
		`list = [ # of`,
		`  "a", 1.5, [true],`,
		`]`,
		`when = 2026-01-02 03:04:05Z`,
		`inline = { a = 1, "b".c = "d" }`,
		`[projects."/home/u/[x]"]`,
		`trust_level = "trusted"`,
		`[[rules]]`,
		`n = 1`,
		`[[rules]]`,
		`n = 0x2`,
		`u = "A\t\""`,
		`[mcp_servers.other.env]`,
		`A = "1"`,
	}, "\n")
	doc, err := parseTOML([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"model": "o5", "quoted.key": `c:\path`, "many": "[mcp_servers.fake]\na b \"\" c", "lines": "[x]",
		"list": []any{"a", bare("1.5"), []any{bare("true")}}, "when": bare("2026-01-02 03:04:05Z"),
		"inline":      map[string]any{"a": bare("1"), "b": map[string]any{"c": "d"}},
		"projects":    map[string]any{"/home/u/[x]": map[string]any{"trust_level": "trusted"}},
		"rules":       []any{map[string]any{"n": bare("1")}, map[string]any{"n": bare("0x2"), "u": "A\t\""}},
		"mcp_servers": map[string]any{"other": map[string]any{"env": map[string]any{"A": "1"}}},
	}
	if diff := cmp.Diff(want, doc.tree); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestBrokenTOMLIsRefusedWithItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"a = 1\n[b\nc = 2":                "line 2, column 3: the heading has no end",
		"a":                               "a = is wanted",
		"a = ":                            "a value is wanted",
		"a = \"x\ny\"":                    "the string has no end on its line",
		"a = '''x":                        "the string has no end",
		"a = 1 b = 2":                     "the end of the line is wanted",
		"a = 1\na = 2":                    "a is set twice",
		"a = [1 2]":                       "a comma or ] is wanted",
		"a = 1\n[a.b]":                    "a is no table",
		"a = \"\\q\"":                     "an escape that TOML does not know",
		"= 1":                             "a key is wanted",
		"a = " + strings.Repeat("[", 200): "nested deeper than 100",
	} {
		if _, err := parseTOML([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestASetTOMLValueLeavesEverythingElseAsItIs(t *testing.T) {
	path := []string{"mcp_servers", "s"}
	for name, c := range map[string]struct {
		text string
		path []string
		v    any
		want string
	}{
		"a table in an empty file": {"", path, entry, "[mcp_servers.s]\ncommand = \"x\"\n\n[mcp_servers.s.env]\nA = \"1\"\n"},
		"a table at the end":       {"a = 1 # c", path, entry, "a = 1 # c\n\n[mcp_servers.s]\ncommand = \"x\"\n\n[mcp_servers.s.env]\nA = \"1\"\n"},
		"a value that is there": {
			"[mcp_servers.s]\ncommand = [ # old\n  1,\n] # c\ntimeout = 3\n", append(path, "command"), "x\\\"\x7f",
			"[mcp_servers.s]\ncommand = \"x\\\\\\\"\\u007f\" # c\ntimeout = 3\n",
		},
		"a value that is not": {
			"[mcp_servers.s]\ntimeout = 3 # c\n\n[b]\n", append(path, "args"), []string{"a", "b"},
			"[mcp_servers.s]\ntimeout = 3 # c\nargs = [\"a\", \"b\"]\n\n[b]\n",
		},
		"a value of a table that is not there": {
			"[mcp_servers.s]\r\na = 1\r\n", append(path, "env", "A"), "1",
			"[mcp_servers.s]\r\na = 1\r\n\r\n[mcp_servers.s.env]\r\nA = \"1\"\r\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			doc, err := parseTOML([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			got, err := doc.set(c.path, c.v)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if _, err := parseTOML(got); err != nil {
				t.Errorf("%q: %v", got, err)
			}
		})
	}
	t.Run("a table that is there in another form is refused", func(t *testing.T) {
		for _, text := range []string{
			"mcp_servers = { s = { command = \"y\" } }", "[mcp_servers]\ns.command = \"y\"",
			"mcp_servers = { a = { command = \"y\" } }", "mcp_servers.a.command = \"y\"", "mcp_servers = {}", "mcp_servers = 1", "mcp_servers = [{}]",
		} {
			doc, err := parseTOML([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := doc.set(path, entry); err == nil {
				t.Errorf("%q became %q", text, got)
			}
		}
	})
}

func TestARemovedTOMLTableTakesNothingElseAlong(t *testing.T) {
	text := "a = 1\n\n[mcp_servers.s]\ncommand = \"x\" # c\n\n[mcp_servers.s.env]\nA = \"1\"\n\n# of b\n[mcp_servers.b]\ncommand = \"y\"\n"
	doc, err := parseTOML([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := "a = 1\n\n# of b\n[mcp_servers.b]\ncommand = \"y\"\n"
	got := string(doc.remove([]string{"mcp_servers", "s"}))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if again, err := parseTOML([]byte(got)); err != nil || !reflect.DeepEqual(again.tree["mcp_servers"], map[string]any{"b": map[string]any{"command": "y"}}) {
		t.Errorf("%v: %v", again, err)
	}
}

// FuzzEdits asks of both editors that what they write says what was asked for and
// nothing else.
func FuzzEdits(f *testing.F) {
	for _, text := range []string{"{}", "{\n  \"mcp\": {\"a\": 1,}, // c\n}", "[mcp.b]\na = [1]\n", "a = \"\"\"x\"\"\"", "{\"mcp\":null}", "{\"a\":[{},]}",
		"mcp = { a = { b = 1 } }", "mcp.a.b = 1", "[mcp]\na = { b = 1 }", "[[mcp]]\na = 1", "[mcp]\nopencomms.env.A = 1"} {
		f.Add([]byte(text))
	}
	path := []string{"mcp", "opencomms"}
	want := map[string]any{"command": "x", "env": map[string]any{"A": "1"}}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, parse := range []func([]byte) (document, error){jsonc, strictJSON, readTOML} {
			doc, err := parse(text)
			if err != nil {
				continue
			}
			before, err := doc.decode()
			if err != nil {
				t.Fatalf("parsed, and cannot be decoded: %v", err)
			}
			if _, there := lookup(before, path); there {
				continue
			}
			changed, err := doc.set(path, entry)
			if err != nil {
				continue
			}
			if doc, err = parse(changed); err != nil {
				t.Fatalf("%q became %q: %v", text, changed, err)
			}
			after, err := doc.decode()
			if err != nil {
				t.Fatal(err)
			}
			if got, _ := lookup(after, path); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(without(before, path), without(after, path)) {
				t.Fatalf("%q became %q", text, changed)
			}
			if doc, err = parse(doc.remove(path)); err != nil {
				t.Fatalf("removed from %q: %v", changed, err)
			}
			if last, err := doc.decode(); err != nil || !reflect.DeepEqual(without(before, path), without(last, path)) {
				t.Fatalf("removed from %q: %v", changed, err)
			}
		}
	})
}
