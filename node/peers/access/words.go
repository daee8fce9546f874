package access

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"opencode-mesh/protocol/mesh"
	"opencode-mesh/protocol/peers"
)

// maxWord bounds a name, title or directory of others in a line, in bytes.
const maxWord = 500

// Clean makes words of others fit for a line that people or agents read: one line, with
// nothing in it that steers a terminal or passes for framing, and not long.
func Clean(s string) string {
	if len(s) > maxWord {
		cut := maxWord
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	s, _ = mesh.Defuse(mesh.CleanLine(s))
	return s
}

// quote puts words of others between quotes that they cannot end.
func quote(s string) string { return `"` + strings.ReplaceAll(Clean(s), `"`, "'") + `"` }

// String is the identity in a line.
func (i Identity) String() string { return quote(i.Name) + " (id " + Clean(i.ID) + ")" }

// Row is the agent as a line of a list.
func (a Agent) Row() string {
	session := "no session"
	if a.Session != "" {
		session = "session " + quote(a.Title) + " (" + Clean(a.Session) + ")"
	}
	row := "- " + a.Identity.String() + " — " + cmp.Or(Clean(a.Directory), "-") + " — " + session + " — inbound: " + cmp.Or(Clean(a.Policy), "accept")
	if a.Offline != "" {
		row += " — offline: " + Clean(a.Offline)
	}
	return row
}

// Text is the whole list, its last line says who asked.
func (l Listing) Text() string {
	var b strings.Builder
	for _, a := range l.Agents {
		b.WriteString(a.Row() + "\n")
	}
	if len(l.Agents) == 0 {
		b.WriteString("Nobody else is there.\n")
	}
	b.WriteString("You are " + l.You.String() + ".")
	return b.String()
}

// state is what is known of a message, with other words where nothing is.
func (m Message) state(noReceipt, beforeError string) string {
	awaited := "awaiting final ACK"
	switch {
	case m.Unsent:
		awaited, beforeError = "none, it was not sent", "why: "
	case m.NoFinal:
		awaited = "none will come"
	}
	s := "receipt: " + cmp.Or(Clean(m.Receipt), noReceipt) + "; final: " + cmp.Or(Clean(m.Final), awaited)
	if m.Error != "" {
		s += "; " + beforeError + Clean(m.Error)
	}
	return s
}

// Line is the message as a line of an outbox.
func (m Message) Line() string {
	return "- " + Clean(m.ID) + " → " + quote(m.ToName) + " — " + m.state("no receipt", "")
}

// Outcome says in words what sending the message came to, and whether it arrived or is
// kept to arrive.
func (m Message) Outcome() (text string, arrived bool) {
	to := quote(m.ToName)
	switch m.Receipt {
	case peers.Delivered:
		return "Delivered to " + to + ".", true
	case peers.Queued:
		return "Queued for " + to + ", who gets it as soon as possible.", true
	case peers.Held:
		return "Held at " + to + " until somebody there accepts it.", true
	case peers.Duplicate:
		return to + " has just got the same text from you and did not take it again.", false
	case peers.Full:
		return "Not sent: too much waits at " + to + " already. Try again later.", false
	case "":
		if m.Unsent {
			return "The message to " + to + " was not sent: " + cmp.Or(Clean(m.Error), "it is not there any more") + ".", false
		}
		return "No receipt from " + to + " (" + cmp.Or(Clean(m.Error), "no answer") + "). It may have arrived all the same: look at its status before you send it again.", false
	}
	return "Not taken by " + to + ": " + Clean(m.Receipt) + ".", false
}

// Status says what became of the message.
func (m Message) Status() string {
	return "Message " + Clean(m.ID) + " to " + quote(m.ToName) + " — " + m.state("no transport receipt", "error: ") + "."
}

// Sender says who a message is from, as it claims itself.
func (r Received) Sender() string {
	return quote(r.Name) + " @ " + cmp.Or(Clean(r.Directory), "-") + " (id " + Clean(r.Key.From) + ")"
}
