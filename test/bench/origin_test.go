package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Variables with which the test binary is started again as a server, so that every
// part of a measurement has a process of its own.
const (
	roleVar   = "BENCH_ROLE"   // roleOrigin or rolePlain
	targetVar = "BENCH_TARGET" // of rolePlain
	tlsVar    = "BENCH_TLS"    // rolePlain serves TLS
)

const (
	roleOrigin = "origin" // the local server of a node
	rolePlain  = "plain"  // an HTTP reverse proxy without a tunnel: the honest floor
)

// serveRole serves until stdin ends, which it does with the process that started
// this one. It prints its address.
func serveRole(role string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	handler := http.Handler(http.HandlerFunc(origin))
	if role == rolePlain {
		handler = plainProxy(os.Getenv(targetVar))
		if os.Getenv(tlsVar) != "" {
			cert, err := selfSigned()
			if err != nil {
				return err
			}
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
		}
	}
	s := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(l) }()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return s.Close()
}

// smallSize is the size of a small answer, in bytes.
const smallSize = 256

// origin answers /small with a few bytes, /down with bytes for ever and /up with how
// many came.
func origin(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/down":
		w.Header().Set("Content-Length", strconv.Itoa(endless))
		buf := make([]byte, 256<<10)
		for {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	case "/up":
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	default:
		w.Header().Set("Content-Length", strconv.Itoa(smallSize))
		_, _ = w.Write(small[:])
	}
}

var small [smallSize]byte

// plainProxy is Go's reverse proxy as a careful person sets it up.
func plainProxy(target string) http.Handler {
	to := &url.URL{Scheme: "http", Host: target}
	return &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(to); r.SetXForwarded() },
		Transport:  &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second},
		BufferPool: &pool{}, ErrorLog: log.New(io.Discard, "", 0),
	}
}

type pool struct{ p sync.Pool }

func (p *pool) Get() []byte {
	if b, ok := p.p.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 32<<10)
}

func (p *pool) Put(b []byte) { p.p.Put(&b) }

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// startRole starts this binary again as a server and returns its address.
func startRole(tb testing.TB, role string, env ...string) (addr string) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, roleVar+"="+role, "GOGC=400")...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	if _, err := fmt.Fscanln(out, &addr); err != nil || !strings.Contains(addr, ":") {
		tb.Fatalf("%s does not serve: %q %v", role, addr, err)
	}
	return addr
}
