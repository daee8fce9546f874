package tasks

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

const (
	// hashTime bounds the time that the artifacts of one result are hashed for; files
	// beyond have no hash.
	hashTime = 30 * time.Second
	// hashChunk is how much is read before it is looked whether to go on, in bytes.
	hashChunk = 256 << 10
	// maxLooking is how many turns that have ended may have their artifacts looked at
	// without taking a slot.
	maxLooking = 4
)

// What is wrong with a path that leads to no file.
const (
	notAPath       = "not a path"
	outside        = "outside the workspace"
	notThere       = "not there"
	notAFile       = "not a file"
	notReadable    = "not readable"
	noWorkspaceDir = "the workspace is not there"
)

// files opens the files of one workspace. Whatever a path says and wherever links
// lead, nothing outside the workspace is opened: os.Root resolves each path anew
// with every use. Links inside that lead to a place inside are followed if they are
// relative. A second name (hard link) of a file elsewhere cannot be told from a
// file of the workspace.
type files struct {
	dir  string
	root *os.Root
}

func openFiles(ws agent.Workspace) (*files, error) {
	root, err := os.OpenRoot(ws.Dir)
	if err != nil {
		return nil, err
	}
	return &files{dir: ws.Dir, root: root}, nil
}

func (f *files) close() { _ = f.root.Close() }

// open opens the regular file that a result names; nothing else is ever opened for
// long: a pipe would block, and a device may do anything. problem is "" when file is
// there.
func (f *files) open(path string) (file *os.File, info fs.FileInfo, problem string) {
	name, problem := f.local(path)
	if problem != "" {
		return nil, nil, problem
	}
	info, err := f.root.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return nil, nil, notAFile
	}
	if err == nil {
		// It may be another one by now.
		file, err = f.root.OpenFile(name, os.O_RDONLY|openNonblock, 0)
	}
	if err != nil {
		return nil, nil, pathProblem(err)
	}
	if info, err = file.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = file.Close()
		return nil, nil, notAFile
	}
	return file, info, ""
}

// ReadArtifact reads a file that a result names, of at most limit bytes, with the same care:
// nothing outside of the workspace, and regular files only.
func ReadArtifact(ws agent.Workspace, path string, limit int64) ([]byte, error) {
	f, err := openFiles(ws)
	if err != nil {
		return nil, err
	}
	defer f.close()
	file, info, problem := f.open(path)
	if problem != "" {
		return nil, fmt.Errorf("the file is %s", problem)
	}
	defer func() { _ = file.Close() }()
	if info.Size() > limit {
		return nil, fmt.Errorf("the file has more than %d bytes", limit)
	}
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("the file has more than %d bytes", limit)
	}
	return data, err
}

// local makes a path relative to the workspace.
func (f *files) local(path string) (name, problem string) {
	switch {
	case path == "" || len(path) > maxPath || strings.ContainsRune(path, 0):
		return "", notAPath
	case os.IsPathSeparator(path[len(path)-1]):
		return "", notAFile
	case !filepath.IsAbs(path):
		return path, ""
	}
	dirs := []string{f.dir}
	if real, err := filepath.EvalSymlinks(f.dir); err == nil {
		dirs = append(dirs, real) // what an agent takes for its directory
	}
	for _, dir := range dirs {
		if name, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(name) {
			return name, ""
		}
	}
	return "", outside
}

// pathProblem says what an error of the file system means for a path.
func pathProblem(err error) string {
	var system syscall.Errno
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENAMETOOLONG):
		return notThere
	case errors.As(err, &system):
		return notReadable
	}
	return outside // what os.Root itself refuses has no number of the system
}

// hasher hashes the files of one result within what all of them may take.
type hasher struct {
	left int64 // bytes
	stop func() bool
	buf  []byte
}

// hash returns the hash of an open file and its size, or "" when it is too large,
// changes meanwhile, cannot be read, or it is time to stop.
func (h *hasher) hash(file *os.File, info fs.FileInfo) (sum string, size int64) {
	size = info.Size()
	if size > h.left {
		return "", size
	}
	d := sha256.New()
	n, err := h.copy(d, file)
	h.left -= n
	if info, serr := file.Stat(); serr == nil {
		size = info.Size()
	}
	if err != nil || n != size {
		return "", size
	}
	return hex.EncodeToString(d.Sum(nil)), size
}

// errStopped ends the hashing of a file.
var errStopped = errors.New("told to stop")

// copy reads a file to its end, or as far as it may.
func (h *hasher) copy(d hash.Hash, file io.Reader) (n int64, err error) {
	for n <= h.left {
		if h.stop() {
			return n, errStopped
		}
		m, err := file.Read(h.buf)
		_, _ = d.Write(h.buf[:m]) // never fails
		n += int64(m)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, errStopped
}

// look says what is at the paths that a result names, in their order.
func (r *Runner) look(rec *record, paths []string) []api.Artifact {
	out := make([]api.Artifact, len(paths))
	for i, p := range paths {
		out[i] = api.Artifact{Path: p, Problem: noWorkspaceDir}
	}
	ws, problem := r.workspace(rec.Workspace)
	if ws.Dir == "" || problem != "" {
		return out
	}
	f, err := openFiles(ws)
	if err != nil {
		return out
	}
	defer f.close()
	end := time.Now().Add(hashTime)
	h := &hasher{left: api.MaxHashed, buf: make([]byte, hashChunk), stop: func() bool {
		select {
		case <-r.quit:
			return true
		default:
			return !time.Now().Before(end)
		}
	}}
	for i := range out {
		a := &out[i]
		var file *os.File
		var info fs.FileInfo
		if file, info, a.Problem = f.open(a.Path); a.Problem != "" {
			continue
		}
		a.SHA256, a.Size = h.hash(file, info)
		_ = file.Close()
	}
	return out
}

// getArtifact is GET /v1/artifacts?workspace=&path=: a file of a workspace as it is
// now, or the ranges of it that are asked for. The hub asks only for what a result
// named.
func (r *Runner) getArtifact(w http.ResponseWriter, req *http.Request) error {
	q := req.URL.Query()
	path := q.Get("path")
	ws, problem := r.workspace(q.Get("workspace"))
	if ws.Dir == "" || problem != "" {
		return api.Errorf(api.CodeNotFound, "this node has no such workspace, or its directory is not there")
	}
	f, err := openFiles(ws)
	if err != nil {
		return api.Errorf(api.CodeNotFound, noWorkspaceDir)
	}
	defer f.close()
	file, info, problem := f.open(path)
	switch {
	case problem == notAPath:
		return api.Errorf(api.CodeBadRequest, "the path is empty, too long or no path")
	case problem != "":
		return api.Errorf(api.CodeNotFound, "the file is %s", problem)
	}
	defer func() { _ = file.Close() }()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, info.Size(), info.ModTime().UnixNano()))
	http.ServeContent(w, req, "", info.ModTime(), file)
	return nil
}
