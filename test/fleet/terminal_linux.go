package fleet

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// Terminal starts meshctl on a terminal of its own, 120 columns wide, with colours;
// Output is what it paints there.
func (c *Ctl) Terminal(args ...string) *Running {
	c.f.TB.Helper()
	screen, tty, err := openTerminal()
	if err != nil {
		c.f.TB.Fatalf("open a terminal: %v", err)
	}
	cmd := exec.Command(Bin(c.f.TB, "meshctl"), args...)
	for _, kv := range c.env {
		if !strings.HasPrefix(kv, "NO_COLOR=") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	p := start(c.f.TB, "meshctl "+args[0], cmd)
	out := &logBuffer{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(out, screen) // ends with an error when nobody has the terminal open
	}()
	_ = tty.Close()
	c.f.TB.Cleanup(func() { p.Kill(); <-read; _ = screen.Close() })
	return &Running{p, out}
}

// openTerminal makes a pseudo terminal and returns both of its ends.
func openTerminal() (screen, tty *os.File, err error) {
	screen, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = screen.Close()
		}
	}()
	fd := int(screen.Fd())
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	if err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}); err != nil {
		return nil, nil, err
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	return screen, tty, err
}
