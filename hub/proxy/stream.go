package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"opencode-mesh/hub/early"
	"opencode-mesh/hub/framed"
	"opencode-mesh/protocol/api"
)

// stream upgrades a request to a raw stream to a TCP service: bytes both ways, with
// half-close. The answer comes when the service has taken the connection.
func (c *call) stream(w http.ResponseWriter) {
	if c.in.Method != http.MethodGet || !strings.EqualFold(c.in.Header.Get("Upgrade"), api.UpgradeStream) || c.in.ProtoMajor != 1 || !c.in.ProtoAtLeast(1, 1) {
		c.fail(w, api.Errorf(api.CodeBadRequest, "%s of node %s is a raw stream, not HTTP: use meshctl forward %s/%s", c.service.Name, c.node.name, c.node.name, c.service.Name))
		return
	}
	if c.in.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftoverLimit))
		c.fail(w, api.Errorf(api.CodeBadRequest, "a raw stream begins behind its request, which has no body"))
		return
	}
	if c.target.Path != "/" {
		c.fail(w, api.Errorf(api.CodeBadRequest, "%s of node %s is a raw stream and has no paths", c.service.Name, c.node.name))
		return
	}
	back, err := c.node.dialTaken(c.in.Context(), c.service.Name)
	if err != nil {
		c.failed(w, c.in, err)
		return
	}
	defer back.Close()
	conn, rw, err := early.Hijack(w)
	if err != nil {
		c.fail(w, err)
		return
	}
	defer conn.Close()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + api.UpgradeStream + "\r\n\r\n")
	if rw.Flush() != nil {
		return
	}
	c.splice(conn.(*early.Conn), back)
}

// splice copies both ways until both directions have ended, one failed, or the
// request's context ended.
func (c *call) splice(user *early.Conn, back net.Conn) {
	kill := func() {
		user.Abort()
		_ = back.Close() // a reset as well
	}
	stop := context.AfterFunc(c.in.Context(), kill)
	defer stop()
	client := framed.New(user)
	var inward sync.WaitGroup
	inward.Go(func() {
		if c.copy(back.(halfCloser), client) != nil {
			kill()
		}
	})
	if c.copy(client, back) != nil {
		kill()
	}
	inward.Wait()
}

type halfCloser interface {
	io.Writer
	CloseWrite() error
}

// copy copies one direction and passes its end on.
func (c *call) copy(dst halfCloser, src io.Reader) error {
	buf := c.proxy.buffers.Get()
	defer c.proxy.buffers.Put(buf)
	// Without the types' own short cuts, which take buffers of their own.
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf)
	if err != nil {
		return err
	}
	return dst.CloseWrite()
}
