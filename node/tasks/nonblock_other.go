//go:build !unix

package tasks

// openNonblock is for pipes among the files, which only Unix has.
const openNonblock = 0
