// Package ocptest has providers for tests: a good one, and one for each way to break
// the protocol. A test binary runs them as its own children:
//
//	func TestMain(m *testing.M) {
//		ocptest.Main() // does not return in a child
//		…
//	}
//
// and starts them by Args. It is for tests only.
package ocptest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"opencode-mesh/node/internal/proc"
	"opencode-mesh/protocol/ocp"
)

// Behaviour is what a provider does wrong.
type Behaviour string

// Behaviours. The first six are those of the reference's example provider.
const (
	Good           Behaviour = "good"             // nothing
	LyingCosts     Behaviour = "lying-costs"      // costs more than any budget
	BadScore       Behaviour = "bad-score"        // scores 1.5
	EmptyCitation  Behaviour = "empty-citation"   // cites by a blank label
	BadVersion     Behaviour = "bad-version"      // speaks ocp/2.0
	CrashOnQuery   Behaviour = "crash-on-query"   // ends when it is asked
	CrashOnGarbage Behaviour = "crash-on-garbage" // ends at a line that is no message

	Hangs          Behaviour = "hangs"           // never answers a query
	HangsAtOnce    Behaviour = "hangs-at-once"   // never answers anything, and reads nothing
	Floods         Behaviour = "floods"          // answers with a line of 17 MiB
	Logs           Behaviour = "logs"            // writes a log line to stdout before each answer
	NeverExits     Behaviour = "never-exits"     // goes on after shutdown
	ExitsBadly     Behaviour = "exits-badly"     // exit code 3 after shutdown
	NullArrays     Behaviour = "null-arrays"     // null for lists
	DuplicateIDs   Behaviour = "duplicate-ids"   // two frames of one id
	BlankID        Behaviour = "blank-id"        // a frame whose id is a blank
	TooMany        Behaviour = "too-many"        // nine frames, whatever is asked
	InexactCosts   Behaviour = "inexact-costs"   // one token more than the rule
	Underclaims    Behaviour = "underclaims"     // 400,000 bytes for one token
	BadUTF8        Behaviour = "bad-utf8"        // a byte in its content that is no UTF-8
	AnswersTwice   Behaviour = "answers-twice"   // two lines to a line that is no message
	IgnoresGarbage Behaviour = "ignores-garbage" // no answer to such a line, as is allowed
	BlankName      Behaviour = "blank-name"      // has no name
	OnlyErrors     Behaviour = "only-errors"     // answers a query with an error
	WrongID        Behaviour = "wrong-id"        // gives back another correlation id
	WrongKind      Behaviour = "wrong-kind"      // ignores the kinds that are asked for
	HiddenEgress   Behaviour = "hidden-egress"   // a scope off the machine, without egress
	Late           Behaviour = "late"            // answers the first query too late, then at once
	ShowsEnv       Behaviour = "shows-env"       // its environment as content
	HasChild       Behaviour = "has-child"       // a child that would outlive it; its pid as content
	LeavesReader   Behaviour = "leaves-reader"   // a child in a session of its own that holds stdin and reads nothing; its pid as a line
	Redirects      Behaviour = "redirects"       // HTTP: 307 to the same address
	BreaksHTTP     Behaviour = "breaks-http"     // HTTP: 500 with an error message as body
)

// word is the first argument of a child that is a provider.
const word = "ocp-test-provider"

// sleeper is that of a child of such a child.
const sleeper = "ocp-test-sleeper"

// Args are program and arguments of a provider: this test binary as another.
func Args(b Behaviour) []string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return []string{self, word, string(b)}
}

// Main runs the provider that Args asks for and does not return then. It comes first in
// TestMain.
func Main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == word:
		os.Exit(Serve(Behaviour(os.Args[2]), os.Stdin, os.Stdout))
	case len(os.Args) == 2 && os.Args[1] == sleeper:
		time.Sleep(time.Hour)
	}
}

// Serve is a provider on a pair of streams, and returns its exit code.
func Serve(b Behaviour, in io.Reader, out io.Writer) int {
	switch b {
	case LeavesReader:
		_, _ = io.WriteString(out, spawnReader()+"\n")
		fallthrough
	case HangsAtOnce:
		time.Sleep(time.Hour)
	}
	p := provider{behaviour: b}
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			answer, code := p.answer(line)
			if answer != "" {
				if _, err := io.WriteString(out, answer+"\n"); err != nil {
					return 1
				}
			}
			if code >= 0 {
				return code
			}
		}
		if err != nil {
			return 0
		}
	}
}

// Handler is a provider over HTTP. The ends of a process are a connection that breaks.
func Handler(b Behaviour) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case b == Redirects:
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
			return
		case b == BreaksHTTP:
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"type":"error","message":"broken"}`)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if (b == Hangs || b == HangsAtOnce) && (b == HangsAtOnce || bytes.Contains(body, []byte(`"query"`))) {
			<-r.Context().Done()
			return
		}
		p := provider{behaviour: b}
		answer, code := p.answer(body)
		switch {
		case code > 0:
			panic(http.ErrAbortHandler)
		case code == 0:
			w.WriteHeader(http.StatusNoContent)
		default:
			_, _ = io.WriteString(w, answer)
		}
	})
}

type provider struct {
	behaviour Behaviour
	version   string // of the host
	asked     int
}

// answer is what is written in answer to a line, and the exit code with which the
// provider ends then, -1 for none.
func (p *provider) answer(line []byte) (string, int) {
	e, err := ocp.Decode(line)
	switch {
	case err != nil:
		return p.garbage()
	case e.Handshake != nil:
		p.version = e.Handshake.ProtocolVersion
		return p.prefix() + p.ack(), -1
	case e.Query != nil:
		p.asked++
		return p.query(e)
	case e.Shutdown:
		switch p.behaviour {
		case NeverExits:
			time.Sleep(time.Hour)
		case ExitsBadly:
			return "", 3
		}
		return "", 0
	default:
		return "", -1
	}
}

func (p *provider) garbage() (string, int) {
	const refusal = `{"type":"error","code":"bad_request","message":"that is no message"}`
	switch p.behaviour {
	case CrashOnGarbage:
		return "", 101
	case IgnoresGarbage:
		return "", -1
	case AnswersTwice:
		return refusal + "\n" + refusal, -1
	}
	return refusal, -1
}

func (p *provider) prefix() string {
	if p.behaviour == Logs {
		return "INFO provider is at work\n"
	}
	return ""
}

func (p *provider) ack() string {
	version, name, flow := ocp.Answer(p.version), "test provider", ""
	switch p.behaviour {
	case BadVersion:
		version = "ocp/2.0"
	case BlankName:
		name = " "
	case HiddenEgress:
		flow = `,"egress_scopes":["third-party-model"]`
	}
	return fmt.Sprintf(`{"type":"handshake_ack","protocol_version":%q,"provider":{"name":%q,"version":"1","data_flow":{"reads":true,"writes":false,"egress":false%s}},`+
		`"capabilities":{"query":{"kinds":["doc","fact"],"filters":[]},"upsert":false,"graph":false,"subscribe":false,"correlation":true}}`, version, name, flow)
}

func (p *provider) query(e ocp.Envelope) (string, int) {
	id := ""
	if e.ID != "" {
		id = fmt.Sprintf(`"id":%q,`, e.ID)
	}
	switch p.behaviour {
	case CrashOnQuery:
		return "", 101
	case Hangs:
		time.Sleep(time.Hour)
	case Floods:
		return strings.Repeat("x", 17<<20), -1
	case OnlyErrors:
		return fmt.Sprintf(`{"type":"error",%s"message":"not today"}`, id), -1
	case WrongID:
		id = `"id":"another",`
	case Late:
		if p.asked == 1 {
			time.Sleep(lateBy)
		}
	case NullArrays:
		return fmt.Sprintf(`{"type":"frames",%s"result":{"frames":null,"truncated":false}}`, id), -1
	}
	var frames []string
	for _, f := range p.frames(e.Query) {
		text := f.String()
		if p.behaviour == BadUTF8 { // %q would escape it
			text = strings.Replace(text, "what", "wh\xff\xfft", 1)
		}
		frames = append(frames, text)
	}
	return p.prefix() + fmt.Sprintf(`{"type":"frames",%s"result":{"frames":[%s],"truncated":false}}`, id, strings.Join(frames, ",")), -1
}

// lateBy is how late the first answer of Late comes.
const lateBy = 300 * time.Millisecond

type frame struct {
	id, kind, content, label string
	score                    float64
	cost                     uint32
}

func (f frame) String() string {
	return fmt.Sprintf(`{"id":%q,"kind":%q,"title":"A frame","content":%q,"score":%v,"token_cost":%d,"provenance":[],"citation_label":%q,"relations":[]}`,
		f.id, f.kind, f.content, f.score, f.cost, f.label)
}

func (p *provider) frames(q *ocp.Query) []frame {
	content := "what is known of it"
	switch p.behaviour {
	case ShowsEnv:
		content = strings.Join(os.Environ(), " ")
	case HasChild:
		content = spawnSleeper()
	case Late:
		content = fmt.Sprintf("answer %d", p.asked)
	}
	f := frame{id: "f1", kind: "doc", content: content, label: "notes L1-2", score: 0.5, cost: ocp.TokenCost(content)}
	if len(q.Kinds) > 0 && p.behaviour != WrongKind {
		f.kind = string(q.Kinds[0])
		if k := q.Kinds[0]; k != ocp.KindDoc && k != ocp.KindFact {
			return nil
		}
	}
	second := f
	second.id = "f2"
	switch p.behaviour {
	case LyingCosts:
		f.cost = 1 << 31
	case BadScore:
		f.score = 1.5
	case EmptyCitation:
		f.label = " "
	case DuplicateIDs:
		second.id = f.id
	case BlankID:
		f.id = " "
	case InexactCosts:
		f.cost++
	case Underclaims:
		f.content, f.cost = strings.Repeat("x", 400_000), 1
	case TooMany:
		many := make([]frame, 9)
		for i := range many {
			many[i] = f
			many[i].id = fmt.Sprintf("f%d", i)
		}
		return many
	}
	if q.MaxFrames < 2 {
		return []frame{f}
	}
	return []frame{f, second}
}

// spawnSleeper starts a child that nobody waits for, and returns its pid.
func spawnSleeper() string {
	self, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	cmd := exec.Command(self, sleeper)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // it holds both streams
	if err := cmd.Start(); err != nil {
		return err.Error()
	}
	return fmt.Sprint(cmd.Process.Pid)
}

// spawnReader starts a child that the end of this one's group does not reach, with its
// stdin, and returns its pid.
func spawnReader() string {
	self, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	cmd := exec.Command(self, sleeper)
	cmd.Stdin = os.Stdin
	proc.Detach(cmd)
	if err := cmd.Start(); err != nil {
		return err.Error()
	}
	return fmt.Sprint(cmd.Process.Pid)
}
