// Package host asks the context providers of a node: programs on stdio, HTTP addresses,
// and what the node itself remembers.
//
// A query goes to all of them at once. For each the order is: does it have the kinds that
// are asked for; may it have the query; the query, in time; does its answer keep to the
// budget. It guarantees that not one byte of a query is sent to a provider that sends data
// off this machine, and every HTTP address does, unless there is consent for exactly this
// provider: its name, its address or its command with what is in the file that it starts,
// and its data flow. Once Revoke has returned, no query is sent any more. One that fails hurts no other, and an answer that comes late is
// never taken for that of the next query.
//
// What it does not: it merges nothing and counts no budget over providers, it keeps no
// program from reading files or the network or from saying falsely that it sends nothing,
// and it does not see what a program reads when it runs, such as a script of an interpreter.
package host
