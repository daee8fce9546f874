package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// ErrTLSKey means that the hub's TLS key is there, or should be, and cannot be
// used. It is never replaced by itself, because every client pins it.
var ErrTLSKey = errors.New("the hub's TLS key cannot be used")

// The files of a TLS identity, in the directory given to LoadOrCreateTLS.
const (
	TLSKeyFile  = "tls.key" // PKCS #8, PEM, mode 0600: the identity
	TLSCertFile = "tls.crt" // the leaf, made of the key whenever needed
)

const (
	leafValidity = 365 * 24 * time.Hour
	// leafRenewal is how long before its end a leaf is replaced.
	leafRenewal = 30 * 24 * time.Hour
	// leafBackdate covers clients whose clock is behind.
	leafBackdate = time.Hour
	// DefaultTLSCheck is how often handshakes look whether the leaf still fits.
	DefaultTLSCheck = time.Minute
	maxPEM          = 1 << 20 // bytes of a key or certificate file
	pemKey          = "PRIVATE KEY"
	pemCert         = "CERTIFICATE"
)

// TLSOptions are the surroundings of a TLS identity.
type TLSOptions struct {
	// Hosts are names and addresses for the certificate beside those of the
	// machine, such as the host of the public URL. What is neither is left out.
	Hosts []string
	// Check is how often at most a handshake looks whether the leaf still fits; 0
	// means DefaultTLSCheck.
	Check time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Hostname is the name of this machine; nil means os.Hostname.
	Hostname func() (string, error)
	// Addresses are those of this machine's interfaces; nil asks the system.
	Addresses func() ([]netip.Addr, error)
	// Log gets a line for each new leaf and for trouble with it; nil means none.
	Log *slog.Logger
}

// TLSIdentity is the hub's own key with a self-signed certificate (leaf) over it.
// The key stays for the life of the data directory and is what links pin; the leaf
// is replaced under it when the machine's names or addresses change or 30 days
// before it expires, in the course of a handshake. It is safe for concurrent use.
type TLSIdentity struct {
	dir     string
	opts    TLSOptions
	key     *ecdsa.PrivateKey
	pin     string
	leaf    atomic.Pointer[tls.Certificate]
	checked atomic.Int64 // Unix nanoseconds of the last look at the leaf
}

// LoadOrCreateTLS loads the identity kept in dir, or makes one if there is none. A
// key that is unreadable, damaged, exposed, or missing beside its certificate is
// ErrTLSKey and stays as it is. The directory must not be in use by another
// process.
func LoadOrCreateTLS(dir string, opts TLSOptions) (*TLSIdentity, error) {
	if opts.Check <= 0 {
		opts.Check = DefaultTLSCheck
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Hostname == nil {
		opts.Hostname = os.Hostname
	}
	if opts.Addresses == nil {
		opts.Addresses = interfaceAddresses
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	key, err := loadOrCreateKey(dir)
	if err != nil {
		return nil, err
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTLSKey, err)
	}
	sum := sha256.Sum256(spki)
	t := &TLSIdentity{dir: dir, opts: opts, key: key, pin: hex.EncodeToString(sum[:])}
	if leaf, err := t.loadLeaf(); err == nil {
		t.leaf.Store(leaf)
	} else if !errors.Is(err, fs.ErrNotExist) {
		opts.Log.Warn("the TLS certificate cannot be used and is made anew", "error", err)
	}
	now := opts.Now()
	t.checked.Store(now.UnixNano())
	if err := t.refresh(now); err != nil {
		return nil, err
	}
	return t, nil
}

// Pin is the SHA-256 of the key (SPKI): 64 lower-case hex digits.
func (t *TLSIdentity) Pin() string { return t.pin }

// TLSConfig returns a server's configuration with this identity: TLS 1.2 or newer,
// the leaf kept up to date. Which protocols it offers (ALPN) is left to the
// server. Each call returns a new Config.
func (t *TLSIdentity) TLSConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: t.certificate}
}

func (t *TLSIdentity) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	now := t.opts.Now()
	last := t.checked.Load()
	since := now.Sub(time.Unix(0, last))
	// Of the handshakes that find it due, one looks; the others go on with the leaf
	// that is there. A clock that was set back makes it due as well.
	if (since >= t.opts.Check || since < 0) && t.checked.CompareAndSwap(last, now.UnixNano()) {
		if err := t.refresh(now); err != nil {
			t.opts.Log.Error("the TLS certificate could not be replaced", "error", err)
		}
	}
	return t.leaf.Load(), nil
}

// refresh replaces the leaf if it does not fit any more. A leaf that cannot be
// written down serves from memory all the same.
func (t *TLSIdentity) refresh(now time.Time) error {
	current := t.leaf.Load()
	want, err := t.opts.leafNames()
	if err != nil {
		t.opts.Log.Warn("the names and addresses of this machine cannot be listed", "error", err)
		if current != nil {
			want = namesOf(current.Leaf)
		}
	}
	if current != nil && now.After(current.Leaf.NotBefore) && now.Before(current.Leaf.NotAfter.Add(-leafRenewal)) &&
		namesOf(current.Leaf).equal(want) {
		return nil
	}
	leaf, err := issueLeaf(t.key, want, now)
	if err != nil {
		return err
	}
	t.leaf.Store(leaf)
	t.opts.Log.Info("new TLS certificate", "names", want.names, "addresses", len(want.addresses), "until", leaf.Leaf.NotAfter)
	block := pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: leaf.Certificate[0]})
	if err := writeFile(filepath.Join(t.dir, TLSCertFile), block, 0o644); err != nil {
		t.opts.Log.Warn("the TLS certificate could not be saved", "error", err)
	}
	return nil
}

// loadLeaf reads the leaf and makes sure that it belongs to the key.
func (t *TLSIdentity) loadLeaf() (*tls.Certificate, error) {
	path := filepath.Join(t.dir, TLSCertFile)
	cert, err := readCertificate(path)
	if err != nil {
		return nil, err
	}
	if pinOf(cert) != t.pin {
		return nil, fmt.Errorf("%s is of another key", path)
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: t.key, Leaf: cert}, nil
}

func loadOrCreateKey(dir string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(dir, TLSKeyFile)
	data, err := readSecretFile(path, maxPEM)
	if err == nil {
		return parseKey(path, data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrTLSKey, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, TLSCertFile)); err == nil {
		return nil, fmt.Errorf("%w: %s is missing although its certificate %s is there; put it back from a backup. %s",
			ErrTLSKey, path, TLSCertFile, keyLost)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrTLSKey, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a TLS key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make a TLS key: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("save the TLS key: %w", err)
	}
	if err := writeFile(path, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), 0o600); err != nil {
		return nil, fmt.Errorf("save the TLS key: %w", err)
	}
	return key, nil
}

// keyLost is what to do when there is no backup.
const keyLost = "If it is lost for good, remove " + TLSKeyFile + " and " + TLSCertFile +
	": the hub then makes a new key, and every client has to join or log in again with the new link"

// parseKey takes the whole of a key file or nothing.
func parseKey(path string, data []byte) (*ecdsa.PrivateKey, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemKey || len(rest) != 0 {
		return nil, fmt.Errorf("%w: %s is damaged or not a PEM file; put it back from a backup. %s", ErrTLSKey, path, keyLost)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%w: %s does not hold an ECDSA P-256 key; put it back from a backup. %s", ErrTLSKey, path, keyLost)
	}
	return key, nil
}
