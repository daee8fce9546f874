package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"opencode-mesh/auth"
)

// PasswordFlag adds --password-file to a command that takes the password.
func PasswordFlag(cmd *cobra.Command) {
	cmd.Flags().String("password-file", "", "file whose first line is the password")
}

// GivenPassword is the password from --password-file or MESH_PASSWORD; ok is false
// when neither names one. It never asks.
func (a *App) GivenPassword(cmd *cobra.Command) (pw auth.Secret, ok bool, err error) {
	path, _ := cmd.Flags().GetString("password-file")
	if path != "" {
		line, err := FirstLine(path)
		if err != nil {
			return "", false, Usage("password file: %w", err)
		}
		return auth.Secret(line), true, nil
	}
	v, ok := a.Getenv("MESH_PASSWORD")
	if ok && v == "" {
		return "", false, Usage("MESH_PASSWORD is empty")
	}
	return auth.Secret(v), ok, nil
}

// maxSecretFile is how much of a file with a secret in its first line is read, in bytes.
const maxSecretFile = 64 << 10

// FirstLine is the first line of a file, which holds a secret; a blank one is an error.
func FirstLine(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	line = strings.TrimSuffix(line, "\r")
	switch {
	case len(line) > maxSecretFile:
		return "", fmt.Errorf("the first line of %s has more than %d bytes", path, maxSecretFile)
	case strings.TrimSpace(line) == "":
		return "", fmt.Errorf("the first line of %s is empty", path)
	}
	return line, nil
}

// Password is the given one, or asks for it on a terminal; twice when a new one is
// set. Without a terminal it is a usage error, never a prompt.
func (a *App) Password(cmd *cobra.Command, twice bool) (auth.Secret, error) {
	pw, ok, err := a.GivenPassword(cmd)
	if err != nil || ok {
		return pw, err
	}
	if !a.StdinTerminal || a.ReadPassword == nil {
		return "", Usage("no password: set MESH_PASSWORD or give --password-file FILE")
	}
	ask := func(prompt string) (string, error) {
		fmt.Fprint(a.Stderr, prompt)
		line, err := Await(cmd.Context(), a, a.ReadPassword)
		fmt.Fprintln(a.Stderr)
		return line, err
	}
	first, err := ask("Password of the mesh: ")
	if cmd.Context().Err() != nil {
		return "", err
	}
	if err != nil {
		return "", Usage("the password could not be read: %w", err)
	}
	if first == "" {
		return "", Usage("the password is empty")
	}
	if twice {
		second, err := ask("Once more: ")
		if cmd.Context().Err() != nil {
			return "", err
		}
		if err != nil {
			return "", Usage("the password could not be read: %w", err)
		}
		if first != second {
			return "", Exit(ExitUsage, errors.New("the two passwords differ"))
		}
	}
	return auth.Secret(first), nil
}
