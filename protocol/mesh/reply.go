package mesh

import "strings"

// ReplyKind says what an agent's reply turned out to be.
type ReplyKind string

// The reply kinds.
const (
	// KindResult: a well-formed result block for the task.
	KindResult ReplyKind = "result"
	// KindQuestion: a well-formed question block for the task.
	KindQuestion ReplyKind = "question"
	// KindFree: neither; the whole text is the summary.
	KindFree ReplyKind = "free"
)

// Flags that ReadReply sets.
const (
	FlagFreeReply      = "free_reply"
	FlagUnterminated   = "unterminated"
	FlagSummaryTooLong = "summary_too_long"
)

// Reply is what an agent's text means for the task at hand.
type Reply struct {
	Kind ReplyKind
	// Result is set for KindResult and KindFree.
	Result Result
	// Question is set for KindQuestion.
	Question Question
	// Flags holds what is worth knowing, in the order of the constants above.
	Flags []string
}

// ReadReply finds the answer to a task in an agent's text, of any length. The
// last well-formed result or question block of the task wins; blocks of other
// tasks are ignored. Without one the whole text is a free reply: done, or partial
// when there was a malformed block of this task or of none.
func ReadReply(task, text string) Reply {
	var reply Reply
	broken := false
	for from := 0; ; {
		b, ok := nextBlock(text, from)
		if !ok {
			break
		}
		from = b.next
		switch b.kind {
		case kindResult:
			f := resultSchema.scan(text, b.body, b.end)
			if of := f.value[resTask]; of != "" && of != task {
				continue
			}
			r, wrong := b.result(&f)
			if wrong != nil || !b.supported {
				broken = true
				continue
			}
			reply = Reply{Kind: KindResult, Result: r}
		case kindQuestion:
			f := questionSchema.scan(text, b.body, b.end)
			if of := f.value[queTask]; of != "" && of != task {
				continue
			}
			q, wrong := b.question(&f)
			if wrong != nil || !b.supported {
				broken = true
				continue
			}
			reply = Reply{Kind: KindQuestion, Question: q}
		}
	}
	if reply.Kind == "" {
		reply.Kind = KindFree
		reply.Result = Result{Task: task, Status: StatusDone, Summary: joinLines(strings.TrimPrefix(text, bom))}
		if broken {
			reply.Result.Status = StatusPartial
		}
		reply.Flags = append(reply.Flags, FlagFreeReply)
	}
	if reply.Result.Unterminated || reply.Question.Unterminated {
		reply.Flags = append(reply.Flags, FlagUnterminated)
	}
	if SummaryTooLong(reply.Result.Summary) {
		reply.Flags = append(reply.Flags, FlagSummaryTooLong)
	}
	return reply
}
