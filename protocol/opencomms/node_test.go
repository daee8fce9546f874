package opencomms_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"opencode-mesh/protocol/opencomms"
)

// node runs a program in Node.js, which the programs that share the file run on. The
// texts are its argument t, as raw bytes in hex; it returns what it prints as JSON.
func node[T any](t *testing.T, program string, texts []string) (out T) {
	t.Helper()
	var in bytes.Buffer
	for _, text := range texts {
		fmt.Fprintf(&in, "%x\n", text)
	}
	cmd := exec.Command("node", "-e", `const t = require("fs").readFileSync(0, "latin1").split("\n").slice(0, -1).map(x => Buffer.from(x, "hex"));
process.stdout.write(JSON.stringify((() => {`+program+`})()))`)
	cmd.Stdin = &in
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	data, err := cmd.Output()
	if err != nil {
		t.Fatalf("Node.js 20 or newer is needed: %v\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestFilesAreWrittenAsJSONStringifyWritesThem(t *testing.T) {
	states := rapid.Custom(func(t *rapid.T) string {
		s := opencomms.New()
		if rapid.Bool().Draw(t, "from the example") {
			var err error
			if s, err = opencomms.Decode(exampleData); err != nil {
				t.Fatal(err)
			}
		}
		edit(t, s)
		data, err := s.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	})
	texts := []string{emptyFile, string(exampleData)}
	for seed := range 300 {
		texts = append(texts, states.Example(seed))
	}
	archive := exampleArchive(t)
	texts = append(texts, archive)
	same := node[[]bool](t, `return t.map(b => JSON.stringify(JSON.parse(b.toString("utf8")), null, 2) === b.toString("utf8"))`, texts)
	for i, ok := range same {
		if !ok {
			t.Errorf("otherwise:\n%s", texts[i])
		}
	}
	if len(same) != len(texts) {
		t.Errorf("%d of %d", len(same), len(texts))
	}
}

// hostile are texts of JSON values, good and bad, as a file may hold them.
func hostile() []string {
	texts := []string{
		``, ` `, `1`, `-1`, `-0`, `0`, `00`, `01`, `-`, `+1`, `.5`, `5.`, `1.e5`, `1e`, `1e+`, `1E-05`, `1e999`, `-1e999`, `1_000`, `0x10`, `NaN`, `Infinity`, `-Infinity`,
		strings.Repeat("9", 400), "1" + strings.Repeat("0", 400) + "e-400", `1.` + strings.Repeat("3", 400),
		`""`, `"a`, `a"`, `'a'`, `"\"`, `"\\"`, `"\/"`, `"\b\f\n\r\t"`, `"\v"`, `"\a"`, `"\x41"`, `"\0"`, `"\u"`, `"\u12"`, `"\u123"`, `"\u12g4"`, `"\uABCD\uabcd"`, `"\U0041"`,
		`"\ud800"`, `"\udc00"`, `"\ud800\ud800"`, `"\udc00\ud800"`, `"\ud83d\ude00"`, `"\ud83d\u0041"`, `"\ud83d\"`, `"\ud83d\ude0"`, `"\u0000"`,
		"\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"a\nb\"", "\"a\tb\"", "\"\u2028\u2029\"", "\"\xff\"", "\"\xe2\x82\"", "\"\xed\xa0\x80\"", "\xff", "\"a\" \x00",
		`true`, `false`, `null`, `True`, `nul`, `nulll`, `truefalse`, `undefined`,
		`[]`, `[ ]`, `[1]`, `[1,]`, `[,1]`, `[,]`, `[1 2]`, `[1`, `]`, `[1]]`, `[}`, `[[[]]]`,
		`{}`, `{ }`, `{"a":1}`, `{"a":1,}`, `{,"a":1}`, `{"a"}`, `{"a":}`, `{"a" 1}`, `{"a":1 "b":2}`, `{a:1}`, `{1:1}`, `{"a":1`, `}`, `{"a":1]`, `{"":1}`, `{"a":1,"a":2}`, `{"__proto__":1}`, `{null:1}`,
		"\t\n\r 1 \t\n\r", "\v1", "\f1", "\u00a01", "\uFEFF1", "1\uFEFF", "\u20281", "// c\n1", "/* c */1", "1//", "#1", "1,", "1;", "1 1", `"a""b"`, `{}{}`, `[]x`,
		strings.Repeat("[", 150) + strings.Repeat("]", 150), strings.Repeat(`{"a":`, 150) + "1" + strings.Repeat("}", 150),
		strings.Repeat("[", 150) + strings.Repeat("]", 149), strings.Repeat("[", 150) + strings.Repeat("]", 151),
	}
	for i := range len(emptyFile) {
		texts = append(texts, emptyFile[:i])
	}
	return texts
}

func TestTheSameTextsAreJSONAsForJSONParse(t *testing.T) {
	// As a value inside a file, and as what a file begins and ends with.
	var files []string
	for _, text := range hostile() {
		files = append(files, strings.Replace(emptyFile, `"errors": []`, `"errors": [`+text+`]`, 1),
			strings.Replace(emptyFile, `"errors": []`, `"errors": [], "x": `+text, 1),
			text+emptyFile, emptyFile+text)
	}
	type verdict struct {
		OK   bool   `json:"ok"`
		Text string `json:"text"` // of what is in the list of errors and x, as JSON
	}
	verdicts := node[[]verdict](t, `return t.map(b => {
  let v; try { v = JSON.parse(b.toString("utf8")) } catch { return {ok: false} }
  return {ok: v !== null && typeof v === "object" && v.schema_version === 2, text: JSON.stringify([v.errors, v.x])}
})`, files)
	var taken, written []string
	var wanted []string
	for i, want := range verdicts {
		s, err := opencomms.Decode([]byte(files[i]))
		if (err == nil) != want.OK {
			t.Errorf("%q: %v, JSON.parse says %v", files[i], err, want.OK)
			continue
		}
		if err == nil {
			taken, written, wanted = append(taken, files[i]), append(written, encode(t, s)), append(wanted, want.Text)
		}
	}
	if len(taken) < 50 || len(taken) > len(files)/2 {
		t.Errorf("%d of %d are JSON", len(taken), len(files))
	}
	for i, got := range node[[]string](t, `return t.map(b => { const v = JSON.parse(b.toString("utf8")); return JSON.stringify([v.errors, v.x]) })`, written) {
		if got != wanted[i] {
			t.Errorf("%q became %s, want %s", taken[i], got, wanted[i])
		}
	}
}

func TestDeepNestingIsRefused(t *testing.T) {
	for _, open := range []string{"[", `{"a":`} {
		text := emptyFile[:len(emptyFile)-1] + `,"x":` + strings.Repeat(open, 5_000_000)
		if _, err := opencomms.Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), "levels") {
			t.Errorf("%v", err)
		}
	}
}

func TestTextsAreMeasuredAndTrimmedAsInJavaScript(t *testing.T) {
	texts := []string{"", " ", "a", "é", "😀", "a😀b", " a ", "\uFEFFa\uFEFF", "\u0085a\u0085", "\u00a0a", "\u180ea", "\u200ba", "\u2028a\u2029", "\u3000a\u1680", "\v\fa\r\n",
		"\x00a", "Review", "REVIEW_1", "K\u212A", "İ", "ß", "ẞ", "ſ", "-a", "_a", "1a", "a b", "a.b", "\u202fa\u205f", "Ａ", "Σ", strings.Repeat("A", 64), strings.Repeat("a", 65), strings.Repeat("😀", 33)}
	for r := rune(0x2000); r <= 0x200f; r++ {
		texts = append(texts, string(r)+"x"+string(r))
	}
	type facts struct {
		Length int    `json:"length"`
		Trim   string `json:"trim"`
		Name   string `json:"name"`
		Role   string `json:"role"`
		Hash   string `json:"hash"`
	}
	for i, want := range node[[]facts](t, `const hash = s => require("crypto").createHash("sha256").update(s, "utf8").digest("hex").slice(0, 32);
return t.map(b => b.toString("utf8")).map(s => { const n = s.trim().toLowerCase(), r = s.trim().replace(/\s+/g, " ");
  return {length: s.length, trim: s.trim(), hash: hash(s),
    name: n.length >= 1 && n.length <= 64 && /^[a-z0-9][a-z0-9-_]*$/.test(n) ? n : "",
    role: /^[A-Za-z][A-Za-z0-9 _-]{0,31}$/.test(r) ? r : ""} })`, texts) {
		name, _ := opencomms.NormalName(texts[i])
		role, _ := opencomms.NormalRole(texts[i])
		got := facts{opencomms.Length(texts[i]), opencomms.Trim(texts[i]), name, role, opencomms.ContentHash(texts[i])}
		if got != want {
			t.Errorf("%q: %+v, want %+v", texts[i], got, want)
		}
	}
	// What UTF-8 cannot say comes in escapes.
	halves := `"\ud800\udc00\ud800x\udfff"`
	s := decode(t, strings.Replace(emptyFile, `"queues": {}`, `"queues": {`+halves+`: []}`, 1))
	for key := range s.Queues.All() {
		hash := node[[]string](t, `return t.map(b => require("crypto").createHash("sha256").update(JSON.parse(b.toString("utf8")), "utf8").digest("hex").slice(0, 32))`, []string{halves})
		if opencomms.ContentHash(key) != hash[0] || opencomms.Length(key) != 5 {
			t.Errorf("%q: %s, want %s", key, opencomms.ContentHash(key), hash)
		}
	}
}
