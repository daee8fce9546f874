package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
)

// Ask asks a person a question and is nil for yes; everything else ends with
// ExitNotDone, and a context that ends first as Await says.
func (a *App) Ask(ctx context.Context, question string) error {
	fmt.Fprintf(a.Stderr, "%s [y/N] ", question)
	line, err := Await(ctx, a, func() (string, error) {
		line, err := bufio.NewReader(a.Stdin).ReadString('\n')
		if line != "" {
			err = nil
		}
		return line, err
	})
	if ctx.Err() != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return Exit(ExitNotDone, errors.New("nothing was done"))
}
