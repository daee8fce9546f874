package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// call is one request to a service.
type call struct {
	proxy   *Proxy
	node    *Node
	service api.Service
	target  Target
	by      Caller
	in      *http.Request
	rule    rule
	cancel  context.CancelFunc // ends the request at the service; nil unless it is rewritten
}

// http passes an HTTP request on.
func (c *call) http(w http.ResponseWriter) {
	err := c.method()
	if err != nil {
		c.fail(w, err)
		return
	}
	if c.rule, err = c.filter(); err != nil {
		c.fail(w, err)
		return
	}
	rc := http.NewResponseController(w)
	if c.in.ProtoMajor == 1 {
		// The service may answer before it has read everything.
		_ = rc.EnableFullDuplex()
		if c.in.ContentLength != 0 {
			defer func() { _ = rc.SetReadDeadline(time.Now().Add(leftoverLimit)) }()
		}
	}
	rp := httputil.ReverseProxy{
		Rewrite: c.rewrite, Transport: c.node, BufferPool: &c.proxy.buffers, FlushInterval: flushLimit,
		ErrorHandler: c.failed, ErrorLog: c.proxy.quiet,
	}
	rp.ModifyResponse = func(res *http.Response) error {
		if b, ok := res.Body.(*body); ok && b.whole {
			rp.FlushInterval = 0 // no piece of it waits for another: no timer
		}
		err := c.answer(res)
		if err == nil && c.rule.strip {
			// What is held for a client has to go, too.
			_ = rc.SetWriteDeadline(time.Now().Add(c.proxy.cfg.PassTimeout))
		}
		return err
	}
	in := c.in
	if c.rule.strip {
		ctx, cancel := context.WithCancel(in.Context())
		defer cancel()
		in, c.cancel = in.WithContext(ctx), cancel
	}
	rp.ServeHTTP(&answering{w, c}, in)
}

// method refuses the methods that are not for services. Any other goes through as it
// was written: whether a service knows it is the service's to say.
func (c *call) method() error {
	var why string
	switch strings.ToUpper(c.in.Method) {
	case http.MethodConnect:
		why = "services are asked for paths, and are no proxies"
	case http.MethodTrace, "TRACK":
		why = "its answer would repeat what the hub adds to a request, such as a password"
	default:
		return nil
	}
	return api.Errorf(api.CodeMethodNotAllowed, "the hub does not pass %s on to %s of node %s: %s", strings.ToUpper(c.in.Method), c.service.Name, c.node.name, why)
}

// rewrite makes the request that the service gets.
func (c *call) rewrite(pr *httputil.ProxyRequest) {
	out, h := pr.Out, pr.Out.Header
	out.URL.Scheme, out.URL.Host = "http", c.service.Name
	c.target.apply(out.URL)
	if pr.In.Trailer != nil {
		out.Trailer = pr.In.Trailer // of the clone it is that of before the body
		out.Body = cleanTrailers(out.Body, func() http.Header { return out.Trailer })
	}
	dropMesh(h)
	dropLookalikes(h)
	dropCookies(h)
	if !c.passesUpgrade(h.Get("Upgrade")) {
		delete(h, "Upgrade") // which a server may always ignore
		delete(h, "Connection")
	}
	if host := pr.In.Header.Get(api.HeaderHost); c.by.Apart && host != "" {
		out.Host = host
	}
	c.proxy.forward(pr.In, out, c.by.Apart)
	if !c.by.Apart && !c.by.Hosted {
		delete(h, "Authorization") // it was for the hub
	}
	if c.service.Password != "" {
		out.SetBasicAuth(c.service.Username, c.service.Password)
	}
	if c.rule.strip {
		h["Accept-Encoding"] = []string{"identity"}
		delete(h, "Range") // a part of it could not be read
		delete(h, "If-Range")
	}
}

// answer looks at what the service answers, before any of it is passed on.
func (c *call) answer(res *http.Response) error {
	h := res.Header
	if res.StatusCode == http.StatusUnauthorized && c.service.Filter && c.service.Password != "" {
		e := api.Errorf(api.CodeUnavailable, "%s of node %s does not take the password that the hub was told; it was probably started again: try again in a few seconds", c.service.Name, c.node.name)
		e.RetryAfter = retryRestart
		return e
	}
	c.clean(h)
	if h["X-Accel-Buffering"] == nil && strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") {
		h["X-Accel-Buffering"] = []string{"no"} // for a proxy before the hub
	}
	switch {
	case res.StatusCode < 100: // the server that has to write it takes none of these
		return fmt.Errorf("an answer with the status %d", res.StatusCode)
	case res.StatusCode == http.StatusSwitchingProtocols:
		dropHops(h)
		return nil
	case res.ContentLength < 0: // others have no trailers
		res.Body = cleanTrailers(res.Body, func() http.Header { return res.Trailer })
	}
	if c.rule.strip {
		return c.keepKeys(res)
	}
	return nil
}

// clean takes out of the header of an answer what is not a service's to say.
func (c *call) clean(h http.Header) {
	dropMesh(h)
	if c.by.Hosted {
		keepToItself(h)
	} else {
		confine(h, c.by.Apart)
	}
}

// failed answers a request that has got no answer from its service.
func (c *call) failed(w http.ResponseWriter, _ *http.Request, err error) { c.fail(w, c.reason(err)) }

func (c *call) fail(w http.ResponseWriter, err error) {
	if c.in.Context().Err() != nil {
		// Nobody is there to read it, or the hub ends what it has open.
		panic(http.ErrAbortHandler)
	}
	c.proxy.cfg.Fail(w, c.in, err)
}

// reason turns what went wrong into an error that says so.
func (c *call) reason(err error) error {
	var refusal *api.Error
	var ended *tunnel.CloseError
	var reset *tunnel.ResetError
	node, service := c.node.name, c.service.Name
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &ended), errors.Is(err, tunnel.ErrGoingAway), c.node.session.Err() != nil:
		return api.Errorf(api.CodeNodeOffline, "node %s is offline", node)
	case errors.As(err, &reset):
		switch reset.Code {
		case tunnel.ResetNoService:
			return api.Errorf(api.CodeNotFound, "node %s offers %s no longer", node, service)
		case tunnel.ResetUnknownKind:
			return api.Errorf(api.CodeServiceDown, "node %s is too old for raw streams of this hub: update meshnode there", node)
		case tunnel.ResetUnreachable:
			return api.Errorf(api.CodeServiceDown, "%s of node %s does not run, or takes no connections: see to it on that machine", service, node)
		case tunnel.ResetTimeout, tunnel.ResetBusy:
			return c.late()
		}
		return api.Errorf(api.CodeServiceDown, "%s of node %s broke the connection off before it answered", service, node)
	case errors.Is(err, context.DeadlineExceeded):
		return c.late()
	case errors.Is(err, errHeader), says(err, "server response headers exceeded"):
		return api.Errorf(api.CodeServiceDown, "the answer of %s of node %s has a header of more than %d bytes", service, node, maxAnswerHeader)
	case errors.Is(err, errInformational), says(err, "too many 1xx"):
		return api.Errorf(api.CodeServiceDown, "%s of node %s sent too many informational answers (1xx) and no other", service, node)
	case errors.Is(err, errUnasked), says(err, "tried to switch protocol"):
		return api.Errorf(api.CodeServiceDown, "%s of node %s answered with an upgrade (101) that nobody asked for", service, node)
	case errors.Is(err, net.ErrClosed):
		return api.Errorf(api.CodeServiceDown, "%s of node %s closed the connection before it had the whole request", service, node)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return api.Errorf(api.CodeServiceDown, "%s of node %s closed the connection before it answered", service, node)
	}
	c.proxy.cfg.Log.Info("a service could not be used", "node", node, "service", service, "err", err)
	return api.Errorf(api.CodeServiceDown, "%s of node %s gave no answer that is HTTP", service, node)
}

// says reports whether an error is one that net/http only gives a text.
func says(err error, text string) bool { return strings.Contains(err.Error(), text) }

func (c *call) late() error {
	return api.Errorf(api.CodeTimeout, "%s of node %s did not take the connection in %s", c.service.Name, c.node.name, dialLimit)
}
