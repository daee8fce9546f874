package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// path is one way to the origin.
type path struct {
	name string
	addr string
	tls  bool
	// prefix stands before every path, header are whole lines of every request.
	prefix, header string
}

// dial opens a connection.
func (p *path) dial() (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", p.addr, 10*time.Second)
	if err != nil || !p.tls {
		return conn, err
	}
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}), nil // it is this machine's own
}

// request is the head of a request; more are further header lines.
func (p *path) request(method, target, more string) string {
	return method + " " + p.prefix + target + " HTTP/1.1\r\nHost: origin.bench\r\n" + p.header + more + "\r\n"
}

// conn is a connection that asks for small answers.
type conn struct {
	net.Conn
	r    *bufio.Reader
	head []byte
}

func (p *path) open() (*conn, error) {
	c, err := p.dial()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, r: bufio.NewReader(c), head: []byte(p.request("GET", "/small", ""))}, nil
}

// get makes one small request.
func (c *conn) get() error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(c.head); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n != smallSize) {
		err = fmt.Errorf("%s, %d bytes", resp.Status, n)
	}
	return err
}

// answers are how long small requests took, sorted, and over what time they were made.
type answers struct {
	took    []time.Duration
	elapsed time.Duration
}

// gets makes small requests over some connections for d, one at a time on each, and
// with pace no more often than that. The time counts from when all connections are
// made, those along the way too.
func (p *path) gets(flight int, d, pace time.Duration) (a answers, err error) {
	conns := make([]*conn, flight)
	defer func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}()
	for i := range conns {
		if conns[i], err = p.open(); err == nil {
			err = conns[i].get()
		}
		if err != nil {
			return a, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	var mu sync.Mutex // guards a.took and err
	var wg sync.WaitGroup
	start := time.Now()
	for _, c := range conns {
		wg.Go(func() {
			took, failed := c.gets(start.Add(d), pace)
			mu.Lock()
			defer mu.Unlock()
			a.took = append(a.took, took...)
			if failed != nil {
				err = fmt.Errorf("%s: %w", p.name, failed)
			}
		})
	}
	wg.Wait()
	a.elapsed = time.Since(start)
	slices.Sort(a.took)
	if err == nil && len(a.took) == 0 {
		err = fmt.Errorf("%s: not one request was answered", p.name)
	}
	return a, err
}

func (c *conn) gets(until time.Time, pace time.Duration) (took []time.Duration, err error) {
	for next := time.Now(); ; {
		at := time.Now()
		if at.After(until) {
			return took, nil
		}
		if err := c.get(); err != nil {
			return took, err
		}
		took = append(took, time.Since(at))
		if next = next.Add(pace); pace > 0 {
			time.Sleep(time.Until(next))
		}
	}
}

// quantile is one of the times.
func (a answers) quantile(q float64) time.Duration {
	return a.took[min(int(float64(len(a.took))*q), len(a.took)-1)]
}

// down reads bulk over some streams for d and returns bytes per second.
func (p *path) down(ctx context.Context, streams int, d time.Duration) (float64, error) {
	return p.bulk(streams, func(c net.Conn, until time.Time) (int64, error) {
		if _, err := io.WriteString(c, p.request("GET", "/down", "")); err != nil {
			return 0, err
		}
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("%s", resp.Status)
		}
		buf := make([]byte, 256<<10)
		var n int64
		for time.Now().Before(until) && ctx.Err() == nil {
			k, err := resp.Body.Read(buf)
			if n += int64(k); err != nil {
				return n, err
			}
		}
		return n, nil
	}, d)
}

// endless is a size that no transfer reaches.
const endless = 1 << 40

// up sends bodies of a size over some streams and returns bytes per second until the
// origin has said that it has all of them, or, when ctx ends before, of what was sent.
func (p *path) up(ctx context.Context, streams int, size int64) (float64, error) {
	return p.bulk(streams, func(c net.Conn, _ time.Time) (int64, error) {
		if _, err := io.WriteString(c, p.request("POST", "/up", "Content-Length: "+strconv.FormatInt(size, 10)+"\r\n")); err != nil {
			return 0, err
		}
		buf := make([]byte, 256<<10)
		for n := int64(0); n < size; {
			if ctx.Err() != nil {
				return n, nil
			}
			k, err := c.Write(buf[:min(int64(len(buf)), size-n)])
			if n += int64(k); err != nil {
				return n, err
			}
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0, err
		}
		body, err := io.ReadAll(resp.Body)
		if err == nil && string(body) != strconv.FormatInt(size, 10) {
			err = fmt.Errorf("%s: %q of %d bytes arrived", resp.Status, body, size)
		}
		return size, err
	}, time.Minute)
}

// bulk runs one transfer per stream at once.
func (p *path) bulk(streams int, transfer func(c net.Conn, until time.Time) (int64, error), d time.Duration) (float64, error) {
	var total atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for range streams {
		wg.Go(func() {
			c, err := p.dial()
			if err == nil {
				_ = c.SetDeadline(start.Add(d + 30*time.Second))
				var n int64
				n, err = transfer(c, start.Add(d))
				total.Add(n)
				_ = c.Close()
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", p.name, err)
				failed.Store(&err)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(total.Load()) / time.Since(start).Seconds(), nil
}

// stall opens a bulk download that is never read, until the connection is closed.
func (p *path) stall() (net.Conn, error) {
	c, err := p.dial()
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(c, p.request("GET", "/down", "")); err != nil {
		_ = c.Close()
		return nil, err
	}
	_, err = io.ReadFull(c, make([]byte, 1024))
	return c, err
}
