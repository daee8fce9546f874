package auth_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"opencode-mesh/auth"
)

// machine is the surroundings of a hub that a test can change.
type machine struct {
	mu        sync.Mutex // guards the following
	now       time.Time
	hostname  string
	addresses []netip.Addr
	listErr   error
	listed    int // how often the addresses were asked for
}

func newMachine() *machine {
	return &machine{
		now:       time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
		hostname:  "box",
		addresses: []netip.Addr{netip.MustParseAddr("192.168.1.5"), netip.MustParseAddr("fe80::5%eth0")},
	}
}

func (m *machine) set(change func(m *machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *machine) options(hosts ...string) auth.TLSOptions {
	return auth.TLSOptions{
		Hosts:    hosts,
		Now:      func() time.Time { m.mu.Lock(); defer m.mu.Unlock(); return m.now },
		Hostname: func() (string, error) { m.mu.Lock(); defer m.mu.Unlock(); return m.hostname, m.listErr },
		Addresses: func() ([]netip.Addr, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.listed++
			return slices.Clone(m.addresses), m.listErr
		},
	}
}

// leafOf is the certificate that the next handshake gets.
func leafOf(t *testing.T, id *auth.TLSIdentity) *x509.Certificate {
	t.Helper()
	return must(id.TLSConfig().GetCertificate(&tls.ClientHelloInfo{}))(t).Leaf
}

// spki is the pin of a certificate, worked out apart from the code under test.
func spki(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

func TestIdentityIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hub")
	m := newMachine()
	first := must(auth.LoadOrCreateTLS(dir, m.options()))(t)
	if b, err := hex.DecodeString(first.Pin()); err != nil || len(b) != 32 || strings.ToLower(first.Pin()) != first.Pin() {
		t.Errorf("pin %q is not 64 lower-case hex digits", first.Pin())
	}
	if spki(leafOf(t, first)) != first.Pin() {
		t.Error("the pin is not that of the leaf's key")
	}
	info := must(os.Stat(filepath.Join(dir, auth.TLSKeyFile)))(t)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the key file has mode %o", info.Mode().Perm())
	}
	again := must(auth.LoadOrCreateTLS(dir, m.options()))(t)
	if again.Pin() != first.Pin() {
		t.Error("the pin changed with a restart")
	}
	if !leafOf(t, again).Equal(leafOf(t, first)) {
		t.Error("the leaf changed with a restart although nothing else did")
	}
	if pin := must(auth.PinOfFile(filepath.Join(dir, auth.TLSCertFile)))(t); pin != first.Pin() {
		t.Errorf("the file's pin is %s, want %s", pin, first.Pin())
	}
	if left := must(filepath.Glob(filepath.Join(dir, "*.tmp")))(t); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestLeafNamesTheMachine(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(m *machine)
		hosts    []string
		names    []string
		ips      []string
		notNames []string
	}{
		{"as it is", func(*machine) {}, nil,
			[]string{"localhost", "box", "box.local"}, []string{"127.0.0.1", "::1", "192.168.1.5", "fe80::5"}, nil},
		{"with a domain", func(m *machine) { m.hostname = "Box.example.org" }, nil,
			[]string{"localhost", "box.example.org", "box.local"}, nil, nil},
		{"with a public host", func(*machine) {}, []string{"hub.example.org", "203.0.113.1", "2001:db8::1"},
			[]string{"hub.example.org"}, []string{"203.0.113.1", "2001:db8::1"}, nil},
		{"with names that are none", func(m *machine) { m.hostname = "büro rechner" }, []string{"", "a b", "*"},
			[]string{"localhost"}, []string{"127.0.0.1"}, []string{"", "a b", "*", "büro rechner"}},
		{"without a name", func(m *machine) { m.hostname = "" }, nil, []string{"localhost"}, nil, []string{"", ".local"}},
		{"listed twice", func(m *machine) {
			m.hostname = "localhost"
			m.addresses = []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1"), netip.MustParseAddr("127.0.0.1")}
		}, nil, []string{"localhost"}, []string{"127.0.0.1"}, nil},
		{"when it cannot be listed", func(m *machine) { m.listErr = errors.New("no such call") }, nil,
			[]string{"localhost", "box"}, []string{"127.0.0.1", "::1"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine()
			c.change(m)
			leaf := leafOf(t, must(auth.LoadOrCreateTLS(t.TempDir(), m.options(c.hosts...)))(t))
			for _, name := range c.names {
				if err := leaf.VerifyHostname(name); err != nil {
					t.Error(err)
				}
			}
			for _, ip := range c.ips {
				if err := leaf.VerifyHostname("[" + ip + "]"); err != nil {
					t.Error(err)
				}
			}
			for _, name := range c.notNames {
				if slices.Contains(leaf.DNSNames, name) {
					t.Errorf("the leaf names %q", name)
				}
			}
			if distinct := len(slices.Compact(slices.Sorted(slices.Values(leaf.DNSNames)))); distinct != len(leaf.DNSNames) {
				t.Errorf("names are repeated: %q", leaf.DNSNames)
			}
		})
	}
	t.Run("within a bound", func(t *testing.T) {
		m := newMachine()
		for i := range 5000 {
			m.addresses = append(m.addresses, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
		}
		dir := t.TempDir()
		leaf := leafOf(t, must(auth.LoadOrCreateTLS(dir, m.options("203.0.113.1")))(t))
		if n := len(leaf.IPAddresses); n != auth.MaxSANs {
			t.Errorf("%d addresses, want %d", n, auth.MaxSANs)
		}
		for _, ip := range []string{"127.0.0.1", "[::1]", "203.0.113.1"} {
			if err := leaf.VerifyHostname(ip); err != nil {
				t.Error(err)
			}
		}
		slices.Reverse(m.addresses)
		if !leafOf(t, must(auth.LoadOrCreateTLS(dir, m.options("203.0.113.1")))(t)).Equal(leaf) {
			t.Error("the bound makes a new leaf when addresses are listed in another order")
		}
	})
}

func TestLeafIsReissuedUnderTheSameKey(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(m *machine)
		renewed bool
	}{
		{"not when nothing changes", func(*machine) {}, false},
		{"when an address comes", func(m *machine) { m.addresses = append(m.addresses, netip.MustParseAddr("10.0.0.9")) }, true},
		{"when an address goes", func(m *machine) { m.addresses = m.addresses[:1] }, true},
		{"not when they are listed in another order", func(m *machine) { slices.Reverse(m.addresses) }, false},
		{"when the host name changes", func(m *machine) { m.hostname = "other" }, true},
		{"not a day too early", func(m *machine) { m.now = m.now.Add((365 - 31) * 24 * time.Hour) }, false},
		{"30 days before it expires", func(m *machine) { m.now = m.now.Add((365-30)*24*time.Hour + time.Hour) }, true},
		{"when it has expired", func(m *machine) { m.now = m.now.Add(3 * 365 * 24 * time.Hour) }, true},
		{"when the clock was set back before it", func(m *machine) { m.now = m.now.Add(-24 * time.Hour) }, true},
		{"not when the machine cannot be listed", func(m *machine) { m.listErr, m.addresses, m.hostname = errors.New("no"), nil, "" }, false},
	} {
		for _, restart := range []bool{false, true} {
			name := c.name + " while it serves"
			if restart {
				name = c.name + " at a restart"
			}
			t.Run(name, func(t *testing.T) {
				dir, m := t.TempDir(), newMachine()
				id := must(auth.LoadOrCreateTLS(dir, m.options()))(t)
				pin, before := id.Pin(), leafOf(t, id)
				m.set(func(m *machine) { m.now = m.now.Add(auth.DefaultTLSCheck) })
				m.set(c.change)
				if restart {
					id = must(auth.LoadOrCreateTLS(dir, m.options()))(t)
				}
				after := leafOf(t, id)
				if renewed := !after.Equal(before); renewed != c.renewed {
					t.Errorf("renewed: %v, want %v", renewed, c.renewed)
				}
				if id.Pin() != pin || spki(after) != pin {
					t.Error("the pin changed")
				}
				m.mu.Lock()
				defer m.mu.Unlock()
				if m.now.Before(after.NotBefore) || !m.now.Before(after.NotAfter.Add(-29*24*time.Hour)) {
					t.Errorf("the leaf is valid from %v to %v, it is %v", after.NotBefore, after.NotAfter, m.now)
				}
			})
		}
	}
}

func TestHandshakesLookAtTheMachineOnceAMinute(t *testing.T) {
	m := newMachine()
	id := must(auth.LoadOrCreateTLS(t.TempDir(), m.options()))(t)
	m.set(func(m *machine) { m.listed, m.hostname = 0, "renamed" })
	before := leafOf(t, id)
	if m.listed != 0 {
		t.Error("the machine was listed again within the minute")
	}
	m.set(func(m *machine) { m.now = m.now.Add(auth.DefaultTLSCheck) })
	var all sync.WaitGroup
	var missing atomic.Int64
	for range 64 {
		all.Go(func() {
			if c, err := id.TLSConfig().GetCertificate(nil); err != nil || c == nil {
				missing.Add(1)
			}
		})
	}
	all.Wait()
	if missing.Load() != 0 {
		t.Errorf("%d handshakes got no certificate", missing.Load())
	}
	if m.listed != 1 {
		t.Errorf("64 handshakes listed the machine %d times, want once", m.listed)
	}
	if leafOf(t, id).Equal(before) {
		t.Error("the leaf was not replaced")
	}
}

func TestHandshakesDoNotWaitForALook(t *testing.T) {
	m := newMachine()
	opts := m.options()
	var id *auth.TLSIdentity
	var during atomic.Pointer[tls.Certificate]
	looks := 0
	opts.Addresses = func() ([]netip.Addr, error) {
		if looks++; looks == 2 { // the first was at the start
			c, err := id.TLSConfig().GetCertificate(nil)
			if err != nil {
				t.Error(err)
			}
			during.Store(c)
		}
		return nil, nil
	}
	id = must(auth.LoadOrCreateTLS(t.TempDir(), opts))(t)
	before := leafOf(t, id)
	m.set(func(m *machine) { m.now, m.hostname = m.now.Add(auth.DefaultTLSCheck), "renamed" })
	if leafOf(t, id).Equal(before) {
		t.Error("the leaf was not replaced")
	}
	if looks != 2 || during.Load() == nil || !during.Load().Leaf.Equal(before) {
		t.Errorf("%d looks; the handshake in the meantime did not get the old leaf", looks)
	}
}

func TestUnusableKeyIsReportedAndNeverReplaced(t *testing.T) {
	otherCurve := "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END PRIVATE KEY-----\n"
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, key []byte, path string)
		want  string
	}{
		{"empty", func(t *testing.T, _ []byte, path string) { write(t, path, nil) }, "damaged"},
		{"half", func(t *testing.T, key []byte, path string) { write(t, path, key[:len(key)/2]) }, "damaged"},
		{"without its last byte but one", func(t *testing.T, key []byte, path string) { write(t, path, key[:len(key)-2]) }, "damaged"},
		{"zeros", func(t *testing.T, key []byte, path string) { write(t, path, make([]byte, len(key))) }, "damaged"},
		{"with something after it", func(t *testing.T, key []byte, path string) { write(t, path, append(key, "more"...)) }, "damaged"},
		{"a certificate", func(t *testing.T, _ []byte, path string) {
			write(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
		}, "damaged"},
		{"garbage inside", func(t *testing.T, _ []byte, path string) {
			write(t, path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("garbage")}))
		}, "does not hold"},
		{"of another kind", func(t *testing.T, _ []byte, path string) { write(t, path, []byte(otherCurve)) }, "does not hold"},
		{"too large", func(t *testing.T, _ []byte, path string) { write(t, path, make([]byte, 2<<20)) }, "larger than"},
		{"readable by others", func(t *testing.T, _ []byte, path string) { chmod(t, path, 0o644) }, "chmod 600"},
		{"a directory", func(t *testing.T, _ []byte, path string) {
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, "directory"},
		{"missing beside its certificate", func(t *testing.T, _ []byte, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, "is missing although"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			must(auth.LoadOrCreateTLS(dir, newMachine().options()))(t)
			path := filepath.Join(dir, auth.TLSKeyFile)
			key := must(os.ReadFile(path))(t)
			c.spoil(t, key, path)
			before, beforeErr := os.ReadFile(path)

			_, err := auth.LoadOrCreateTLS(dir, newMachine().options())
			if !errors.Is(err, auth.ErrTLSKey) {
				t.Fatalf("got %v, want ErrTLSKey", err)
			}
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%q does not say %q and which file", err, c.want)
			}
			for line := range strings.Lines(string(key)) {
				if strings.Contains(err.Error(), strings.TrimSpace(line)) && !strings.HasPrefix(line, "---") {
					t.Error("the error shows the key")
				}
			}
			after, afterErr := os.ReadFile(path)
			if !bytes.Equal(before, after) || (beforeErr == nil) != (afterErr == nil) {
				t.Error("the key file was changed")
			}
		})
	}
	t.Run("a directory that is none", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, nil)
		if _, err := auth.LoadOrCreateTLS(path, newMachine().options()); err == nil {
			t.Error("an identity was made in a file")
		}
	})
}

func TestUnusableLeafIsMadeAnew(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"missing": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"half": func(t *testing.T, path string) {
			data := must(os.ReadFile(path))(t)
			write(t, path, data[:len(data)/2])
		},
		"garbage": func(t *testing.T, path string) {
			write(t, path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("garbage")}))
		},
		"of another key": func(t *testing.T, path string) {
			other := t.TempDir()
			must(auth.LoadOrCreateTLS(other, newMachine().options()))(t)
			write(t, path, must(os.ReadFile(filepath.Join(other, auth.TLSCertFile)))(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first := must(auth.LoadOrCreateTLS(dir, newMachine().options()))(t)
			path := filepath.Join(dir, auth.TLSCertFile)
			spoil(t, path)
			again := must(auth.LoadOrCreateTLS(dir, newMachine().options()))(t)
			if again.Pin() != first.Pin() || spki(leafOf(t, again)) != first.Pin() {
				t.Error("the pin changed")
			}
			if pin := must(auth.PinOfFile(path))(t); pin != first.Pin() {
				t.Error("the new leaf was not saved")
			}
		})
	}
}

func TestLeafThatCannotBeSavedServesAllTheSame(t *testing.T) {
	dir, m := t.TempDir(), newMachine()
	var out bytes.Buffer
	opts := m.options()
	opts.Log = slog.New(slog.NewTextHandler(&out, nil))
	id := must(auth.LoadOrCreateTLS(dir, opts))(t)
	before := leafOf(t, id)
	path := filepath.Join(dir, auth.TLSCertFile)
	// A directory cannot be replaced by a file, whoever runs this.
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	m.set(func(m *machine) { m.now, m.hostname = m.now.Add(time.Hour), "renamed" })
	after := leafOf(t, id)
	if after.Equal(before) || after.VerifyHostname("renamed") != nil {
		t.Error("the old leaf is served")
	}
	if !strings.Contains(out.String(), "could not be saved") {
		t.Errorf("the log does not say so: %s", out.String())
	}
	if left := must(filepath.Glob(filepath.Join(dir, ".*.tmp")))(t); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestPinOfFile(t *testing.T) {
	dir := t.TempDir()
	id := must(auth.LoadOrCreateTLS(dir, newMachine().options()))(t)
	both := filepath.Join(dir, "both.pem")
	write(t, both, append(must(os.ReadFile(filepath.Join(dir, auth.TLSKeyFile)))(t), must(os.ReadFile(filepath.Join(dir, auth.TLSCertFile)))(t)...))
	if pin := must(auth.PinOfFile(both))(t); pin != id.Pin() {
		t.Errorf("got %s, want %s", pin, id.Pin())
	}
	if _, err := auth.PinOfFile(filepath.Join(dir, auth.TLSKeyFile)); err == nil {
		t.Error("a key file has a pin")
	}
	if _, err := auth.PinOfFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
}

func TestIdentityOfThisMachine(t *testing.T) {
	id := must(auth.LoadOrCreateTLS(t.TempDir(), auth.TLSOptions{}))(t)
	leaf := leafOf(t, id)
	for _, host := range []string{"localhost", "127.0.0.1", "[::1]"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
