package mesh

import "strings"

// Mode says what the sender expects after the task.
type Mode string

// The modes.
const (
	// ModeOneShot: run to the end and stop.
	ModeOneShot Mode = "one-shot"
	// ModeSession: further turns keep the context.
	ModeSession Mode = "session"
	// ModeResume: a context hand-over; acknowledge and do nothing else.
	ModeResume Mode = "resume"
)

// Valid reports whether m is one of the three modes, in exact spelling.
func (m Mode) Valid() bool {
	return m == ModeOneShot || m == ModeSession || m == ModeResume
}

// ReplyResultBlock is the only reply form today. Other values are kept and
// treated as this one.
const ReplyResultBlock = "result-block"

// Envelope is a task on its way to an agent.
type Envelope struct {
	// From names the sender. It is a claim until the hub has stamped it.
	From string
	// Task is the task id; see ValidTaskID.
	Task string
	Mode Mode
	// Reply is the wanted form of the reply.
	Reply string
	// Env is the optional platform tag, see EnvTag; "" when absent.
	Env string
	// Via lists the hops so far, at most MaxVia; nil when absent.
	Via []string
	// Extra holds unknown keys in their order.
	Extra []Field
	// Body is the task text, byte for byte.
	Body string
}

const (
	envFrom = iota
	envTask
	envMode
	envReply
	envEnv
	envVia
)

var envelopeSchema = schema{keys: []string{"from", "task", "mode", "reply", "env", "via"}}

// mandatoryEnvelopeKeys is how many keys of the schema, from its first, must be
// there.
const mandatoryEnvelopeKeys = envReply + 1

// mandatoryBytes is the length of the four mandatory lines around their values.
const mandatoryBytes = len("from: \ntask: \nmode: \nreply: \n")

// ParseEnvelope reads a task text. All of from, task, mode and reply must be
// there; blank lines in the header are skipped, any other line without a key is
// an error. Errors are *SyntaxError.
func ParseEnvelope(text string) (Envelope, error) {
	start, err := opening(text, kindEnvelope)
	if err != nil {
		return Envelope{}, err
	}
	end, body, closed := findHeaderEnd(text, start)
	f := envelopeSchema.scan(text, start, end)
	fail := func(off int, code Code, msg string) (Envelope, error) {
		return Envelope{}, &SyntaxError{lineAt(text, off), code, msg}
	}
	switch {
	case f.stray >= 0:
		return fail(f.stray, CodeMalformed, "this header line is neither a key nor the closing ---")
	case !closed:
		return fail(len(strings.TrimRight(text, "\r\n")), CodeMalformed, "the text ends before the header's closing ---")
	case f.over >= 0:
		return fail(f.over, CodeTooLarge, "too many additional keys, or one too long")
	}
	for key := range mandatoryEnvelopeKeys {
		if f.value[key] == "" {
			return fail(f.where(key, end), CodeMissingKey, "the key "+envelopeSchema.keys[key]+" is missing or empty")
		}
	}
	e := Envelope{
		From:  f.value[envFrom],
		Task:  f.value[envTask],
		Mode:  Mode(f.value[envMode]),
		Reply: f.value[envReply],
		Env:   f.value[envEnv],
		Via:   splitHops(f.value[envVia]),
		Extra: f.extra,
		Body:  text[body:],
	}
	if key, err := e.check(); err != nil {
		err.Line = lineAt(text, f.where(key, end))
		return Envelope{}, err
	}
	return e, nil
}

// findHeaderEnd returns where the line --- begins and where the body does.
// Without one, end is the end of the text.
func findHeaderEnd(text string, from int) (end, body int, closed bool) {
	for pos := from; pos < len(text); {
		stop, next := lineEnd(text, pos)
		if strings.HasPrefix(text[pos:stop], headerEnd) && strings.TrimRight(text[pos:stop], "\r") == headerEnd {
			return pos, next, true
		}
		pos = next
	}
	return len(text), len(text), false
}

// check validates the values and names the key at fault.
func (e *Envelope) check() (key int, err *SyntaxError) {
	bad := func(key int, code Code, msg string) (int, *SyntaxError) {
		return key, &SyntaxError{Code: code, Msg: msg}
	}
	switch {
	case !ValidTaskID(e.Task):
		return bad(envTask, CodeBadValue, "the task id "+excerpt(e.Task)+" is not "+taskIDRule)
	case !e.Mode.Valid():
		return bad(envMode, CodeBadValue, "the mode "+excerpt(string(e.Mode))+" is not one-shot, session or resume")
	case hasControl(e.From):
		return bad(envFrom, CodeBadValue, "from holds control characters")
	case mandatoryBytes+len(e.From)+len(e.Task)+len(e.Mode)+len(e.Reply) > MaxHeaderBytes:
		return bad(envFrom, CodeTooLarge, "from, task, mode and reply take more than 160 bytes")
	case len(e.Env) > MaxFieldBytes:
		return bad(envEnv, CodeTooLarge, "env is too long")
	case len(e.Via) > MaxVia:
		return bad(envVia, CodeHopLimit, "via names more than 4 hops")
	case len(strings.Join(e.Via, ",")) > MaxFieldBytes:
		return bad(envVia, CodeTooLarge, "via is too long")
	}
	return 0, nil
}

// Format writes the envelope; the text ends with the body as it is. It refuses
// whatever would not parse back to the same envelope: an invalid mode or id, a
// value with a line break or outer blanks, an unknown key that reads as a known
// one, a header over its limits.
func (e Envelope) Format() (string, error) {
	if e.From == "" || e.Reply == "" {
		return "", refuse(CodeMissingKey, "the keys from and reply must have a value")
	}
	if _, err := e.check(); err != nil {
		return "", err
	}
	via := strings.Join(e.Via, ",")
	for _, v := range [...]struct{ key, value string }{
		{"from", e.From}, {"reply", e.Reply}, {"env", e.Env}, {"via", via},
	} {
		if err := checkLine(v.key, v.value); err != nil {
			return "", err
		}
	}
	for _, hop := range e.Via {
		if hop == "" || strings.Contains(hop, ",") || strings.TrimSpace(hop) != hop {
			return "", refuse(CodeBadValue, "the hop "+excerpt(hop)+" would not parse back")
		}
	}
	if err := envelopeSchema.checkExtra(e.Extra); err != nil {
		return "", err
	}
	var w writer
	w.b.Grow(2*MaxHeaderBytes + len(e.Body))
	w.line(openEnvelope)
	w.field("from", e.From)
	w.field("task", e.Task)
	w.field("mode", string(e.Mode))
	w.field("reply", e.Reply)
	if e.Env != "" {
		w.field("env", e.Env)
	}
	if len(e.Via) > 0 {
		w.field("via", via)
	}
	w.extra(e.Extra)
	w.line(headerEnd)
	w.b.WriteString(e.Body)
	return w.text()
}

// splitHops reads the value of via; nil when it names none.
func splitHops(value string) []string {
	var hops []string
	for hop := range strings.SplitSeq(value, ",") {
		if hop = strings.TrimSpace(hop); hop != "" {
			hops = append(hops, hop)
		}
	}
	return hops
}
