package stubllm

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Directives, found anywhere in the newest user message, or given by Direct. Those
// that take a text take it to the end of the line.
//
//	FAIL:code[:times]      answer HTTP code; with times, only the first so many
//	                       calls that carry exactly this user message fail
//	OVERFLOW               answer 400 context_length_exceeded
//	FAILSTREAM             begin a stream, send some text, cut the connection
//	HANG                   send headers, then nothing, until the client goes away
//	GATE:name              send headers, then nothing, until Open(name)
//	DELAY:ms               wait before the first byte
//	SLOW:seconds           stream "tick i" lines, five a second, then the reply
//	TICKS:name             the same until Open(name); with TOOL after the tool's result
//	TOOL:command           call the tool bash with this command; when its result is
//	                       there, reply "tool output: …" and the normal reply
//	TOOLNAME:n TOOLARGS:j  the same for any tool, with JSON arguments; several lines
//	                       with TOOL or TOOLNAME make several calls at once
//	USAGE:p,c[,cached[,r]] report these token counts
//	REPLY:text             reply exactly this (\n makes a line; {task} and {gen} are
//	                       those of the message) instead of the normal reply
//	LONG:n                 n KiB of filler before the reply
//	REASON:text            stream this as reasoning first
//	FINISH:reason          report this finish reason
//	FACTS:one | two        the facts of a digest block
//
// The normal reply is a digest block when the message asks for one, a question
// block when it has the word ASK, a result block when it is a mesh envelope, and
// "stub echo: …" otherwise.
var (
	reFail     = regexp.MustCompile(`\bFAIL:(\d{3})(?::(\d+))?`)
	reOverflow = regexp.MustCompile(`\bOVERFLOW\b`)
	reCutoff   = regexp.MustCompile(`\bFAILSTREAM\b`)
	reHang     = regexp.MustCompile(`\bHANG\b`)
	reGate     = regexp.MustCompile(`\bGATE:(\S+)`)
	reDelay    = regexp.MustCompile(`\bDELAY:(\d+)`)
	reSlow     = regexp.MustCompile(`\bSLOW:(\d+(?:\.\d+)?)`)
	reTicks    = regexp.MustCompile(`\bTICKS:(\S+)`)
	reToolAny  = regexp.MustCompile(`\bTOOLNAME:(\S+)\s+TOOLARGS:(.+)`)
	reTool     = regexp.MustCompile(`\bTOOL:(.+)`)
	reUsage    = regexp.MustCompile(`\bUSAGE:(\d+),(\d+)(?:,(\d+))?(?:,(\d+))?`)
	reReply    = regexp.MustCompile(`\bREPLY:(.+)`)
	reLong     = regexp.MustCompile(`\bLONG:(\d+)`)
	reReason   = regexp.MustCompile(`\bREASON:(.+)`)
	reFinish   = regexp.MustCompile(`\bFINISH:([a-z_]+)`)
	reFacts    = regexp.MustCompile(`\bFACTS:(.+)`)

	reAsk    = regexp.MustCompile(`\bASK\b`)
	reDigest = regexp.MustCompile(`(?i)\bdigest\b`)
	reTask   = regexp.MustCompile(`(?m)^\s*task:\s*(.+)$`)
	reGen    = regexp.MustCompile(`(?m)^\s*gen:\s*(.+)$`)

	reTitleSystem   = regexp.MustCompile(`(?i)title generator|generate a (short )?title|thread title`)
	reTitleUser     = regexp.MustCompile(`(?i)^Generate a title for this conversation`)
	reCompactSystem = regexp.MustCompile(`context summarization agent`)
	reCompactUser   = regexp.MustCompile(`^Here is the conversation so far`)
)

const (
	digestRequest  = "生成本会话结转摘要"
	envelopeMarker = "[opencode-mesh v1]"
	// maxLong bounds LONG, in KiB.
	maxLong = 4096
	// maxPause bounds DELAY and SLOW.
	maxPause = 10 * time.Minute
	// echoed is how much of a text is quoted in a reply, in bytes.
	echoed = 200
)

// toolCall is a tool that the model wants to have called.
type toolCall struct {
	name string
	args string // JSON
}

// usage is what the model reports as token counts.
type usage struct {
	prompt, completion, cached, reasoning int
}

// plan is how one request is to be answered.
type plan struct {
	kind      string
	tags      []string
	status    int // 0: answer 200
	overflow  bool
	cutoff    bool
	hang      bool
	gate      string
	delay     time.Duration
	slow      time.Duration
	ticks     <-chan struct{} // closed when there are enough; nil: none
	reasoning string
	finish    string
	tools     []toolCall
	reply     string
	usage     usage
}

// plan decides how to answer. It counts calls for FAIL with a number of times.
func (s *Server) plan(in input) plan {
	p := plan{kind: KindChat, finish: "stop"}
	// Requests for a title or a summary quote the user's text: its directives must
	// not fire there.
	switch {
	case reTitleSystem.MatchString(in.system) || reTitleUser.MatchString(in.user):
		p.kind, p.reply = KindTitle, "stub title"
	case reCompactSystem.MatchString(in.system) || reCompactUser.MatchString(in.user):
		p.kind, p.reply = KindCompaction, "stub compaction summary: earlier turns were condensed."
	}
	if p.kind != KindChat {
		p.usage = countTokens(in.system, "", p.reply)
		return p
	}

	orders := s.orders(in.user)
	if m := reFail.FindStringSubmatch(orders); m != nil && s.failNow(in.user, atoi(m[2])) {
		p.status = atoi(m[1])
		p.tags = append(p.tags, "FAIL:"+m[1])
	}
	flag := func(re *regexp.Regexp, tag string) bool {
		if !re.MatchString(orders) {
			return false
		}
		p.tags = append(p.tags, tag)
		return true
	}
	p.overflow = flag(reOverflow, "OVERFLOW")
	p.cutoff = flag(reCutoff, "FAILSTREAM")
	p.hang = flag(reHang, "HANG")
	if p.gate = text(reGate, orders); p.gate != "" {
		p.tags = append(p.tags, "GATE:"+p.gate)
	}
	p.delay = min(time.Duration(atoi(text(reDelay, orders)))*time.Millisecond, maxPause)
	if m := text(reSlow, orders); m != "" {
		seconds, _ := strconv.ParseFloat(m, 64) // the pattern admits numbers only
		p.slow = min(time.Duration(seconds*float64(time.Second)), maxPause)
		p.tags = append(p.tags, "SLOW")
	}
	if m := text(reFinish, orders); m != "" {
		p.finish = m
	}
	p.reasoning = text(reReason, orders)
	if !in.hasResult {
		p.tools = wantedTools(orders)
	}
	if len(p.tools) > 0 {
		p.finish, p.reply = "tool_calls", "calling tool"
		for _, t := range p.tools {
			p.tags = append(p.tags, "TOOL:"+t.name)
			p.reply += " " + t.name
		}
	} else {
		if name := text(reTicks, orders); name != "" {
			p.ticks = s.gate(name)
			p.tags = append(p.tags, "TICKS:"+name)
		}
		p.reply = replyTo(in, orders)
	}
	p.usage = countTokens(in.system, in.user, p.reply)
	if m := reUsage.FindStringSubmatch(orders); m != nil {
		p.usage = usage{atoi(m[1]), atoi(m[2]), atoi(m[3]), atoi(m[4])}
	}
	return p
}

// wantedTools reads TOOL and TOOLNAME, one call a line.
func wantedTools(user string) []toolCall {
	var out []toolCall
	for line := range strings.Lines(user) {
		if m := reToolAny.FindStringSubmatch(line); m != nil {
			out = append(out, toolCall{name: m[1], args: strings.TrimSpace(m[2])})
			continue
		}
		if command := text(reTool, line); command != "" {
			// Marshal of two strings cannot fail.
			args, _ := json.Marshal(map[string]string{"command": command, "description": "stub tool call"})
			out = append(out, toolCall{name: "bash", args: string(args)})
		}
	}
	return out
}

// replyTo is the text of the reply when no tool is called.
func replyTo(in input, orders string) string {
	task := text(reTask, in.user)
	if task == "" {
		task = "unknown"
	}
	gen := text(reGen, in.user)
	if gen == "" {
		gen = "1"
	}
	var body string
	switch {
	case reReply.MatchString(orders):
		body = strings.NewReplacer(`\n`, "\n", "{task}", task, "{gen}", gen).Replace(text(reReply, orders))
	case strings.Contains(in.user, digestRequest) || reDigest.MatchString(in.user):
		facts := text(reFacts, orders)
		if facts == "" {
			facts = "stub fact one | stub fact two"
		}
		body = strings.Join([]string{"[opencode-mesh-digest v1]", "task: " + task, "gen: " + gen, "facts:",
			"- " + strings.ReplaceAll(facts, " | ", "\n- "), "pending: none", "refs: none", "[/opencode-mesh-digest]"}, "\n")
	case reAsk.MatchString(orders):
		body = strings.Join([]string{"[opencode-mesh-question v1]", "task: " + task,
			"question: which branch should I use?", "options: main | develop", "[/opencode-mesh-question]"}, "\n")
	case strings.Contains(in.user, envelopeMarker):
		body = strings.Join([]string{"[opencode-mesh-result v1]", "task: " + task, "status: done",
			"summary: stub ok", "artifacts: none", "[/opencode-mesh-result]"}, "\n")
	default:
		body = "stub echo: " + cut(in.user, echoed)
	}
	if in.hasResult {
		body = "tool output: " + cut(in.result, echoed) + "\n" + body
	}
	if n := min(atoi(text(reLong, orders)), maxLong); n > 0 {
		const word = "filler "
		body = strings.Repeat(word, (n*1024+len(word)-1)/len(word)) + "\n" + body
	}
	return body
}

// countTokens takes four bytes for a token.
func countTokens(system, user, reply string) usage {
	return usage{prompt: (len(system) + len(user) + 3) / 4, completion: max(1, (len(reply)+3)/4)}
}

// text is the first group of re in s, trimmed; "" when re does not match.
func text(re *regexp.Regexp, s string) string {
	if m := re.FindStringSubmatch(s); m != nil {
		return strings.TrimSpace(m[1])
	}
	return ""
}

// atoi reads a number that a pattern admitted; "" and what overflows are 0.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}
