package auth_test

import (
	"regexp"
	"strings"
	"testing"

	"opencode-mesh/auth"
)

func TestSecretIsRecognisableAndRandom(t *testing.T) {
	form := regexp.MustCompile(`^mesh_[A-Za-z0-9_-]{43}$`) // 43 characters hold 256 bits
	seen := map[string]bool{}
	for range 1000 {
		secret, hash := auth.NewSecret()
		if !form.MatchString(secret) {
			t.Fatalf("%q does not look like a secret", secret)
		}
		if seen[secret] {
			t.Fatal("a secret came twice")
		}
		seen[secret] = true
		if got, ok := auth.HashSecret(secret); !ok || !auth.EqualHash(got, hash) {
			t.Fatal("the secret does not lead to its hash")
		}
	}
}

func TestHashSecretTakesNothingElse(t *testing.T) {
	secret, hash := auth.NewSecret()
	other, _ := auth.NewSecret()
	if got, ok := auth.HashSecret(other); !ok || auth.EqualHash(got, hash) {
		t.Error("another secret has the same hash")
	}
	body := strings.TrimPrefix(secret, auth.SecretPrefix)
	for name, s := range map[string]string{
		"empty":               "",
		"prefix only":         auth.SecretPrefix,
		"no prefix":           body,
		"prefix in capitals":  strings.ToUpper(auth.SecretPrefix) + body,
		"one short":           secret[:len(secret)-1],
		"one long":            secret + "A",
		"a blank before":      " " + secret,
		"a newline after":     secret + "\n",
		"a newline inside":    secret[:len(secret)-2] + "\n" + secret[len(secret)-1:],
		"newlines for length": secret[:len(secret)-4] + "\r\n\r\n",
		"padded":              secret[:len(secret)-1] + "=",
		"other alphabet":      auth.SecretPrefix + strings.Repeat("+", 43),
		"bits beyond 256":     auth.SecretPrefix + strings.Repeat("A", 42) + "B",
		"huge":                auth.SecretPrefix + strings.Repeat("A", 1<<20),
	} {
		if got, ok := auth.HashSecret(s); ok || got != [32]byte{} {
			t.Errorf("%s: taken for a secret", name)
		}
	}
}

func TestNewIDIsUniqueAndKeepsItsPrefix(t *testing.T) {
	form := regexp.MustCompile(`^id_[a-z2-7]{26}$`)
	seen := map[string]bool{}
	for range 1000 {
		id := auth.NewID("id_")
		if !form.MatchString(id) || seen[id] {
			t.Fatalf("%q is malformed or came twice", id)
		}
		seen[id] = true
	}
}

func BenchmarkHashSecret(b *testing.B) {
	secret, _ := auth.NewSecret()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := auth.HashSecret(secret); !ok {
			b.Fatal("not a secret")
		}
	}
}
