package command

import (
	"io"
	"os"
)

// Names of this package for its tests.
var (
	DirName  = dirName
	ChildEnv = childEnv
)

// NewSpool makes the writer for a program's output; finish makes it durable.
func NewSpool(f *os.File, limit int64, full func()) (w io.Writer, finish func() error) {
	s := &spool{f: f, left: limit, full: full}
	return s, s.finish
}

// NewTail makes the writer for a program's error output.
func NewTail(f *os.File, size int) io.Writer { return &tail{f: f, size: size} }
