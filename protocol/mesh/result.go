package mesh

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Status says how a task ended.
type Status string

// The statuses.
const (
	StatusDone    Status = "done"
	StatusPartial Status = "partial"
	StatusFailed  Status = "failed"
)

// Valid reports whether s is one of the three statuses, in exact spelling.
func (s Status) Valid() bool {
	return s == StatusDone || s == StatusPartial || s == StatusFailed
}

// Result is an agent's receipt for a task.
type Result struct {
	Task   string
	Status Status
	// Summary is the conclusion, whole, with LF line ends. Show it through
	// CutSummary and CleanLine.
	Summary string
	// Artifacts are the paths as the agent wrote them; nil for none. Their number is
	// bounded by the text only.
	Artifacts []string
	// Extra holds unknown keys in their order.
	Extra []Field
	// Unterminated says that the closing tag was missing. Format ignores it.
	Unterminated bool
}

const (
	resTask = iota
	resStatus
	resSummary
	resArtifacts
)

var resultSchema = schema{
	keys: []string{"task", "status", "summary", "artifacts"},
	text: 1 << resSummary,
	list: 1 << resArtifacts,
}

// ParseResult reads a text that is one result block and nothing else; use
// ReadReply for the reply of an agent. Errors are *SyntaxError.
func ParseResult(text string) (Result, error) {
	b, err := soleBlock(text, kindResult)
	if err != nil {
		return Result{}, err
	}
	f := resultSchema.scan(text, b.body, b.end)
	r, wrong := b.result(&f)
	if wrong != nil {
		return Result{}, wrong.in(text)
	}
	return r, nil
}

// result builds the Result of a block whose lines were scanned.
func (b *block) result(f *fields) (Result, *fault) {
	r := Result{
		Task:         f.value[resTask],
		Status:       Status(strings.ToLower(f.value[resStatus])),
		Summary:      f.value[resSummary],
		Artifacts:    listItems(f.value[resArtifacts], ","),
		Extra:        f.extra,
		Unterminated: !b.terminated,
	}
	switch {
	case r.Task == "":
		return r, b.fault(f, resTask, CodeMissingKey, "the key task is missing or empty")
	case !ValidTaskID(r.Task):
		return r, b.fault(f, resTask, CodeBadValue, "the task id "+excerpt(r.Task)+" is not "+taskIDRule)
	case r.Status == "":
		return r, b.fault(f, resStatus, CodeMissingKey, "the key status is missing or empty")
	case !r.Status.Valid():
		return r, b.fault(f, resStatus, CodeBadValue, "the status "+excerpt(string(r.Status))+" is not done, partial or failed")
	}
	return r, nil
}

// Format writes the block, closing tag and last line end included. It refuses
// whatever would not parse back: among others a summary line that reads as a key
// or a tag (QuoteSummary makes any text fit) and a path with a comma.
func (r Result) Format() (string, error) {
	switch {
	case !ValidTaskID(r.Task):
		return "", refuse(CodeBadValue, "the task id "+excerpt(r.Task)+" is not "+taskIDRule)
	case !r.Status.Valid():
		return "", refuse(CodeBadValue, "the status "+excerpt(string(r.Status))+" is not done, partial or failed")
	}
	if err := resultSchema.checkText("summary", r.Summary); err != nil {
		return "", err
	}
	artifacts, err := formatItems("artifact", r.Artifacts, ",", ", ")
	if err != nil {
		return "", err
	}
	if artifacts == "" {
		artifacts = noneValue
	}
	if err := resultSchema.checkExtra(r.Extra); err != nil {
		return "", err
	}
	var w writer
	w.line(openResult)
	w.field("task", r.Task)
	w.field("status", string(r.Status))
	w.extra(r.Extra)
	w.field("summary", r.Summary)
	w.field("artifacts", artifacts)
	w.line(closeResult)
	return w.text()
}

// QuoteSummary makes any text fit for Result.Summary and Question.Text: outer
// blanks go, line ends become LF, and a line that would read as a key or a tag is
// quoted with "> ". A text that already fits comes back as it is.
func QuoteSummary(s string) string {
	s = joinLines(s)
	if resultSchema.checkText("", s) == nil && questionSchema.checkText("", s) == nil {
		return s
	}
	var b strings.Builder
	for line := range strings.Lines(s) {
		_, isMarker := parseMarker(strings.TrimSuffix(line, "\n"))
		inResult, _, _ := resultSchema.split(line)
		inQuestion, _, _ := questionSchema.split(line)
		if isMarker || inResult >= 0 || inQuestion >= 0 {
			b.WriteString("> ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// listItems reads the value of a list key: items split by sep, on one line or on
// several "- " lines. "none" alone is the empty list.
func listItems(value, sep string) []string {
	var items []string
	for line := range strings.SplitSeq(value, "\n") {
		for item := range strings.SplitSeq(line, sep) {
			item = strings.TrimSpace(item)
			for strings.HasPrefix(item, bulletPrefix) {
				item = strings.TrimSpace(item[len(bulletPrefix):])
			}
			if item != "" {
				items = append(items, item)
			}
		}
	}
	if len(items) == 1 && equalFold(items[0], noneValue) {
		return nil
	}
	return items
}

// formatItems joins a list so that listItems gives it back.
func formatItems(what string, items []string, sep, join string) (string, error) {
	for _, item := range items {
		if item == "" || strings.TrimSpace(item) != item || strings.ContainsAny(item, sep+"\n") ||
			strings.HasPrefix(item, bulletPrefix) || len(items) == 1 && equalFold(item, noneValue) {
			return "", refuse(CodeBadValue, "the "+what+" "+excerpt(item)+" would not parse back")
		}
	}
	return strings.Join(items, join), nil
}

// SummaryTooLong reports whether s has more than MaxSummaryChars characters.
func SummaryTooLong(s string) bool {
	return len(s) > MaxSummaryChars && utf8.RuneCountInString(s) > MaxSummaryChars
}

// CutSummary cuts s for display to at most MaxSummaryChars characters, never
// within one: neither within its UTF-8 form nor before an accent or within a
// composed emoji.
func CutSummary(s string) string { return cutChars(s, MaxSummaryChars) }

// maxCluster bounds how far cutChars goes back to the beginning of a composed
// character, in characters.
const maxCluster = 16

func cutChars(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n, end := 0, len(s)
	for i := range s {
		if n == limit {
			end = i
			break
		}
		n++
	}
	if end == len(s) {
		return s
	}
	cut := end
	for range maxCluster {
		if cut == 0 || !joined(s, cut) {
			return s[:cut]
		}
		_, size := utf8.DecodeLastRuneInString(s[:cut])
		cut -= size
	}
	return s[:end]
}

// zeroWidthJoiner ties emoji together.
const zeroWidthJoiner = '\u200D'

// joined reports whether the characters around offset at belong together.
func joined(s string, at int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:at])
	after, _ := utf8.DecodeRuneInString(s[at:])
	skinTone := after >= 0x1F3FB && after <= 0x1F3FF
	return before == zeroWidthJoiner || after == zeroWidthJoiner || skinTone || unicode.Is(unicode.M, after)
}
