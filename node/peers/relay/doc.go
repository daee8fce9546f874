// Package relay makes agents of one machine peers of those on another: it shows this
// node's agents to the other nodes of its hub, publishes theirs here, and carries
// messages and their final acknowledgements by mail.
//
// What a node shows is its owner's choice. An agent of another node is published as a
// process of its own, named node/name in the directory node:path, and is never shown on.
// Lists are soft state: the last ones stay while the hub cannot be reached, for RosterAge.
//
// A message that a proxy took is in its spool, which its sender was told as "queued". From
// there it goes through journals in the mail box, so that it arrives and is acknowledged
// once however often either node, the hub or the receiver dies:
//
//	step                                     a crash behind it; the next start
//	1 in the proxy's spool                   Deliver comes again
//	2 journal and mail, one commit           Deliver finds the journal; the box sends
//	3 in the journal of the other node       publishes the sender's row, then posts
//	4 noted that it is going to be posted    posts; gives up only as "nobody knows"
//	5 posted                                 posts again, same id: the receiver knows it
//	6 receipt noted                          publishes the row, waits for the ACK
//	7 ACK and final mail, one commit         the receiver's next ACK finds an end
//	8 final status in the first journal      settles the spool's record
//	9 settled                                settles again, which changes nothing
//	10 journal forgotten
//
// A status is the receiver's word: its acknowledgement, or its receipt where no
// acknowledgement follows. The relay makes one itself only for what was never posted: no
// such agent (dropped), not shown or too large or too many hops (refused), too old
// (expired). What was posted and not acknowledged within Patience, or was lost with a node
// that is gone, ends as expired too, which then means that nobody knows.
//
// What it does not: it proves nothing about senders beyond the node they come from, and a
// receiver that forgets ids while it is down may take a message twice.
package relay
