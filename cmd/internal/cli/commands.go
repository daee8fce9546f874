package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"opencode-mesh/auth"
	"opencode-mesh/protocol/api"
)

// prepare gives the commands of root what they all have.
func (a *App) prepare(root *cobra.Command, args []string) {
	root.SetArgs(args)
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = Version
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return Usage("%w; see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().String("config", "", "YAML file with settings, named as the flags are")
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.settle(root, cmd); err != nil {
			return err
		}
		_, err := logLevel(cmd)
		return err
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	examples(root)
	each(root, func(cmd *cobra.Command) {
		check := cmd.Args
		if !cmd.Runnable() {
			// Without this cobra takes `task lsit` for `task`: it shows help and succeeds.
			check = noSuchCommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
		if check != nil {
			cmd.Args = func(cmd *cobra.Command, args []string) error { return argsError(cmd, check(cmd, args)) }
		}
	})
}

func each(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, c := range cmd.Commands() {
		each(c, do)
	}
}

// examples gives cobra's own commands the example that every help shows.
func examples(root *cobra.Command) {
	name := root.Name()
	for path, example := range map[string]string{
		"help":                  name + " help completion",
		"completion":            name + " completion bash",
		"completion bash":       "source <(" + name + " completion bash)",
		"completion zsh":        name + " completion zsh > \"${fpath[1]}/_" + name + "\"",
		"completion fish":       name + " completion fish | source",
		"completion powershell": name + " completion powershell | Out-String | Invoke-Expression",
	} {
		if cmd, _, err := root.Find(strings.Fields(path)); err == nil {
			cmd.Example = "  " + example
		}
	}
}

func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := Usage("%s has no command %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = Usage("%s has no command %q; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(near, " or "))
	}
	return err
}

// argsError makes what is wrong with the arguments an error of usage.
func argsError(cmd *cobra.Command, err error) error {
	var exit *ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return Usage("%w; see %s --help", err, cmd.CommandPath())
}

// flagOnly are flags that must be written where the command is typed: what they
// say belongs to one call.
var flagOnly = []string{"id", "yes", "new", "json", "help", "version", "config"}

// collectFlags gathers the flags that settings may name, of cmd and all below it.
func collectFlags(cmd *cobra.Command, into map[string]bool) {
	add := func(f *pflag.Flag) {
		if !slices.Contains(flagOnly, f.Name) {
			into[f.Name] = true
		}
	}
	each(cmd, func(c *cobra.Command) {
		c.LocalFlags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
	})
}

// Coded gives what a hub or node answered its exit code: ExitNoAccess for what
// cannot be reached or is not allowed, ExitNotDone for what is no longer or not yet
// possible, ExitUsage for what should be asked differently. Other errors, and those
// that have their code, stay as they are.
func Coded(err error) error {
	var exit *ExitError
	var e *api.Error
	switch {
	case errors.As(err, &exit):
		return err
	case errors.Is(err, auth.ErrPinMismatch):
		return Exit(ExitNoAccess, err)
	case !errors.As(err, &e):
		return err
	}
	switch e.Code {
	case api.CodeAlreadySettled, api.CodeNotSettled, api.CodeAlreadyAnswered, api.CodeQuestionGone, api.CodeConflict:
		return Exit(ExitNotDone, err)
	case api.CodeNotSupported: // by this target, whenever it is asked
		return Exit(ExitUsage, err)
	}
	switch status := e.Code.Status(); {
	case status >= 500, status == 401, status == 403, status == 429:
		return Exit(ExitNoAccess, err)
	}
	return Exit(ExitUsage, err)
}
