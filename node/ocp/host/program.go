package host

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// maxProgram is the largest file that is started as a provider, in bytes: it is read as a
// whole before each start.
const maxProgram = 1 << 30

// program is the file that a command starts, as a consent is bound to it.
type program struct {
	path   string // absolute
	digest string // of what is in it
}

// programOf finds the file that a command starts, as it is now. What the file reads when it
// runs – a script that its arguments name, libraries, its configuration – is not looked at.
func programOf(command []string) (program, error) {
	path, err := exec.LookPath(command[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return program{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return program{}, err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, io.LimitReader(f, maxProgram+1))
	switch {
	case err != nil:
		return program{}, err
	case n > maxProgram:
		return program{}, errors.New("the program has more than " + fmt.Sprint(maxProgram) + " bytes")
	}
	return program{path, hex.EncodeToString(sum.Sum(nil))}, nil
}
