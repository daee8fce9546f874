//go:build !race

package services

// large is the size of a large transfer, in bytes.
const large = 1 << 30
