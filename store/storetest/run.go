// Package storetest is the contract of store.Store as tests. Any implementation
// must pass Run, and RunBackup if its backups can be opened.
//
// The tests know nothing but the interface: what a method promises in its comment
// there has a test here that is named for the promise. What a disk in trouble does
// to a store is for the implementation's own tests.
package storetest

import (
	"testing"

	"opencode-mesh/store"
)

// contract is one promise of the interface.
type contract struct {
	name string
	test func(t *testing.T, s store.Store)
}

// Run holds the stores that open makes to the contract. open returns a new, empty
// store and registers what closes it with t.Cleanup; a test may have closed it
// before. It is called once per sub-test, for several at once.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, group := range []struct {
		name      string
		contracts []contract
	}{
		{"tasks", taskContracts},
		{"later", laterContracts},
		{"lists", listContracts},
		{"settled", settledContracts},
		{"retention", retentionContracts},
		{"identities", identityContracts},
		{"credentials", credentialContracts},
		{"records", recordContracts},
		{"audit", auditContracts},
		{"search", searchContracts},
		{"bindings", bindingContracts},
		{"mail", mailContracts},
		{"concurrency", concurrencyContracts},
		{"life", lifeContracts},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.contracts {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel() // most of a test is waiting for the disk
					c.test(t, open(t))
				})
			}
		})
	}
}
