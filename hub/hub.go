// Package hub is the relay box: it opens the store, checks that a password is
// set, listens, and wires gate, registry, relay, events and HTTP together.
//
// Open does what can fail for reasons that a person must mend; Serve runs until
// its context ends and then stops in order: no new work, nodes told, streams
// ended, the store closed last.
package hub

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"opencode-mesh/auth"
	"opencode-mesh/auth/local"
	"opencode-mesh/hub/access"
	hubapi "opencode-mesh/hub/api"
	"opencode-mesh/hub/clock"
	"opencode-mesh/hub/events"
	"opencode-mesh/hub/gate"
	"opencode-mesh/hub/mail"
	"opencode-mesh/hub/metrics"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/relay"
	"opencode-mesh/hub/web"
	"opencode-mesh/protocol/api"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

const (
	// StopTimeout bounds a graceful stop.
	StopTimeout = 10 * time.Second
	// headerTimeout, answerTimeout and idleTimeout bound slow and idle clients.
	// Streams set the time for each of their events themselves.
	headerTimeout = 10 * time.Second
	answerTimeout = api.MaxWait + time.Minute
	idleTimeout   = 2 * time.Minute

	secretKey = "relay/secret"
	linkKey   = "hub/link"
)

// ErrNoPassword means that the hub has no password and was given none.
var ErrNoPassword = errors.New("no password is set: run `meshhub passwd`, or start with MESH_PASSWORD or --password-file")

// ErrStoreFailed means that a sync failed: nothing was acknowledged since, and
// the process must start anew from what is on disk.
var ErrStoreFailed = errors.New("the disk failed to sync; stopping, nothing is acknowledged any more")

// Hub is a running hub.
type Hub struct {
	cfg      Config
	log      *slog.Logger
	store    *bolt.Store
	access   *access.Access
	relay    *relay.Relay
	mail     *mail.Office
	clock    *clock.Clock
	api      *hubapi.Server
	listener net.Listener
	metricsL net.Listener
	metrics  *metrics.Metrics
	adminL   net.Listener
	tls      *tls.Config
	url      string
	link     auth.Link
	others   []string
	pin      string
}

// Open prepares a hub: everything but serving.
func Open(ctx context.Context, cfg Config) (_ *Hub, err error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	h := &Hub{cfg: cfg, log: cfg.Log}
	defer func() {
		if err != nil {
			h.closeAll()
		}
	}()
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if h.store, err = bolt.Open(bolt.Config{Dir: cfg.DataDir, Log: cfg.Log, Faults: cfg.faults, ProbeInterval: cfg.probe}); err != nil {
		return nil, err
	}
	if err := h.wire(ctx); err != nil {
		return nil, err
	}
	if err := h.password(ctx); err != nil {
		return nil, err
	}
	if err := h.listen(ctx); err != nil {
		return nil, err
	}
	if err := h.rememberLink(ctx); err != nil {
		return nil, err
	}
	if h.adminL, err = local.Listen(cfg.DataDir); err != nil {
		return nil, err
	}
	return h, nil
}

// wire makes the parts.
func (h *Hub) wire(ctx context.Context) error {
	var err error
	if h.clock, err = clock.New(ctx, h.store, h.cfg.clockSource, h.log); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	secret, err := h.secret(ctx)
	if err != nil {
		return err
	}
	info := h.store.Info()
	bus := events.New(info.Generation, hex.EncodeToString(random(4)))
	reg := registry.New()
	m := metrics.New(h.cfg.Version, metrics.Gauges{
		NodesOnline: func() float64 { return float64(reg.Online()) },
		OpenTasks:   func() map[api.State]int { return h.relay.States() },
		MailWaiting: func() (float64, float64) {
			mails, receipts := h.mail.Counts()
			return float64(mails), float64(receipts)
		},
		Subscribers: func() float64 { return float64(bus.Subscribers()) },
		Writable: func() float64 {
			if h.store.Writable() != nil {
				return 0
			}
			return 1
		},
	})
	h.metrics = m
	verifier, err := auth.NewVerifier(auth.VerifierConfig{})
	if err != nil {
		return err
	}
	limiter, err := auth.NewLimiter(auth.LimiterConfig{})
	if err != nil {
		return err
	}
	h.access = access.New(access.Config{Store: h.store, Verifier: verifier, Limiter: limiter, Now: h.clock.Now, Log: h.log, Failed: m.LoginRefused})
	h.relay, err = relay.New(ctx, relay.Config{
		Store: h.store, Bus: bus, Clock: h.clock, Observer: m, Log: h.log, Secret: secret,
		UnknownAfter: h.cfg.UnknownAfter, SweepEvery: h.cfg.SweepEvery, KeepSettled: h.cfg.KeepSettled, KeepCount: h.cfg.KeepCount,
	})
	if err != nil {
		return err
	}
	if h.mail, err = mail.New(ctx, mail.Config{Store: h.store, Clock: h.clock, Observer: m, Log: h.log}); err != nil {
		return err
	}
	doors := gate.New(gate.Config{Access: h.access, TrustedProxies: h.cfg.TrustedProxies, PublicURL: h.cfg.PublicURL, Names: h.webNames()})
	pages := web.New(web.Config{
		Gate: doors, LastEvent: bus.Last, Version: h.cfg.Version, Log: h.log,
		Ask: func(r *http.Request, path string) (int, []byte) { return h.api.Ask(r, path) },
	})
	h.api = hubapi.New(hubapi.Config{
		Gate: doors, Pages: pages,
		Access: h.access, Store: h.store, Relay: h.relay, Mail: h.mail, Registry: reg, Bus: bus, Metrics: m, Now: h.clock.Now,
		Log: h.log, Version: h.cfg.Version, TrustedProxies: h.cfg.TrustedProxies, Tunnel: h.cfg.tunnel(), JoinLink: h.JoinLink,
		ServiceDomain: h.cfg.ServiceDomain, BaseURL: func() string { return h.link.BaseURL() },
	})
	return nil
}

// webNames are the names under which browsers reach the hub.
func (h *Hub) webNames() []string {
	names := slices.Clone(h.cfg.WebHosts)
	if host, _, err := net.SplitHostPort(h.cfg.Listen); err == nil && host != "" {
		names = append(names, host)
	}
	if machine, err := os.Hostname(); err == nil && machine != "" {
		names = append(names, machine, machine+".local") // as other machines of the network find it
	}
	if h.cfg.TLS == TLSFiles {
		if cert, err := tls.LoadX509KeyPair(h.cfg.CertFile, h.cfg.KeyFile); err == nil && cert.Leaf != nil { // else listen says what is wrong
			names = append(names, cert.Leaf.DNSNames...)
		}
	}
	return names
}

// secret is the key of lineage tokens, made once and kept.
func (h *Hub) secret(ctx context.Context) ([]byte, error) {
	b, _, err := h.store.Setting(ctx, secretKey)
	if errors.Is(err, store.ErrNotFound) {
		b = random(32)
		_, err = h.store.PutSetting(ctx, secretKey, b, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("secret of the relay: %w", err)
	}
	return b, nil
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return b
}

// password sets the first one, or warns when a given one differs from the stored.
func (h *Hub) password(ctx context.Context) error {
	has, err := h.access.HasPassword(ctx)
	if err != nil {
		return err
	}
	given := h.cfg.Password.Reveal()
	switch {
	case !has && given == "":
		return ErrNoPassword
	case !has:
		return h.access.SetPassword(ctx, given)
	case given == "":
		return nil
	}
	same, err := h.access.MatchesPassword(ctx, given)
	if err != nil {
		return err
	}
	if !same {
		h.log.Warn("the password given at start is not the one that is set and is ignored; change it with `meshhub passwd`")
	}
	return nil
}

// URL is where the hub listens.
func (h *Hub) URL() string { return h.url }

// JoinLink is what nodes and controllers are given; "" for a hub that was opened
// by Admin and never served.
func (h *Hub) JoinLink() string {
	if h.link == (auth.Link{}) {
		return ""
	}
	return h.link.String()
}

// rememberLink keeps the join link for `meshhub link` beside a stopped hub.
func (h *Hub) rememberLink(ctx context.Context) error {
	old, rev, err := h.store.Setting(ctx, linkKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if string(old) == h.JoinLink() {
		return nil
	}
	_, err = h.store.PutSetting(ctx, linkKey, []byte(h.JoinLink()), rev)
	return err
}

// OtherAddresses are further addresses of this machine that nodes might use.
func (h *Hub) OtherAddresses() []string { return h.others }

// Pin is the fingerprint of the hub's key, "" without TLS of its own.
func (h *Hub) Pin() string { return h.pin }

// Serve runs until ctx ends, then stops gracefully. It returns nil after such a
// stop, ErrStoreFailed when the disk failed.
func (h *Hub) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	requests, endRequests := context.WithCancel(context.Background())
	defer endRequests()
	quiet := slog.NewLogLogger(h.log.Handler(), slog.LevelDebug)
	public := &http.Server{
		Handler: h.api.Public(), TLSConfig: h.tls, MaxHeaderBytes: hubapi.MaxHeader, ErrorLog: quiet,
		ReadHeaderTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	admin := &http.Server{Handler: h.api.Admin(), ReadHeaderTimeout: headerTimeout, ErrorLog: quiet}
	var wg sync.WaitGroup
	serve := func(name string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	serve("listener", func() error {
		if h.tls != nil {
			return public.ServeTLS(h.listener, "", "")
		}
		return public.Serve(h.listener)
	})
	serve("admin socket", func() error { return admin.Serve(h.adminL) })
	var scrape *http.Server
	if h.metricsL != nil {
		scrape = &http.Server{
			Handler: h.metrics.Handler(), MaxHeaderBytes: hubapi.MaxHeader, ErrorLog: quiet,
			ReadTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		}
		serve("metrics listener", func() error { return scrape.Serve(h.metricsL) })
	}
	background, stopBackground := context.WithCancel(context.Background())
	wg.Go(func() { h.clock.Run(background) })
	wg.Go(func() { h.access.Run(background) })
	wg.Go(func() { h.relay.Run(background) })
	wg.Go(func() { h.mail.Run(background) })
	wg.Go(func() {
		select {
		case <-h.store.Failed():
			cancel(ErrStoreFailed)
		case <-background.Done():
		}
	})

	<-ctx.Done()
	cause := context.Cause(ctx)
	h.log.Info("stopping")
	stopCtx, done := context.WithTimeout(context.Background(), StopTimeout)
	defer done()
	endRequests() // long polls and streams end; what is being written still is
	for _, s := range []*http.Server{public, admin, scrape} {
		if s == nil {
			continue
		}
		if err := s.Shutdown(stopCtx); err != nil {
			_ = s.Close()
		}
	}
	h.api.Close(stopCtx) // after the listeners, so that no tunnel comes in behind it
	stopBackground()
	wg.Wait()
	err := h.stopStore(stopCtx)
	if errors.Is(cause, context.Canceled) {
		return err
	}
	return cause
}

// stopStore writes what is only written now and then and closes the file.
func (h *Hub) stopStore(ctx context.Context) error {
	if h.store.Writable() == nil {
		if err := errors.Join(h.access.Flush(), h.clock.Persist(ctx)); err != nil {
			h.log.Warn("last uses or the hub's time were not written", "err", err)
		}
	}
	return h.store.Close()
}

// closeAll undoes a failed Open.
func (h *Hub) closeAll() {
	if h.api != nil {
		h.api.Close(context.Background()) // nothing is served yet: it ends at once
	}
	for _, l := range []net.Listener{h.listener, h.adminL, h.metricsL} {
		if l != nil {
			_ = l.Close()
		}
	}
	if h.store != nil {
		_ = h.store.Close()
	}
}

// tlsDir is where the hub's own key and certificate are.
func (h *Hub) tlsDir() string { return filepath.Join(h.cfg.DataDir, "tls") }
