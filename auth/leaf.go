package auth

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// maxSANs bounds the names and the addresses of a leaf, so that a machine with
// thousands of virtual interfaces does not make every handshake large.
const maxSANs = 256

// sanSet is what a leaf is valid for; both lists sorted and without repetition.
type sanSet struct {
	names     []string
	addresses []netip.Addr
}

func (s sanSet) equal(o sanSet) bool {
	return slices.Equal(s.names, o.names) && slices.Equal(s.addresses, o.addresses)
}

// leafNames lists what the leaf has to be valid for now: localhost, the loopback
// addresses, the host name, HOST.local, all interface addresses, and Hosts. With an
// error it is what could be found out.
func (o TLSOptions) leafNames() (sanSet, error) {
	hostname, hostErr := o.Hostname()
	listed, addrErr := o.Addresses()

	hosts := slices.Clone(o.Hosts)
	if hostname != "" {
		first, _, _ := strings.Cut(hostname, ".")
		hosts = append(hosts, hostname, first+".local")
	}
	// The fixed ones first: a bound may only cut what the machine has too many of.
	s := sanSet{
		names:     []string{"localhost"},
		addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()},
	}
	for _, h := range hosts {
		if a, err := netip.ParseAddr(h); err == nil {
			s.addresses = append(s.addresses, a)
		} else if isHostName(h) {
			s.names = append(s.names, strings.ToLower(h))
		}
	}
	s.addresses = append(s.addresses, slices.SortedFunc(slices.Values(listed), netip.Addr.Compare)...)
	for i, a := range s.addresses {
		s.addresses[i] = a.Unmap().WithZone("")
	}
	s.names = distinct(s.names, cmp.Compare[string])
	s.addresses = distinct(s.addresses, netip.Addr.Compare)
	return s, errors.Join(hostErr, addrErr)
}

// distinct sorts the first maxSANs different elements of list.
func distinct[T comparable](list []T, compare func(a, b T) int) []T {
	seen := make(map[T]bool, len(list))
	list = slices.DeleteFunc(list, func(e T) bool {
		again := seen[e] || len(seen) == maxSANs
		if !again {
			seen[e] = true
		}
		return again
	})
	slices.SortFunc(list, compare)
	return list
}

// namesOf is the sanSet of a certificate that issueLeaf made.
func namesOf(cert *x509.Certificate) sanSet {
	s := sanSet{names: slices.Sorted(slices.Values(cert.DNSNames))}
	for _, ip := range cert.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			s.addresses = append(s.addresses, a.Unmap())
		}
	}
	slices.SortFunc(s.addresses, netip.Addr.Compare)
	return s
}

// issueLeaf makes a self-signed server certificate over key.
func issueLeaf(key *ecdsa.PrivateKey, want sanSet, now time.Time) (*tls.Certificate, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "opencode-mesh hub"},
		NotBefore:             now.Add(-leafBackdate),
		NotAfter:              now.Add(leafValidity),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              want.names,
	}
	for _, a := range want.addresses {
		template.IPAddresses = append(template.IPAddresses, a.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a TLS certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make a TLS certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}, nil
}

// interfaceAddresses lists the addresses of this machine's interfaces.
func interfaceAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			addresses = append(addresses, p.Addr())
		}
	}
	return addresses, nil
}

// PinOfFile is the pin of the first certificate in a PEM file, for a hub that is
// given its certificate as a file and prints the fingerprint of it.
func PinOfFile(certFile string) (string, error) {
	cert, err := readCertificate(certFile)
	if err != nil {
		return "", err
	}
	return pinOf(cert), nil
}

func readCertificate(path string) (*x509.Certificate, error) {
	data, err := readFile(path, maxPEM)
	if err != nil {
		return nil, err
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return nil, fmt.Errorf("%s holds no PEM certificate", path)
		}
		if block.Type != pemCert {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return cert, nil
	}
}
