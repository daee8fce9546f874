//go:build unix

package cli_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestTheFirstSignalCancelsAndTheSecondEndsAtOnce(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			p := newProgram()
			exited := make(chan int, 1)
			p.app.HardExit = func(code int) { exited <- code }
			kill := func() {
				if err := syscall.Kill(syscall.Getpid(), sig); err != nil {
					t.Error(err)
				}
			}
			p.work = func(cmd *cobra.Command) error {
				kill()
				select {
				case <-cmd.Context().Done():
				case <-time.After(10 * time.Second):
					t.Error("the first signal did not cancel")
					return nil
				}
				select {
				case code := <-exited:
					t.Errorf("the first signal ended with %d", code)
				default:
				}
				kill()
				select {
				case code := <-exited:
					if code != 130 {
						t.Errorf("exit code %d", code)
					}
				case <-time.After(10 * time.Second):
					t.Error("the second signal did nothing")
				}
				return nil
			}
			p.want(t, 0, []string{"work"})
		})
	}
}
