//go:build race

package services

// large is the size of a large transfer, in bytes. The race detector makes it slow
// and proves nothing more with more of it.
const large = 128 << 20
