// Package install makes an agent's program a member of a project: it pins the
// member's id and writes the configuration by which the program starts the MCP
// server for that member.
//
// A configuration is edited where it has to be and otherwise left byte for byte,
// comments included; a copy of what was there is kept. One that cannot be read is
// never written. What was written is read again before it replaces the file: the
// entry must be there, and everything else must say what it said.
package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"opencode-mesh/node/opencomms/pins"
	"opencode-mesh/node/opencomms/statefile"
	"opencode-mesh/protocol/opencomms"
)

// maxConfig is how large a configuration may be that is edited, in bytes.
const maxConfig = 4 << 20

// Request asks to make a host a member.
type Request struct {
	// Project is the absolute path of the project's directory.
	Project string
	// Host is one of Hosts, or another name: then nothing but the pin is written.
	Host string
	// ID is the member's id; "" mints one, which is refused when the host has a pin.
	ID string
	// Command is the absolute path of this program.
	Command string
	// Replace takes over an entry that starts another program or serves another
	// member.
	Replace bool
	// DryRun writes nothing.
	DryRun bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// What became of the host's configuration.
const (
	Written     = "written"      // the entry was added or brought up to date
	Unchanged   = "unchanged"    // it was there already
	OtherMember = "other_member" // it serves another member, and was left
	ByHand      = "by_hand"      // Reason says why it was not written
)

// Result says what was done.
type Result struct {
	MemberID   string `json:"member_id"`
	Host       string `json:"host"`
	PinFile    string `json:"pin_file"`
	ConfigFile string `json:"config_file,omitempty"`
	Config     string `json:"config"` // one of the constants
	Backup     string `json:"backup,omitempty"`
	Reason     string `json:"reason,omitempty"`
	// Entry is what the configuration must hold.
	Entry string `json:"entry"`
	// Start is a command line for a POSIX shell that starts the host as this member,
	// whatever the configuration says.
	Start string `json:"start,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// ErrNoState says that a project has no state file yet.
var ErrNoState = errors.New("there is no channel in this project yet; create one first")

// ErrInvalid says that what was asked for cannot be.
var ErrInvalid = errors.New("not possible")

// ErrPinned says that a host has a member already.
var ErrPinned = errors.New("this host has a member already")

// Install makes a host a member. The pin is written last: when that fails the
// configuration names an id that has none, and installing it again is harmless.
func Install(r Request) (Result, error) {
	if !pins.ValidHost(r.Host) {
		return Result{}, fmt.Errorf("%w: a host is called by a word of a-z, 0-9, dots, - and _, not %q", ErrInvalid, r.Host)
	}
	if _, err := os.Stat(filepath.Join(r.Project, statefile.Dir, "state.json")); errors.Is(err, fs.ErrNotExist) {
		return Result{}, fmt.Errorf("%s: %w", r.Project, ErrNoState)
	} else if err != nil {
		return Result{}, err
	}
	list, err := pins.List(r.Project)
	if err != nil {
		return Result{}, err
	}
	pin, err := choose(r, list)
	if err != nil {
		return Result{}, err
	}
	h := hostNamed(r.Host)
	s := server{command: r.Command, args: []string{"mcp", "--project", r.Project, "--host", r.Host}, member: pin.MemberID}
	res := Result{MemberID: pin.MemberID, Host: r.Host, PinFile: pins.Path(r.Project, pin.MemberID), Entry: h.snippet(s), Hint: h.hint}
	if h.start != nil {
		res.Start = h.start(s)
	}
	if err := h.configure(r, list, s, &res); err != nil {
		return Result{}, err
	}
	if _, there := pinOf(list, pin.MemberID); there || r.DryRun {
		return res, nil
	}
	return res, savePin(r.Project, pin)
}

// choose is the pin that is asked for: the one that is there, or a new one.
func choose(r Request, list []pins.Pin) (pins.Pin, error) {
	if r.ID == "" {
		if ids := ofHost(list, r.Host); len(ids) > 0 {
			return pins.Pin{}, fmt.Errorf("%w: %s is %s", ErrPinned, r.Host, strings.Join(ids, ", "))
		}
		r.ID = opencomms.NewID(opencomms.PrefixMember)
	}
	if !opencomms.ValidMember(r.ID) || r.ID == opencomms.OperatorSession {
		return pins.Pin{}, fmt.Errorf("%w: %q is no id of a member: letters, digits, - and _ are allowed, at most %d, and not the word %s", ErrInvalid, r.ID, opencomms.MaxMemberID, opencomms.OperatorSession)
	}
	if p, ok := pinOf(list, r.ID); ok {
		if p.Host != r.Host {
			return pins.Pin{}, fmt.Errorf("%w: %s is a member of the host %s already", ErrInvalid, r.ID, p.Host)
		}
		return p, nil
	}
	if len(list) >= pins.MaxListed {
		return pins.Pin{}, fmt.Errorf("%w: this project has %d pins, which is the most there may be", ErrInvalid, len(list))
	}
	return pins.Pin{MemberID: r.ID, Host: r.Host, SavedAt: r.now().UnixMilli()}, nil
}

// pinOf is the pin of a member.
func pinOf(list []pins.Pin, id string) (pins.Pin, bool) {
	i := slices.IndexFunc(list, func(p pins.Pin) bool { return p.MemberID == id })
	if i < 0 {
		return pins.Pin{}, false
	}
	return list[i], true
}

// ofHost are the ids of the members that are pinned for a host.
func ofHost(list []pins.Pin, host string) (ids []string) {
	for _, p := range list {
		if p.Host == host {
			ids = append(ids, p.MemberID)
		}
	}
	return ids
}

// savePin writes a pin, which nobody else with an account on the machine can read.
func savePin(project string, p pins.Pin) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("save pin: %w", err)
	}
	if err := os.MkdirAll(pins.Dir(project), 0o700); err != nil {
		return fmt.Errorf("save pin: %w", err)
	}
	return replaceFile(pins.Path(project, p.MemberID), data, 0o600)
}

func (r Request) now() time.Time {
	if r.Now == nil {
		return time.Now()
	}
	return r.Now()
}

// configure writes the host's configuration and says in res how it went. Its error
// is one of the disk.
func (h host) configure(r Request, list []pins.Pin, s server, res *Result) error {
	byHand := func(format string, args ...any) error {
		res.Config, res.Reason = ByHand, fmt.Sprintf(format, args...)
		return nil
	}
	if len(h.files) == 0 {
		return byHand("how %s is configured is not known", h.name)
	}
	for _, magic := range h.expands {
		if strings.Contains(r.Project+r.Command, magic) {
			return byHand("%s would expand %s in the path", h.name, magic)
		}
	}
	file, doc, text, err := h.open(r.Project)
	if res.ConfigFile = file; err != nil {
		return byHand("%s cannot be read: %v", file, err)
	}
	tree, err := doc.decode()
	if err != nil {
		return byHand("%s cannot be read: %v", file, err)
	}
	var changed []byte
	entry, there := lookup(tree, h.at())
	words, member := h.words(entry)
	_, known := pinOf(list, member)
	switch {
	case !there:
		changed, err = doc.set(h.at(), h.entry(s))
	case r.Replace:
		if doc, err = h.parse(doc.remove(h.at())); err == nil {
			changed, err = doc.set(h.at(), h.entry(s))
		}
	case !ours(words, s):
		return byHand("its entry %s starts another program, %s", serverName, strings.Join(words, " "))
	case member != s.member && known:
		res.Config = OtherMember
		return nil
	case member == s.member && slices.Equal(words, append([]string{s.command}, s.args...)):
		res.Config = Unchanged
		return nil
	default:
		changed, err = h.update(text, s)
	}
	if err == nil {
		err = h.check(tree, changed, &s)
	}
	if err != nil {
		return byHand("%s cannot be edited: %v", file, err)
	}
	res.Config = Written
	if r.DryRun {
		return nil
	}
	res.Backup, err = write(file, text, changed, r.now())
	return err
}

// write replaces a configuration and keeps what was there.
func write(file string, before, after []byte, now time.Time) (backup string, err error) {
	if before != nil {
		if backup, err = backUp(file, before, now); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return backup, fmt.Errorf("write configuration: %w", err)
	}
	return backup, replaceFile(file, after, 0o644)
}

// open reads the configuration that has our entry, or the first that is there. text
// is nil when there is none yet. A file is named even with an error.
func (h host) open(project string) (file string, doc document, text []byte, err error) {
	for _, name := range h.files {
		path := filepath.Join(project, name)
		data, err := readFile(path, maxConfig)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return path, nil, nil, err
		}
		d, err := h.parse(blankAs(h, data))
		if err != nil {
			return path, nil, nil, err
		}
		if tree, err := d.decode(); err != nil {
			return path, nil, nil, err
		} else if _, there := lookup(tree, h.at()); there || doc == nil {
			file, doc, text = path, d, data
			if there {
				break
			}
		}
	}
	if doc == nil {
		file = filepath.Join(project, h.files[0])
		doc, err = h.parse(blankAs(h, nil))
	}
	return file, doc, text, err
}

// blankAs lets an empty file be one that says nothing.
func blankAs(h host, data []byte) []byte {
	if len(strings.TrimSpace(string(data))) == 0 && h.empty != "" {
		return []byte(h.empty)
	}
	return data
}

// update brings an entry of ours up to date and leaves what else it has.
func (h host) update(text []byte, s server) ([]byte, error) {
	for _, f := range h.entry(s) {
		path, v := h.at(f.key), f.value
		switch f.key {
		case "command", "args":
		case h.member[0]:
			path, v = h.at(h.member...), any(s.member)
		default:
			continue
		}
		doc, err := h.parse(text)
		if err != nil {
			return nil, err
		}
		if text, err = doc.set(path, v); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// check reads what is to be written: it must hold the entry for s, or none, and
// everything else of before.
func (h host) check(before map[string]any, text []byte, s *server) error {
	doc, err := h.parse(text)
	if err != nil {
		return err
	}
	after, err := doc.decode()
	if err != nil {
		return err
	}
	entry, there := lookup(after, h.at())
	if words, member := h.words(entry); there != (s != nil) || s != nil && (member != s.member || !slices.Equal(words, append([]string{s.command}, s.args...))) {
		return errors.New("its structure is one that is not edited")
	}
	if !reflect.DeepEqual(without(before, h.at()), without(after, h.at())) {
		return errors.New("the edit would change something else")
	}
	return nil
}

// without is a tree without what stands at a path, and without the tables on the way
// that hold nothing else.
func without(tree map[string]any, path []string) map[string]any {
	out := make(map[string]any, len(tree))
	for k, v := range tree {
		out[k] = v
	}
	if next, ok := out[path[0]].(map[string]any); ok && len(path) > 1 {
		if next = without(next, path[1:]); len(next) > 0 {
			out[path[0]] = next
			return out
		}
	}
	delete(out, path[0])
	return out
}

// Removed says what a removal did.
type Removed struct {
	MemberID   string `json:"member_id"`
	Host       string `json:"host"`
	ConfigFile string `json:"config_file,omitempty"` // from which the entry was taken
	Backup     string `json:"backup,omitempty"`
	// Reason says why the configuration was left, if an entry for the member may
	// still be in it.
	Reason string `json:"reason,omitempty"`
}

// ErrNotPinned says that there is no pin of this id.
var ErrNotPinned = errors.New("no member of this id is installed")

// Remove takes back what Install wrote for a member: the entry, if it serves this
// member, and the pin. The member stays in its channels.
func Remove(project, id string, now time.Time) (Removed, error) {
	list, err := pins.List(project)
	if err != nil {
		return Removed{}, err
	}
	pin, ok := pinOf(list, id)
	if !ok {
		return Removed{}, fmt.Errorf("%s: %w", project, ErrNotPinned)
	}
	res := Removed{MemberID: id, Host: pin.Host}
	if h := hostNamed(pin.Host); len(h.files) > 0 {
		if err := h.withdraw(project, id, now, &res); err != nil {
			return Removed{}, err
		}
	}
	if err := os.Remove(pins.Path(project, id)); err != nil {
		return Removed{}, fmt.Errorf("remove pin: %w", err)
	}
	return res, nil
}

// withdraw takes the entry out, if it serves the member.
func (h host) withdraw(project, id string, now time.Time, res *Removed) error {
	file, doc, text, err := h.open(project)
	var tree map[string]any
	if err == nil {
		tree, err = doc.decode()
	}
	if err != nil {
		res.Reason = fmt.Sprintf("%s cannot be read: %v", file, err)
		return nil
	}
	entry, _ := lookup(tree, h.at())
	if _, member := h.words(entry); member != id {
		return nil
	}
	changed := doc.remove(h.at())
	if err := h.check(tree, changed, nil); err != nil {
		res.Reason = fmt.Sprintf("%s cannot be edited: %v", file, err)
		return nil
	}
	res.ConfigFile = file
	res.Backup, err = write(file, text, changed, now)
	return err
}
