package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/hub/proxy"
	"opencode-mesh/hub/registry"
	"opencode-mesh/hub/shown"
	"opencode-mesh/protocol/api"
)

const (
	// channelLimit is how long a node may take to show its channels.
	channelLimit = 10 * time.Second
	// retryAway is when it may be worth it to ask for a node that is away again.
	retryAway = 5 * time.Second
)

// channels lists the OpenComms channels that a node shows. They are its owner's and no
// controller's (semantics 11), so operators see them, of those that the node takes
// anything from.
func (s *Server) channels(w http.ResponseWriter, r *http.Request) {
	var out api.ChannelList
	older := api.Errorf(api.CodeNotSupported, "the version of the node does not show channels")
	err := s.ask(r, older, func(ctx context.Context, c *registry.Conn) (err error) {
		out, err = c.Client.Channels(ctx)
		return err
	})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, tidyChannels(out))
}

// channelMessages are those of one of them.
func (s *Server) channelMessages(w http.ResponseWriter, r *http.Request) {
	id := chi.URLParam(r, "id")
	if r.URL.RawPath != "" { // then it is as it was sent
		id, _ = url.PathUnescape(id) // the server has parsed it before
	}
	project, name, _ := strings.Cut(id, ".")
	limit, err := numbered(r.URL.Query(), "limit", api.DefaultChannelPage, 1, api.MaxChannelPage)
	var out api.ChannelMessages
	if err == nil {
		query := url.Values{"limit": {strconv.Itoa(limit)}, "before": {r.URL.Query().Get("before")}}
		none := api.Errorf(api.CodeNotFound, "the node shows no such channel")
		err = s.ask(r, none, func(ctx context.Context, c *registry.Conn) (err error) {
			out, err = c.Client.ChannelMessages(ctx, project, name, query)
			return err
		})
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, tidyMessages(out, limit))
}

// ask calls the node of the path; see told for its errors.
func (s *Server) ask(r *http.Request, missing *api.Error, call func(context.Context, *registry.Conn) error) error {
	c, err := s.connected(r.Context(), chi.URLParam(r, "node"))
	var refusal *api.Error
	if errors.As(err, &refusal) && refusal.Code == api.CodeNodeOffline {
		return away(refusal)
	}
	if err != nil {
		return err
	}
	if err := c.Services.Takes(proxy.Caller{ID: who(r).Identity.ID, Name: who(r).Identity.Name}); err != nil {
		return err
	}
	ctx, done, err := s.hold(r, who(r), calls)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, channelLimit)
	defer cancel()
	return told(c, missing, call(ctx, c))
}

// told is what an error of a node is to the caller; missing is what it means that the
// node has nothing there. A node must not be able to answer in the hub's name, so that
// its refusals get one of few codes.
func told(c *registry.Conn, missing *api.Error, err error) error {
	name := c.Identity.Name
	var refusal *api.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal) && refusal.Code == api.CodeNotFound:
		return missing
	case errors.As(err, &refusal) && (refusal.Code == api.CodeRefused || refusal.Code == api.CodeBadRequest):
		return api.Errorf(refusal.Code, "%s says: %s", name, shown.Line(refusal.Message, maxDetail))
	case errors.As(err, &refusal):
		return api.Errorf(api.CodeUnavailable, "%s cannot do it now: %s", name, shown.Line(refusal.Message, maxDetail))
	case c.Session.Err() != nil:
		return away(api.Errorf(api.CodeNodeOffline, "node %s is offline", name))
	}
	return api.Errorf(api.CodeUnavailable, "%s did not answer in time; try again", name)
}

// away is a refusal with the time after which to ask again.
func away(e *api.Error) *api.Error {
	e.RetryAfter = retryAway
	return e
}

// tidyChannels keeps a node's list within its bounds, fit to be shown.
func tidyChannels(l api.ChannelList) api.ChannelList {
	l.More = l.More || len(l.Channels) > api.MaxChannels
	l.Channels = append([]api.Channel{}, l.Channels[:min(len(l.Channels), api.MaxChannels)]...)
	for i := range l.Channels {
		c := &l.Channels[i]
		c.ID = shown.Line(c.ID, api.MaxChannelText)
		c.Project, c.Name = shown.Line(c.Project, api.MaxChannelText), shown.Line(c.Name, api.MaxChannelText)
		c.Description = shown.Line(c.Description, 4*api.MaxChannelText)
		c.Linked = shown.Lines(c.Linked, api.MaxChannelMembers, api.MaxName)
		c.Members = append([]api.ChannelMember{}, c.Members[:min(len(c.Members), api.MaxChannelMembers)]...)
		for j := range c.Members {
			m := &c.Members[j]
			m.Role, m.Host, m.Mode = shown.Line(m.Role, api.MaxChannelText), shown.Line(m.Host, api.MaxChannelText), shown.Line(m.Mode, api.MaxChannelText)
		}
	}
	l.Problems = l.Problems[:min(len(l.Problems), api.MaxChannels)]
	for i := range l.Problems {
		p := &l.Problems[i]
		p.Project, p.Message = shown.Line(p.Project, api.MaxChannelText), shown.Line(p.Message, 4*api.MaxChannelText)
	}
	return l
}

// tidyMessages does the same for messages.
func tidyMessages(p api.ChannelMessages, limit int) api.ChannelMessages {
	p.Messages = append([]api.ChannelMessage{}, p.Messages[:min(len(p.Messages), limit)]...)
	for i := range p.Messages {
		m := &p.Messages[i]
		m.ID, m.ReplyTo = shown.Line(m.ID, api.MaxChannelText), shown.Line(m.ReplyTo, api.MaxChannelText)
		m.From, m.To = shown.Line(m.From, api.MaxChannelText), shown.Line(m.To, api.MaxChannelText)
		m.Type, m.Status = shown.Line(m.Type, api.MaxChannelText), shown.Line(m.Status, api.MaxChannelText)
		m.Truncated = m.Truncated || len(m.Content) > api.MaxChannelContent
		m.Content = shown.Text(m.Content, api.MaxChannelContent)
	}
	p.Next = shown.Line(p.Next, api.MaxChannelText)
	return p
}
