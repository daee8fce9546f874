package cli_test

import (
	"context"
	"errors"
	"testing"

	"opencode-mesh/cmd/internal/cli"
)

func TestAPromptEndsWithTheFirstInterruptAndTheTerminalIsAsBefore(t *testing.T) {
	restored := false
	app := &cli.App{Restore: func() { restored = true }}
	ctx, cancel := context.WithCancel(context.Background())
	typed := make(chan struct{})
	t.Cleanup(func() { close(typed) })
	cancel()
	_, err := cli.Await(ctx, app, func() (string, error) { <-typed; return "", nil })
	var exit *cli.ExitError
	if !errors.As(err, &exit) || exit.Code != cli.ExitNoAccess || !restored {
		t.Errorf("%v, restored %v", err, restored)
	}
}

func TestAPromptThatIsAnsweredGivesTheAnswer(t *testing.T) {
	got, err := cli.Await(context.Background(), &cli.App{}, func() (string, error) { return "words", nil })
	if got != "words" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
