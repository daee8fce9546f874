package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"time"

	"opencode-mesh/protocol/api"
	"opencode-mesh/tunnel"
)

// serve uses one tunnel until ctx ends.
func (l *Link) serve(ctx context.Context, s *tunnel.Session) error {
	client := newClient(s)
	defer client.close()
	hello, welcome, err := l.greet(ctx, client)
	if err != nil {
		return l.slow(err)
	}
	s.MarkUseful()
	l.online(client, welcome)
	defer l.offline()
	l.log.Info("connected to the hub", "hub", l.cfg.Profile.Link.BaseURL(), "name", welcome.Name, "hub_version", welcome.Version)
	l.cfg.Host.Welcomed(welcome)

	srv := &http.Server{
		Handler:           l.cfg.Host.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		// Longer than the hub keeps an idle stream, so that it is never closed under a
		// request.
		IdleTimeout: 2 * idleTimeout,
		ErrorLog:    slog.NewLogLogger(l.log.Handler(), slog.LevelDebug),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(s.Listener()) // ends with the session or by Shutdown
	}()
	l.cfg.Host.Attach(client)
	l.report(ctx, client, api.NodeReport{Agent: hello.Agent, Services: hello.Services})
	l.cfg.Host.Detach()

	// What is being answered may be finished; after the session's end nothing of it
	// can be sent any more.
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
	defer cancel()
	if srv.Shutdown(bye) != nil {
		_ = srv.Close()
	}
	<-served
	return ctx.Err()
}

// greet says hello until the hub takes it.
func (l *Link) greet(ctx context.Context, client *Client) (api.Hello, api.Welcome, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	for forks := 0; ; forks++ {
		var welcome api.Welcome
		hello, err := l.cfg.Host.Hello(ctx)
		if err != nil {
			return hello, welcome, fmt.Errorf("prepare the hello: %w", err)
		}
		err = client.Call(ctx, http.MethodPost, "/v1/hello", hello, &welcome)
		var refused *api.Error
		switch {
		case err == nil && welcome.HubID != l.cfg.Profile.HubID:
			return hello, welcome, &WrongHubError{Want: l.cfg.Profile.HubID, Got: welcome.HubID}
		case err == nil:
			return hello, welcome, nil
		case !errors.As(err, &refused):
			return hello, welcome, fmt.Errorf("say hello: %w", err)
		case refused.Code == api.CodeJournalForked && forks < maxForks:
			l.log.Error("the hub has seen this journal further on: the data directory is a copy or was restored; starting with an empty journal", "journal", hello.JournalID)
			if err := l.cfg.Host.Fork(ctx); err != nil {
				return hello, welcome, fmt.Errorf("replace the forked journal: %w", err)
			}
		default:
			return hello, welcome, &tunnel.RefusedError{
				Status: refused.Code.Status(), Code: string(refused.Code), Message: refused.Message, RetryAfter: refused.RetryAfter,
			}
		}
	}
}

// report tells the hub when the agent's health or the services change, until ctx
// ends: at once where the host says so, as for a server that was started again and has
// a new password.
func (l *Link) report(ctx context.Context, client *Client, known api.NodeReport) {
	tick := time.NewTicker(l.cfg.ReportInterval)
	defer tick.Stop()
	for {
		news := l.cfg.Host.Changed() // before the look, so that nothing is missed
		if report := l.cfg.Host.Report(ctx); changed(known, report) {
			callCtx, cancel := context.WithTimeout(ctx, reportTimeout)
			err := client.Call(callCtx, http.MethodPut, "/v1/status", report, nil)
			cancel()
			if err == nil {
				known = report
			} else {
				l.log.Debug("status not reported", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-news:
		}
	}
}

// memoryStep is the part of the memory by which it must have changed to be news.
const memoryStep = 8

// changed reports whether what a node says of its agent and services is news.
func changed(known, now api.NodeReport) bool {
	if diff := now.Agent.Memory - known.Agent.Memory; diff > known.Agent.Memory/memoryStep || -diff > known.Agent.Memory/memoryStep {
		return true
	}
	now.Agent.Memory = known.Agent.Memory
	return !reflect.DeepEqual(known.Agent, now.Agent) || !slices.Equal(known.Services, now.Services)
}
