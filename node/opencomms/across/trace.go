package across

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/opencomms"
)

// States of a message that was sent from here, beside the final ones of a row over
// there: delivered, failed, stale, rejected.
const (
	stateNoted   = "noted"   // in the journal; the row is or will be taken out of the file
	stateSent    = "sent"    // handed to the mail
	stateArrived = "arrived" // in the other node's journal
	stateQueued  = "queued"  // in the other file

	stateRefused  = "refused"  // the other side's rules do not allow it
	stateReturned = "returned" // it did not arrive
	stateDropped  = "dropped"  // it ended here before it was sent
	stateUnknown  = "unknown"  // it was in the other file; what became of it is not known
)

// progress orders the states that are not final.
var progress = map[string]int{stateNoted: 1, stateSent: 2, stateArrived: 3, stateQueued: 4}

// Codes of ours, beside those of the engine and of mail.
const (
	codeUnlinked    = "unlinked"      // the channel is not linked there, or not any more
	codeNotShown    = "not_shown"     // the other side does not see the sender
	codeChannelGone = "channel_gone"  // the channel ended here
	codeEnded       = "channel_ended" // the channel over there was saved or deleted
	codeRemoved     = "removed"       // the member on the other machine left, or was removed
	codeLinkFull    = "link_full"     // the link has as many proxies as it may in the channel
	codeReserved    = "reserved"      // the role is the person's at the machine
)

// mark notes that a message got further.
func (a *Across) mark(tx *bolt.Tx, l *link, t *trace, state string) error {
	if progress[state] <= progress[t.State] {
		return nil
	}
	t.State, t.AtMS = state, a.nowMS()
	return put(tx, bucketTraces, key(l.ID, t.ID), t)
}

// end notes a final state, and that the sender is to be told if it is not one that a
// row has, or the row went with its channel.
func (a *Across) end(tx *bolt.Tx, l *link, t *trace, state, code string) error {
	t.State, t.Code, t.AtMS = state, code, a.nowMS()
	errs := []error{remove(tx, bucketTraces, key(l.ID, t.ID)), add(tx, bucketEnded, l.ID, t)}
	if n := count(tx, bucketEnded, l.ID, MaxEnded+1); n > MaxEnded {
		errs = append(errs, removeFirst(tx, bucketEnded, l.ID))
	}
	if state == stateRefused || state == stateReturned || state == stateDropped || state == opencomms.StatusRejected && code != "" {
		errs = append(errs, put(tx, bucketTell, key(l.ID, t.ID), telling{Sender: t.Sender, Text: notice(l, t.ID, code)}))
	}
	return errors.Join(errs...)
}

func removeFirst(tx *bolt.Tx, bucket, link string) error {
	c := tx.Bucket([]byte(bucket)).Cursor()
	prefix := key(link, "")
	if k, _ := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix) {
		return c.Delete()
	}
	return nil
}

// settledMessage notes the receipt of a message's mail.
func (a *Across) settledMessage(tx *bolt.Tx, r api.MailReceipt, body message) error {
	l, err := getLink(tx, body.Link)
	if err != nil {
		return ended(err)
	}
	t := new(trace)
	if ok, err := get(tx, bucketTraces, key(l.ID, body.ID), t); err != nil || !ok {
		return err
	}
	switch {
	case r.State == api.MailDelivered:
		return a.mark(tx, l, t, stateArrived)
	case progress[t.State] > progress[stateSent]:
		return nil // it did arrive
	case r.Code == string(api.CodeRefused):
		return a.end(tx, l, t, stateReturned, codeUnlinked)
	}
	code := known(r.Code)
	if r.MayHaveArrived {
		code = mayHave(code)
	}
	return a.end(tx, l, t, stateReturned, code)
}

// reasons are the words for codes; what is not among them came from elsewhere and is
// not repeated.
var reasons = map[string]string{
	codeUnlinked:                      "the channel is not linked on the other machine",
	codeNotShown:                      "the link does not show the sender to the other machine",
	codeChannelGone:                   "the channel ended here before it was sent",
	codeEnded:                         "the channel on the other machine was saved or deleted while it waited there",
	codeRemoved:                       "the member on the other machine left the channel",
	codeLinkFull:                      "the channel on the other machine takes no more members of this node, so that nobody stands for the sender there",
	codeReserved:                      "the sender's role is reserved, so that nobody stands for the sender on the other machine",
	string(api.CodeUnknownTarget):     "the hub knows no node of that name",
	api.MailTargetRevoked:             "the other machine was removed from the mesh",
	api.MailExpired:                   "the other machine was away, or its channel paused, for too long",
	api.MailTargetReplaced:            "another machine has the name of the one that the channel is linked with",
	string(api.CodeNotSupported):      "the other machine has no OpenComms across machines",
	string(api.CodeTooOld):            "it was on its way for too long",
	string(api.CodeTooLarge):          "it is too large for the hub",
	string(engine.HopLimit):           "the chain of replies has reached its end; a person has to begin a new one",
	string(engine.Duplicate):          "the same was sent on the channel shortly before",
	string(engine.ChannelMissing):     "the channel is gone on the other machine",
	string(engine.ChannelFull):        "the channel on the other machine is full, so that nobody stands for the sender there",
	string(engine.NotMember):          "the sender was removed from the channel on the other machine",
	string(engine.NotActive):          "the channel on the other machine is not active any more",
	string(engine.RecipientUnknown):   "the recipient left the channel",
	string(engine.RecipientStale):     "the recipient's session is gone",
	string(engine.ContentTooLarge):    "it is too large",
	string(engine.ContentRequired):    "it is empty",
	string(engine.RuntimeExhausted):   "the channel on the other machine has used up its time",
	string(engine.DeliveredExhausted): "the channel on the other machine has used up its messages",
	string(engine.InvalidMessageType): "the other machine does not know its type",
	string(engine.MessageExists):      "the other machine has another message of that id",
	string(engine.InvalidID):          "it has an id that cannot travel",
}

const otherReason = "other"

// known is a code that there are words for.
func known(code string) string {
	if _, ok := reasons[code]; ok {
		return code
	}
	return otherReason
}

const mayHavePrefix = "maybe_"

// mayHave is the code of a mail that came back and may have arrived all the same.
func mayHave(code string) string { return mayHavePrefix + code }

// Reason says in words why a message did not arrive.
func Reason(code string) string {
	code, maybe := strings.CutPrefix(code, mayHavePrefix)
	text, ok := reasons[code]
	if !ok {
		text = "the other machine did not take it"
	}
	if maybe {
		text += "; it may have arrived all the same"
	}
	return text
}

// notice is what the sender of a message that did not arrive is told. Every word is
// ours: not even a role stands in it, which somebody chose over there.
func notice(l *link, id, code string) string {
	return fmt.Sprintf("Your message %s to a member on %s was not delivered: %s.", id, l.Peer, Reason(code))
}

// Absence says in words why a member of another machine is not in the channel.
func Absence(code string) string {
	switch code {
	case string(engine.ChannelFull):
		return "the channel is full; kick a member or make a channel for more"
	case string(engine.NoOtherMember):
		return "the channel has no member of this machine yet"
	case codeLinkFull:
		return "the members of one link take at most half of a channel's places; make a channel for more"
	case codeReserved:
		return "the role stands for the person at the machine; it comes when it has another"
	case codeRemoved:
		return "it was removed here; link the channel again to let it in"
	case codeChannelGone:
		return "the channel is gone; unlink it"
	case "":
		return "it comes in a moment"
	}
	return "the channel does not take it (" + code + ")"
}
