// Package peers is what opencode-plugin-peers, protocol 2, has on disk and on the wire:
// entries of the registry, messages, receipts and final acknowledgements, and the ids
// and names that both sides derive.
//
// Reading is lenient as the original's is: what it takes, is taken, and fields that are
// not known are passed over. Writing is exact. Whatever has a name or a text in it is a
// claim of whoever wrote it: nothing here is proof of who that was.
package peers
