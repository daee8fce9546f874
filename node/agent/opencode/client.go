package opencode

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// client is what the node needs of an opencode server. The servers in the field
// speak two interfaces; v1Client is the one for 1.x, and choosing by probe
// (detect) leaves room for another.
//
// Every method but watch is bounded in time and in the size of what it reads.
// Implementations are safe for concurrent use.
type client interface {
	// session returns a session, or errNotFound.
	session(ctx context.Context, id string) (session, error)
	// sessions lists the newest sessions of a directory whose title holds a text.
	sessions(ctx context.Context, dir, title string) ([]session, error)
	// newSession makes a session in a directory.
	newSession(ctx context.Context, dir, title string, mark mark) (session, error)
	// statuses returns the sessions of a directory that are not idle.
	statuses(ctx context.Context, dir string) (map[string]status, error)
	// prompt hands a message over. nil means that the server took it, which is not
	// to say that anything will run.
	prompt(ctx context.Context, session string, p prompt) error
	// stored reports whether a message is in a session's history.
	stored(ctx context.Context, session, message string) (bool, error)
	// answered returns the message that one answers, "" for a person's, or errNotFound.
	answered(ctx context.Context, session, message string) (string, error)
	// habits says how the newest prompts of a session were made; zero when there are
	// none, or none that tells.
	habits(ctx context.Context, session string) (habits, error)
	// answers returns the assistant's messages that answer a message.
	answers(ctx context.Context, session, message string) (answers, error)
	// newest returns what the newest message of a session shows of its progress.
	newest(ctx context.Context, session string) ([]event, error)
	// lastResult returns the summary of the last mesh result in a session, "" when
	// there is none.
	lastResult(ctx context.Context, session string) (string, error)
	// abort stops what runs in a session. It is not an error if nothing runs.
	abort(ctx context.Context, session string) error
	// remove deletes a session with its sub-agents' sessions, or answers errNotFound.
	remove(ctx context.Context, session string) error
	// asks lists what waits for a human in a directory.
	asks(ctx context.Context, dir string) ([]ask, error)
	// permit answers a permission: api.PermitOnce, PermitAlways or PermitReject. Only
	// after a rejection with a message does the model go on. errNotFound: nothing
	// asks that any more.
	permit(ctx context.Context, dir, id, reply, message string) error
	// inform answers a question, each of its parts with labels or free text;
	// errNotFound as in permit.
	inform(ctx context.Context, dir, id string, answers [][]string) error
	// models returns the models of a directory and the one that is configured.
	models(ctx context.Context, dir string) (models, error)
	// plugins lists what a directory's configuration loads, and where plugins lie.
	plugins(ctx context.Context, dir string) (plugins, error)
	// warnings says which settings of the server do not suit a node.
	warnings(ctx context.Context, dir string) ([]string, error)
	// watch follows the events of a directory until the stream ends or ctx does. What
	// messages hold is read of sessions that ours admits only.
	watch(ctx context.Context, dir string, ours func(session string) bool, on func(event)) error
	// watchAll follows what becomes of sessions in all directories, as watch does.
	watchAll(ctx context.Context, on func(event)) error
}

// Errors of a client. Anything else is ambiguous: what was asked for may have
// happened.
var (
	// errNotFound: the server answered that there is no such session or message.
	errNotFound = errors.New("not found")
	// errUnauthorized: the server refuses the credentials.
	errUnauthorized = errors.New("the opencode server refuses the credentials")
	// errNotOpencode: something answered that is not an opencode server's API,
	// such as the page that it serves for paths that it does not know.
	errNotOpencode = errors.New("the answer is not of opencode's API")
	// errTooLarge: the answer is larger than what is read.
	errTooLarge = errors.New("the answer is too large")
)

// statusError is an answer with a status that says no.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string {
	if e.message == "" {
		return fmt.Sprintf("the opencode server answered %d", e.status)
	}
	return fmt.Sprintf("the opencode server answered %d: %s", e.status, e.message)
}

// refused reports whether err says that a request was not carried out.
func refused(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.status >= 400 && s.status < 500
}

// mark is what the node writes into the metadata of a session that it made, to
// find it again.
type mark struct {
	Hub        string `json:"hub"`
	Key        string `json:"key"`
	Generation uint64 `json:"gen"`
	// Compaction is the task that made the session in order to hand over to it.
	Compaction string `json:"compaction,omitempty"`
}

// session is one of the server's sessions.
type session struct {
	id      string
	dir     string
	title   string
	parent  string // of a sub-agent's session
	mark    *mark  // nil in sessions that no node made
	created time.Time
	updated time.Time
}

// status is what a session that is not idle does.
type status struct {
	retry   bool   // it waits to call the provider again
	attempt int    // of that
	message string // why
}

// prompt is one user message.
type prompt struct {
	message  string // its id
	part     string // the id of its only part; "" runs a message that is stored, without one
	provider string
	model    string
	agent    string
	system   string
	text     string
	// synthetic says that no person wrote the text; metadata is kept with it.
	synthetic bool
	metadata  map[string]any
}

// habits are how a session is prompted.
type habits struct {
	provider string
	model    string
	agent    string
}

// plugins are what opencode loads beside itself.
type plugins struct {
	configured []string // names of packages, paths and file URLs
	configDir  string   // of the user's configuration
	worktree   string   // of the directory
}

// answer is one of the assistant's messages; a turn has one for each step.
type answer struct {
	id       string
	provider string
	model    string
	// finish is the provider's reason for the end; "" while it runs, and when it
	// was aborted, failed or killed.
	finish    string
	completed bool
	fault     *fault
	texts     []string
	tokens    int64 // of the context; 0 when not reported
}

// fault is how an answer failed.
type fault struct {
	name    string
	message string
}

// answers is the state of a turn.
type answers struct {
	list []answer // oldest first
	// overtaken says that another user message came before the newest answer, which
	// may therefore be meant for that one.
	overtaken bool
}

// ask is a permission or a question that waits for a human.
type ask struct {
	id       string
	session  string
	message  string // whose tool call asks; "" when it is not told
	question bool   // else a permission

	// Of a permission: what it is for, what else "always" would allow, and what is
	// known of the call, as "name: value".
	permission string
	patterns   []string
	always     []string
	details    []string

	parts []part // of a question
}

// part is one of the questions of an ask.
type part struct {
	text    string
	options []string
	several bool // more than one option may be chosen
}

// model is a provider's model.
type model struct {
	provider string
	id       string
	context  int64 // size in tokens, 0 when unknown
}

// models are the models that a directory may use.
type models struct {
	list []model
	// preferred is the configured one, or the default of the first provider.
	preferred *model
}

// find returns a model of the list.
func (m models) find(provider, id string) (model, bool) {
	for _, x := range m.list {
		if x.provider == provider && x.id == id {
			return x, true
		}
	}
	return model{}, false
}

// event is a sign that something changed in a directory, or a piece of what a
// session writes. Events get lost: they hasten the next look and show what goes on,
// and nothing is decided by them.
type event struct {
	kind    eventKind
	session string // "" when it concerns the whole directory
	text    string // of a fault, a tool call, a text or a piece of one

	parent   string // of an eventChild
	message  string // of the kinds below eventMessage
	part     string // of an eventText and an eventDelta
	provider string // of an eventMessage
	model    string
	tokens   int64 // of an eventMessage and an eventStep; 0 when not known yet
}

type eventKind int

const (
	// eventChange: a session's status changed, or something waits for a human, or no
	// longer.
	eventChange eventKind = iota
	// eventFault: a prompt failed, perhaps before anything was stored.
	eventFault
	// eventConnected: the stream is up.
	eventConnected
	// eventDisposed: the server ended what ran in the directory.
	eventDisposed
	// eventChild: a sub-agent's session was made.
	eventChild
	// eventLife: a session was made, changed or deleted, or began or ended to work. Only
	// watchAll tells it.
	eventLife
	// eventMessage: the assistant began or ended a message.
	eventMessage
	// eventTool: a tool call began, went on or ended.
	eventTool
	// eventText: a text is as far as this.
	eventText
	// eventDelta: a text goes on by this.
	eventDelta
	// eventStep: a step ended.
	eventStep
)
