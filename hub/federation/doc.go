// Package federation asks the context providers of many nodes at once, for one asker,
// under one budget.
//
// Whoever asks sends a goal to other machines, which is egress by rule: a node is asked
// only if the asker has consented to it, and so is each of its providers that sends
// something further, at the node itself. Consent is looked at before a byte is sent; a
// node that has another identity since needs it again. A node itself is not trusted
// either: what it answers is audited here as it audited its providers.
//
// Nothing of the frames is kept, only what they cost and what was cited.
package federation
