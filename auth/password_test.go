package auth_test

import (
	"errors"
	"strings"
	"testing"

	"opencode-mesh/auth"
)

func TestEveryByteOfAPasswordCounts(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	for name, pair := range map[string][2]string{
		"short":                      {"correct horse", "correct horsf"},
		"1 MiB, last byte":           {long + "a", long + "b"},
		"1 MiB, shorter by one":      {long, long[:len(long)-1]},
		"beyond 72 bytes":            {strings.Repeat("x", 72) + "1", strings.Repeat("x", 72) + "2"},
		"unicode, last byte":         {"пароль-密碼-\u00e9", "пароль-密碼-\u00e8"},
		"unicode, composed or not":   {"caf\u00e9", "cafe\u0301"},
		"after a NUL":                {"abc\x00def", "abc\x00deg"},
		"a NUL at the end":           {"abc", "abc\x00"},
		"bytes that are not UTF-8":   {"\xff\xfe\x01", "\xff\xfe\x02"},
		"blanks and line ends count": {"pass", "pass\n"},
	} {
		t.Run(name, func(t *testing.T) {
			hash := must(auth.HashPassword(pair[0]))(t)
			if !must(auth.CheckPassword(hash, pair[0]))(t) {
				t.Error("the right password does not match")
			}
			if must(auth.CheckPassword(hash, pair[1]))(t) {
				t.Error("the other password matches")
			}
			if strings.Contains(hash, pair[0]) {
				t.Error("the hash holds the password")
			}
		})
	}
}

func TestHashCarriesItsParametersAndAFreshSalt(t *testing.T) {
	a, b := must(auth.HashPassword("same"))(t), must(auth.HashPassword("same"))(t)
	if a == b {
		t.Error("two hashes of one password are equal")
	}
	if want := "$argon2id$v=19$m=19456,t=2,p=1$"; !strings.HasPrefix(a, want) {
		t.Errorf("hash %q does not begin with %q", a, want)
	}
}

func TestHashOfAnotherCostStillMatches(t *testing.T) {
	// t=1, m=64 KiB, p=2, a key of 24 bytes: raising the cost of new hashes later
	// keeps the old ones valid.
	hash := "$argon2id$v=19$m=64,t=1,p=2$MDEyMzQ1Njc4OWFiY2RlZg$ttr7p4Zi/2VagfKcW0TkIu6OPIePcWiX"
	if !must(auth.CheckPassword(hash, "old password"))(t) {
		t.Error("a hash with other parameters does not match its password")
	}
	if must(auth.CheckPassword(hash, "new password"))(t) {
		t.Error("a hash with other parameters matches another password")
	}
}

func TestEmptyPasswordIsRefused(t *testing.T) {
	if hash, err := auth.HashPassword(""); !errors.Is(err, auth.ErrEmptyPassword) || hash != "" {
		t.Errorf("got %q, %v; want ErrEmptyPassword", hash, err)
	}
	if must(auth.CheckPassword(must(auth.HashPassword("x"))(t), ""))(t) {
		t.Error("an empty password matches")
	}
}

func TestTamperedHashNeitherMatchesNorCosts(t *testing.T) {
	good := must(auth.HashPassword("secret words"))(t)
	part := strings.Split(good, "$")
	with := func(i int, s string) string {
		p := append([]string(nil), part...)
		p[i] = s
		return strings.Join(p, "$")
	}
	for name, hash := range map[string]string{
		"empty":                 "",
		"plain text":            "secret words",
		"bcrypt":                "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy",
		"argon2i":               with(1, "argon2i"),
		"another version":       with(2, "v=16"),
		"4 TiB of memory":       with(3, "m=4294967295,t=2,p=1"),
		"memory over the bound": with(3, "m=262145,t=2,p=1"),
		"memory beyond 32 bits": with(3, "m=4294986752,t=2,p=1"),
		"no memory":             with(3, "m=0,t=2,p=1"),
		"many passes":           with(3, "m=19456,t=4294967295,p=1"),
		"passes over the bound": with(3, "m=19456,t=9,p=1"),
		"no pass":               with(3, "m=19456,t=0,p=1"),
		"no lane":               with(3, "m=19456,t=2,p=0"),
		"many lanes":            with(3, "m=19456,t=2,p=255"),
		"lanes beyond 8 bits":   with(3, "m=19456,t=2,p=257"),
		"negative":              with(3, "m=-1,t=2,p=1"),
		"a sign":                with(3, "m=+19456,t=2,p=1"),
		"a leading zero":        with(3, "m=019456,t=2,p=1"),
		"a blank":               with(3, "m=19456, t=2,p=1"),
		"other order":           with(3, "t=2,m=19456,p=1"),
		"a further parameter":   with(3, "m=19456,t=2,p=1,data=AAAA"),
		"no salt":               with(4, ""),
		"a short salt":          with(4, "AAAA"),
		"a padded salt":         with(4, part[4]+"=="),
		"no key":                with(5, ""),
		"a short key":           with(5, "AAAA"),
		"a huge key":            with(5, strings.Repeat("A", 1<<20)),
		"a key with a newline":  with(5, part[5]+"\n"),
		"a seventh part":        good + "$AAAA",
		"cut":                   good[:len(good)-3],
	} {
		t.Run(name, func(t *testing.T) {
			for _, pw := range []string{"secret words", "", "x"} {
				ok, err := auth.CheckPassword(hash, pw)
				if ok {
					t.Fatalf("password %q matches", pw)
				}
				if name == "cut" && err == nil {
					continue // still a well-formed hash, of another password
				}
				if !errors.Is(err, auth.ErrBadHash) {
					t.Fatalf("got %v, want ErrBadHash", err)
				}
				if hash != "" && strings.Contains(err.Error(), hash) || strings.Contains(err.Error(), part[5]) {
					t.Errorf("the error repeats the hash: %v", err)
				}
			}
		})
	}
}

func FuzzStoredHash(f *testing.F) {
	f.Add("$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY")
	f.Add("$argon2id$v=19$m=4294967295,t=4294967295,p=255$$")
	f.Add("$$$$$")
	f.Fuzz(func(t *testing.T, hash string) {
		passes, memory, err := auth.HashWork(hash)
		if err != nil {
			if !errors.Is(err, auth.ErrBadHash) {
				t.Errorf("got %v, want ErrBadHash", err)
			}
			return
		}
		if passes < 1 || passes > auth.MaxHashTime || memory > auth.MaxHashMemory {
			t.Errorf("accepted t=%d m=%d", passes, memory)
		}
	})
}

func BenchmarkCheckPassword(b *testing.B) {
	hash := must(auth.HashPassword("correct horse battery staple"))(b)
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := auth.CheckPassword(hash, "wrong"); ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
