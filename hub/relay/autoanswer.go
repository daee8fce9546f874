package relay

import (
	"regexp"
	"regexp/syntax"

	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
)

const (
	// MaxAutoAnswers is how many questions of one attempt are answered by policy: an
	// agent that asks in a loop waits for a person after that.
	MaxAutoAnswers = 10
	// maxAutoAnswerSteps bounds the program of a regular expression, in instructions:
	// a few bytes can ask for very many, each of which looks at every option.
	maxAutoAnswerSteps = 1000
)

// checkAutoAnswer refuses a policy that cannot be followed.
func checkAutoAnswer(policy string) error {
	switch {
	case policy == "" || policy == api.AutoAnswerFirst || policy == api.AutoAnswerNone:
		return nil
	case len(policy) > api.MaxAutoAnswer:
		return api.Errorf(api.CodeBadRequest, "the auto-answer is longer than %d bytes", api.MaxAutoAnswer)
	}
	re, err := syntax.Parse(policy, syntax.Perl)
	if err != nil {
		return api.Errorf(api.CodeBadRequest, "the auto-answer is %s, %s or a regular expression: %s", api.AutoAnswerFirst, api.AutoAnswerNone, shown.Line(err.Error(), maxErrorText))
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil || len(prog.Inst) > maxAutoAnswerSteps {
		return api.Errorf(api.CodeBadRequest, "the auto-answer repeats too much; use a simpler regular expression")
	}
	return nil
}

// byPolicy is the option that the task's policy takes of its question, if one fits.
// Only what the agent wants to know is decided so: a permission is a person's, or the
// node's owner's, to grant.
func byPolicy(t store.Task) (option string, ok bool) {
	q := t.Question
	if q == nil || q.Kind != api.QuestionText || autoAnswered(t) >= MaxAutoAnswers {
		return "", false
	}
	fits := func(string) bool { return true }
	switch t.AutoAnswer {
	case "", api.AutoAnswerNone:
		return "", false
	case api.AutoAnswerFirst:
	default:
		re, err := regexp.Compile(t.AutoAnswer)
		if err != nil { // checked when it was dispatched
			return "", false
		}
		fits = re.MatchString
	}
	for _, option := range q.Options {
		if option != "" && fits(option) {
			return option, true
		}
	}
	return "", false
}

// autoAnswered counts the questions of the attempt that were answered by policy.
func autoAnswered(t store.Task) (n int) {
	for _, s := range t.Life {
		if s.Attempt == t.Attempt && s.Note == noteByPolicy {
			n++
		}
	}
	return n
}
