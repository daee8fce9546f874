package auth

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted stands where a Secret would be printed.
const redacted = "[redacted]"

// Secret is a text that does not show when it is printed with any verb of fmt
// (except %p, which vet reports), logged, or encoded: only Reveal gives it. Keep
// it in exported fields, because fmt reads unexported ones past every method.
type Secret string

// Reveal returns the text itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (s Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return redacted }

// Format implements fmt.Formatter, for the verbs that would ignore String.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler, which JSON and YAML use.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
