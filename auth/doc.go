// Package auth holds the mechanisms that keep strangers out: password hashes and
// the gate before them, login limits, secrets and their hashes, the hub's TLS
// identity with the join link that pins it, and the file in which a node or
// controller keeps its credential.
//
// It guarantees that a password or secret enters no error, URL or log line, that
// a hub whose key is not the pinned one gets no byte of a request, and that
// neither a flood of logins nor the number of addresses behind it can lock
// everybody out or make memory grow.
//
// It does not know who holds which credential: the hub keeps that in its store.
// Connections that already carry a credential never pass its limits.
package auth
