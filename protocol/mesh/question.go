package mesh

// Question is what an agent needs to know before it can run a task. The answer
// travels back as an envelope with the same task id.
type Question struct {
	Task string
	// Text is the question, possibly of several lines, with LF line ends.
	Text string
	// Options are the suggested answers; nil for a free one.
	Options []string
	// Extra holds unknown keys in their order.
	Extra []Field
	// Unterminated says that the closing tag was missing. Format ignores it.
	Unterminated bool
}

const (
	queTask = iota
	queText
	queOptions
)

var questionSchema = schema{
	keys: []string{"task", "question", "options"},
	text: 1 << queText,
	list: 1 << queOptions,
}

// ParseQuestion reads a text that is one question block and nothing else; use
// ReadReply for the reply of an agent. Errors are *SyntaxError.
func ParseQuestion(text string) (Question, error) {
	b, err := soleBlock(text, kindQuestion)
	if err != nil {
		return Question{}, err
	}
	f := questionSchema.scan(text, b.body, b.end)
	q, wrong := b.question(&f)
	if wrong != nil {
		return Question{}, wrong.in(text)
	}
	return q, nil
}

// question builds the Question of a block whose lines were scanned.
func (b *block) question(f *fields) (Question, *fault) {
	q := Question{
		Task:         f.value[queTask],
		Text:         f.value[queText],
		Options:      listItems(f.value[queOptions], "|"),
		Extra:        f.extra,
		Unterminated: !b.terminated,
	}
	switch {
	case q.Task == "":
		return q, b.fault(f, queTask, CodeMissingKey, "the key task is missing or empty")
	case !ValidTaskID(q.Task):
		return q, b.fault(f, queTask, CodeBadValue, "the task id "+excerpt(q.Task)+" is not "+taskIDRule)
	case q.Text == "":
		return q, b.fault(f, queText, CodeMissingKey, "the key question is missing or empty")
	}
	return q, nil
}

// Format writes the block, closing tag and last line end included. It refuses
// whatever would not parse back, such as an option with a '|' or a question line
// that reads as a key or a tag.
func (q Question) Format() (string, error) {
	switch {
	case !ValidTaskID(q.Task):
		return "", refuse(CodeBadValue, "the task id "+excerpt(q.Task)+" is not "+taskIDRule)
	case q.Text == "":
		return "", refuse(CodeMissingKey, "the question is empty")
	}
	if err := questionSchema.checkText("question", q.Text); err != nil {
		return "", err
	}
	options, err := formatItems("option", q.Options, "|", " | ")
	if err != nil {
		return "", err
	}
	if err := questionSchema.checkExtra(q.Extra); err != nil {
		return "", err
	}
	var w writer
	w.line(openQuestion)
	w.field("task", q.Task)
	w.extra(q.Extra)
	w.field("question", q.Text)
	w.field("options", options)
	w.line(closeQuestion)
	return w.text()
}
