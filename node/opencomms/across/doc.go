// Package across carries channels of OpenComms from machine to machine.
//
// A link joins a channel of a local project with a channel of another node. Both
// sides make it, each for itself, and only then anything travels. Each side tells the
// other its roster: the members that it lets the other see, under aliases that are
// made for the link. The other side has a proxy for each in its channel: a member of
// mode pull with an id, role and prompt of this side's making. What is sent to a proxy
// is taken out of the file, travels as mail (see node/mail) and is put into the file
// over there, sent by the proxy of its sender. Answers come back the same way.
//
// What is guaranteed:
//
//   - A message that was taken out of the file is put into the other file once, or its
//     sender is told that it was not. Messages of one sender to one recipient keep
//     their order.
//   - Ids are kept, and the hop count never falls: the journal remembers the chains
//     that went through it for longer than a file does.
//   - The other side can write messages of the types that members send, through its
//     proxies, to members that were shown to it. It cannot write role prompts, roles,
//     settings, channels or system rows.
//
// The journal is the node's mail box: a record and the mail that it leads to are one
// commit. The order of steps is in docs/architecture.md. All changes of one project's
// file are made by one goroutine.
//
// What is not: a row that the program which shares the file removes (by its bound of
// 2,000 messages) between the locked write and the commit that remembers it, with a
// crash between the two, may be written again.
package across
