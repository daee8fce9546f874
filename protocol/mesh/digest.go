package mesh

import (
	"strconv"
	"strings"
)

// Digest is the condensed context of a session, handed over to its successor.
type Digest struct {
	Task string
	// Gen grows by one with every merge.
	Gen int
	// Facts are extracted word for word, one line each, most important first.
	Facts []string
	// Pending and Refs are text, possibly of several lines; "" stands for none.
	Pending string
	Refs    string
	// Extra holds unknown keys in their order.
	Extra []Field
}

const (
	digTask = iota
	digGen
	digFacts
	digPending
	digRefs
)

var digestSchema = schema{
	keys: []string{"task", "gen", "facts", "pending", "refs"},
	text: 1<<digFacts | 1<<digPending | 1<<digRefs,
}

// maxGenDigits keeps a generation within any int.
const maxGenDigits = 9

// ParseDigest reads a text that is one digest block and nothing else. Nothing is
// repaired: all five keys must be there, every line must belong to one, and the
// closing tag must not be missing. Errors are *SyntaxError.
func ParseDigest(text string) (Digest, error) {
	b, err := soleBlock(text, kindDigest)
	if err != nil {
		return Digest{}, err
	}
	f := digestSchema.scan(text, b.body, b.end)
	d, wrong := b.digest(&f)
	if wrong != nil {
		return Digest{}, wrong.in(text)
	}
	return d, nil
}

// FindDigest reads the digest of generation gen for a task out of an agent's
// reply, where prose, code fences and digests of other tasks may stand around
// it. The last one for the task decides; when that one is malformed, of another
// generation or another version, the result is an error, never an earlier one.
func FindDigest(task string, gen int, text string) (Digest, error) {
	var d Digest
	wrong := &fault{0, CodeNoMarker, "the reply holds no digest block"}
	seen := false
	for from := 0; ; {
		b, ok := nextBlock(text, from)
		if !ok {
			break
		}
		from = b.next
		if b.kind != kindDigest {
			continue
		}
		f := digestSchema.scan(text, b.body, b.end)
		if of := f.value[digTask]; of != "" && of != task {
			if !seen {
				wrong = b.fault(&f, digTask, CodeWrongTask, "the digest is of another task")
			}
			continue
		}
		seen = true
		d, wrong = b.digest(&f)
		if wrong == nil && d.Gen != gen {
			wrong = b.fault(&f, digGen, CodeWrongGeneration,
				"the digest is of generation "+strconv.Itoa(d.Gen)+", not "+strconv.Itoa(gen))
		}
	}
	if wrong != nil {
		return Digest{}, wrong.in(text)
	}
	return d, nil
}

// digest builds the Digest of a block whose lines were scanned.
func (b *block) digest(f *fields) (Digest, *fault) {
	switch {
	case !b.supported:
		return Digest{}, &fault{b.start, CodeUnsupportedVersion, "only v1 of the digest is understood"}
	case !b.terminated:
		return Digest{}, &fault{b.end, CodeUnterminated, "the digest ends without its closing tag"}
	case f.stray >= 0:
		return Digest{}, &fault{f.stray, CodeMalformed, "this line belongs to no key"}
	case f.over >= 0:
		return Digest{}, &fault{f.over, CodeTooLarge, "too many additional keys, or one too long"}
	}
	for key, name := range digestSchema.keys {
		if !f.has(key) || f.value[key] == "" && key != digFacts {
			return Digest{}, b.fault(f, key, CodeMissingKey, "the key "+name+" is missing or empty")
		}
	}
	d := Digest{
		Task:    f.value[digTask],
		Pending: fromNone(f.value[digPending]),
		Refs:    fromNone(f.value[digRefs]),
		Extra:   f.extra,
	}
	if !ValidTaskID(d.Task) {
		return Digest{}, b.fault(f, digTask, CodeBadValue, "the task id "+excerpt(d.Task)+" is not "+taskIDRule)
	}
	gen := f.value[digGen]
	n, err := strconv.ParseUint(gen, 10, 32)
	if err != nil || len(gen) > maxGenDigits {
		return Digest{}, b.fault(f, digGen, CodeBadValue, "the generation "+excerpt(gen)+" is not a number of up to nine digits")
	}
	d.Gen = int(n)
	facts, code, msg := splitFacts(f.value[digFacts])
	if code != "" {
		return Digest{}, b.fault(f, digFacts, code, msg)
	}
	d.Facts = facts
	return d, nil
}

// splitFacts reads one fact per line, with or without its "- ".
func splitFacts(value string) (facts []string, code Code, msg string) {
	if equalFold(value, noneValue) {
		return nil, "", ""
	}
	for line := range strings.SplitSeq(value, "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		fact := strings.TrimSpace(strings.TrimPrefix(line, bulletPrefix))
		if fact == "" || line == strings.TrimSpace(bulletPrefix) {
			return nil, CodeMalformed, "one of the facts is empty"
		}
		if len(facts) == MaxFacts {
			return nil, CodeTooLarge, "there are more than 4096 facts"
		}
		facts = append(facts, fact)
	}
	return facts, "", ""
}

// fromNone turns the written "none" into the empty text.
func fromNone(value string) string {
	if equalFold(value, noneValue) {
		return ""
	}
	return value
}

// Format writes the block, closing tag and last line end included. It refuses
// whatever would not parse back, such as a fact of several lines, or the word
// none where the empty text says it.
func (d Digest) Format() (string, error) {
	switch {
	case !ValidTaskID(d.Task):
		return "", refuse(CodeBadValue, "the task id "+excerpt(d.Task)+" is not "+taskIDRule)
	case d.Gen < 0 || len(strconv.Itoa(d.Gen)) > maxGenDigits:
		return "", refuse(CodeBadValue, "the generation is not a number of up to nine digits")
	case len(d.Facts) > MaxFacts:
		return "", refuse(CodeTooLarge, "there are more than 4096 facts")
	}
	for _, fact := range d.Facts {
		if fact == "" {
			return "", refuse(CodeBadValue, "one of the facts is empty")
		}
		if err := checkLine("a fact", fact); err != nil {
			return "", err
		}
	}
	for _, v := range [...]struct{ key, value string }{{"pending", d.Pending}, {"refs", d.Refs}} {
		if equalFold(v.value, noneValue) {
			return "", refuse(CodeBadValue, v.key+" says none by being empty")
		}
		if err := digestSchema.checkText(v.key, v.value); err != nil {
			return "", err
		}
	}
	if err := digestSchema.checkExtra(d.Extra); err != nil {
		return "", err
	}
	var w writer
	w.line(openDigest)
	w.field("task", d.Task)
	w.field("gen", strconv.Itoa(d.Gen))
	w.extra(d.Extra)
	if len(d.Facts) == 0 {
		w.field("facts", noneValue)
	} else {
		w.field("facts", "")
	}
	for _, fact := range d.Facts {
		w.line(bulletPrefix + fact)
	}
	w.field("pending", toNone(d.Pending))
	w.field("refs", toNone(d.Refs))
	w.line(closeDigest)
	return w.text()
}

// toNone writes the empty text as "none".
func toNone(value string) string {
	if value == "" {
		return noneValue
	}
	return value
}
