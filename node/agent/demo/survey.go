package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
)

const (
	// maxFiles is how many files are counted; a demonstration need not take longer.
	maxFiles = 10000
	// maxFileSize is the size up to which the lines of a file are counted, in bytes.
	maxFileSize = 1 << 20
)

var errEnough = errors.New("enough files")

// survey says where the agent runs and what is in dir.
func survey(dir string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	files, lines, err := count(os.DirFS(dir))
	more := ""
	switch {
	case errors.Is(err, errEnough):
		more = "more than "
	case err != nil:
		return "", fmt.Errorf("count files: %w", err)
	}
	return fmt.Sprintf("%s (%s/%s): %s%d files, %d lines in %s", host, runtime.GOOS, runtime.GOARCH, more, files, lines, here), nil
}

// count counts the regular files of a tree and their lines. It skips .git, links,
// and what cannot be read.
func count(tree fs.FS) (files, lines int, err error) {
	err = fs.WalkDir(tree, ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && path == ".":
			return err
		case err != nil:
			return nil
		case e.IsDir() && e.Name() == ".git":
			return fs.SkipDir
		case !e.Type().IsRegular():
			return nil
		case files == maxFiles:
			return errEnough
		}
		files++
		if n, err := countLines(tree, path); err == nil {
			lines += n
		}
		return nil
	})
	return files, lines, err
}

func countLines(tree fs.FS, path string) (int, error) {
	f, err := tree.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize))
	return bytes.Count(data, []byte{'\n'}), err
}
