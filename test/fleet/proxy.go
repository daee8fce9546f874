package fleet

import (
	"net"
	"strings"
	"sync"
)

// Proxy forwards TCP to the hub and can stop passing bytes without closing
// anything, as a network does that forgot a connection.
type Proxy struct {
	l      net.Listener
	target string

	// mu guards the following fields.
	mu     sync.Mutex
	frozen chan struct{} // closed while bytes pass
	conns  []net.Conn
	dials  int
	left   int64 // bytes until all connections are cut; 0: never
	cuts   int
	wg     sync.WaitGroup
}

// Proxy makes one in front of the hub and returns it with the link through it.
func (f *Fleet) Proxy() (*Proxy, string) {
	f.TB.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.TB.Fatal(err)
	}
	open := make(chan struct{})
	close(open)
	p := &Proxy{l: l, target: f.Hub.Addr(), frozen: open}
	p.wg.Go(p.serve)
	f.TB.Cleanup(p.close)
	return p, strings.Replace(f.Hub.Link, f.Hub.Addr(), l.Addr().String(), 1)
}

func (p *Proxy) serve() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.dials++
		p.conns = append(p.conns, in)
		p.mu.Unlock()
		p.wg.Go(func() { p.relay(in) })
	}
}

func (p *Proxy) relay(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer out.Close()
	p.mu.Lock()
	p.conns = append(p.conns, out)
	p.mu.Unlock()
	var legs sync.WaitGroup
	legs.Go(func() { p.copy(out, in) })
	legs.Go(func() { p.copy(in, out) })
	legs.Wait()
}

func (p *Proxy) copy(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		gate := p.frozen
		p.mu.Unlock()
		<-gate
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				err = werr
			}
			p.passed(int64(n))
		}
		if err != nil {
			_ = dst.Close()
			_ = src.Close()
			return
		}
	}
}

// passed counts bytes and cuts the connections when it is time.
func (p *Proxy) passed(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == 0 {
		return
	}
	if p.left = max(0, p.left-n); p.left > 0 {
		return
	}
	p.cuts++
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// CutAfter closes all connections, once, after so many more bytes have passed.
func (p *Proxy) CutAfter(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = n
}

// Cuts is how often that happened.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Freeze stops passing bytes; what is open stays open.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = make(chan struct{})
}

// Thaw lets them pass again.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.frozen:
	default:
		close(p.frozen)
	}
}

// Dials is how many connections were made.
func (p *Proxy) Dials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

func (p *Proxy) close() {
	p.Thaw()
	_ = p.l.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}
