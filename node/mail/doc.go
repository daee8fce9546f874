// Package mail is a node's post box: it sends mails to other nodes through the hub
// and takes in those that others send, each once, in the order of its lane. It knows
// nothing of what is in them; applications register a Handler for their kinds.
//
// The box is a file of its own beside the journal. What an application writes in
// Box.Update or in a Handler's transaction and the mail that belongs to it are one
// commit, so that a crash loses both or none.
//
// A mail stays in the file until its receipt is there. On each new tunnel the box asks
// the hub which of its mails are unknown there and sends those again, in order; so a
// hub that was restored from an older backup gets back what it lost. The receiver
// remembers the ids for api.MailWindow, longer than a mail can be sent again, and
// passes a mail that comes twice over. All ages are told by stamps of the hub: the
// clocks of nodes decide nothing.
//
// Per target one mail travels at a time, and a target that takes none holds up nothing
// but what is for it.
package mail
