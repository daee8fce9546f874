package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"opencode-mesh/node/ocp/memory"
	"opencode-mesh/node/ocp/transport"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/ocp"
)

// face is who a provider is at a moment.
type face struct {
	name, where string
	file        string // what is in the program's file
	flow        ocp.DataFlow
}

func (f face) equal(g face) bool {
	return f.name == g.name && f.where == g.where && f.file == g.file && f.flow.Equal(g.flow)
}

// world has two providers that change as they like, an address and a program, and knows
// by itself what was consented to.
type world struct {
	server *httptest.Server

	mu      sync.Mutex      // guards the following
	faces   map[string]face // as they are, where: as configured
	granted map[string]face
	giving  map[string]face   // that is being consented to
	told    map[string]face   // as listed the last time
	shown   map[string]string // what names that
	crash   bool              // the program ends when it is asked the next time
	goals   map[string]int    // that arrived, by provider
	crimes  []string
}

// arrived is called for each goal that a provider gets.
func (w *world) arrived(provider string, now face, goal string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.goals[provider]++
	leaves := provider == "web" || now.flow.Egress || slices.ContainsFunc(now.flow.EgressScopes, func(s string) bool { return s != "local-only" })
	if !leaves {
		return
	}
	got, ok := w.granted[provider]
	now.flow.Egress = true
	giving, also := w.giving[provider]
	if (!ok || !got.equal(now)) && (!also || !giving.equal(now)) {
		w.crimes = append(w.crimes, fmt.Sprintf("%s as %+v got %q with the consent %+v (%v)", provider, now, goal, got, ok))
	}
}

func (w *world) face(provider string) face {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faces[provider]
}

// answer is what a provider with a face answers.
func (w *world) answer(provider string, f face, e ocp.Envelope) ocp.Envelope {
	switch {
	case e.Handshake != nil:
		return ocp.Envelope{HandshakeAck: &ocp.HandshakeAck{
			ProtocolVersion: ocp.VersionContextgraph, Provider: ocp.ProviderInfo{Name: f.name, Version: "1", DataFlow: f.flow},
			Capabilities: ocp.Capabilities{Query: ocp.QueryCapability{Kinds: []string{"doc"}}},
		}}
	case e.Query != nil:
		w.arrived(provider, f, e.Query.Goal)
		return ocp.Envelope{Frames: &ocp.Result{Frames: []ocp.Frame{frame(e.Query.Goal)}}}
	}
	return ocp.Envelope{}
}

// ServeHTTP is the address.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	f := w.face("web")
	f.where = w.server.URL + r.URL.Path // wherever it really came
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e, err := ocp.Decode(body)
	if err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		return
	}
	answer := w.answer("web", f, e)
	if answer.Type() == "" {
		rw.WriteHeader(http.StatusNoContent)
		return
	}
	out, err := ocp.Encode(answer, ocp.FamilyContextgraph)
	if err != nil {
		panic(err)
	}
	_, _ = rw.Write(out)
}

// started is one start of the program: who it is cannot change any more.
type started struct {
	w    *world
	face face
	dead bool
}

// identify finds the program's file. It is started at once after it.
func (w *world) identify(command []string) (program, error) {
	return program{path: command[0], digest: w.face("cmd").file}, nil
}

func (w *world) spawn(c transport.Command) (transport.Conn, error) {
	f := w.face("cmd")
	f.where = c.Args[0]
	return &started{w: w, face: f}, nil
}

// Exchange implements transport.Conn.
func (p *started) Exchange(ctx context.Context, e ocp.Envelope) (ocp.Envelope, error) {
	p.w.mu.Lock()
	p.dead = p.dead || e.Query != nil && p.w.crash
	if e.Query != nil {
		p.w.crash = false
	}
	p.w.mu.Unlock()
	if ctx.Err() != nil || p.dead {
		return ocp.Envelope{}, errors.Join(ctx.Err(), &transport.ProviderCrashedError{ID: "cmd"})
	}
	return p.w.answer("cmd", p.face, e), nil
}

// Close implements transport.Conn.
func (p *started) Close() error { return nil }

// TestNoOrderOfCallsGetsAGoalOffTheMachineWithoutConsent counts what arrives at the
// providers.
func TestNoOrderOfCallsGetsAGoalOffTheMachineWithoutConsent(t *testing.T) {
	t.Parallel()
	arrived, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		w := &world{faces: map[string]face{}, granted: map[string]face{}, told: map[string]face{}, shown: map[string]string{}, giving: map[string]face{}, goals: map[string]int{}}
		w.server = httptest.NewServer(w)
		defer w.server.Close()
		w.faces["web"] = face{name: "a", where: w.server.URL + "/a"}
		w.faces["cmd"] = face{name: "a", where: "a", flow: ocp.DataFlow{Egress: true}}
		var h *Host
		restart := func() {
			if h != nil {
				h.Close()
			}
			h, err = New(Config{
				Path: filepath.Join(dir, "consents.json"), Log: slog.New(slog.DiscardHandler), BackoffMin: 1, BackoffMax: 1, spawn: w.spawn, identify: w.identify,
				Providers: []Provider{{Name: "web", URL: w.faces["web"].where}, {Name: "cmd", Command: []string{w.faces["cmd"].where}}},
			})
			if err != nil {
				rt.Fatal(err)
			}
		}
		restart()
		defer func() { h.Close() }()
		provider := rapid.SampledFrom([]string{"web", "cmd"})
		flows := rapid.SampledFrom([]ocp.DataFlow{
			{}, {Egress: true}, {Reads: true, Egress: true}, {Egress: true, Writes: true}, {EgressScopes: []string{"third-party-model"}},
			{Egress: true, EgressScopes: []string{"org-tenant", "local-only"}}, {EgressScopes: []string{"local-only"}},
		})
		// effective is who a provider is to people.
		effective := func(p string, f face) face {
			f.flow = flow(f.flow)
			f.flow.Egress = f.flow.Egress || p == "web"
			return f
		}
		// running is who the program is that runs, if any does.
		running := func(p string) (f face) {
			f = w.face(p)
			atRest(h.member(p), func() {
				if c, ok := h.member(p).conn.(*started); ok && !c.dead {
					f = c.face
				}
			})
			return f
		}
		// list has the providers told of.
		list := func() {
			got, err := h.Providers(context.Background())
			if err != nil {
				rt.Fatal(err)
			}
			for i, p := range []string{"web", "cmd"} {
				w.told[p], w.shown[p] = effective(p, running(p)), got.Providers[i].Shown
			}
		}
		// consent consents to what was told, or unseen to what is there; alone: nothing else
		// goes on, so it is known what that is.
		consent := func(p string, unseen, alone bool) {
			now := effective(p, running(p))
			c, to := api.ContextConsent{Scope: "it may"}, now
			if told, ok := w.told[p]; ok && !unseen {
				c.Shown, to = w.shown[p], told
			}
			w.mu.Lock()
			if !alone || to.equal(now) {
				w.giving[p] = to // before it is there
			}
			w.mu.Unlock()
			err := h.Consent(context.Background(), p, c)
			w.mu.Lock()
			delete(w.giving, p)
			if err == nil {
				w.granted[p] = to
			}
			w.mu.Unlock()
			if want := to.equal(now) && now.flow.Egress; alone && want != (err == nil) {
				rt.Fatalf("consent to %+v, shown %+v: %v", now, to, err)
			}
		}
		revoke := func(p string) {
			err := h.Revoke(context.Background(), p)
			w.mu.Lock()
			defer w.mu.Unlock()
			if _, had := w.granted[p]; had != (err == nil) {
				rt.Fatalf("revoke %s: %v, there was one: %v", p, err, had)
			}
			delete(w.granted, p)
		}
		ask := func() []api.ContextAnswerLeg {
			legs, err := h.Ask(context.Background(), ocp.Query{Goal: "a secret"}, memory.Scope{})
			if err != nil {
				rt.Fatal(err)
			}
			return legs
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if len(w.crimes) > 0 {
					rt.Fatal(w.crimes[0])
				}
			},
			"consent": func(rt *rapid.T) { consent(provider.Draw(rt, "to"), rapid.Bool().Draw(rt, "unseen"), true) },
			"revoke":  func(rt *rapid.T) { revoke(provider.Draw(rt, "of")) },
			"list":    func(*rapid.T) { list() },
			"change": func(rt *rapid.T) {
				p := provider.Draw(rt, "who")
				w.mu.Lock()
				defer w.mu.Unlock()
				f := w.faces[p]
				f.name = rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")
				f.flow = flows.Draw(rt, "flow")
				if p == "cmd" {
					f.file = rapid.SampledFrom([]string{"", "replaced"}).Draw(rt, "file")
				}
				w.faces[p] = f
			},
			"move": func(rt *rapid.T) {
				to := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "to")
				w.mu.Lock()
				web, cmd := w.faces["web"], w.faces["cmd"]
				web.where, cmd.where = w.server.URL+"/"+to, to
				w.faces["web"], w.faces["cmd"] = web, cmd
				w.mu.Unlock()
				restart()
			},
			"restart": func(*rapid.T) { restart() },
			"crash": func(*rapid.T) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.crash = true
			},
			"damage": func(rt *rapid.T) {
				if err := os.WriteFile(h.cfg.Path, []byte("{"), 0o600); err != nil {
					rt.Fatal(err)
				}
				restart()
				w.granted = map[string]face{}
			},
			"query": func(rt *rapid.T) {
				web, cmd, crash := effective("web", w.face("web")), effective("cmd", running("cmd")), w.crash
				fits := func(p string, f face) bool {
					g, ok := w.granted[p]
					return !f.flow.Egress || ok && g.equal(f)
				}
				legs := ask()
				for i, want := range []bool{fits("web", web), fits("cmd", cmd)} {
					outcome := legs[i].Outcome
					switch {
					case i == 1 && crash: // who it is now, or that it failed
					case want && outcome != api.ContextFrames, !want && outcome != api.ContextAsks:
						rt.Fatalf("%+v; permitted: %v", legs[i].ContextLeg, want)
					}
					if outcome == api.ContextAsks {
						refused++
					}
				}
			},
			"queries while consents change": func(rt *rapid.T) {
				p := provider.Draw(rt, "of")
				give := rapid.Bool().Draw(rt, "give")
				list()
				var work sync.WaitGroup
				for range 3 {
					work.Go(func() { ask() })
				}
				if give {
					consent(p, false, false)
				}
				revoked := make(chan struct{})
				go func() {
					defer close(revoked)
					if _, had := h.consents.get(p); had {
						revoke(p)
					}
				}()
				<-revoked
				work.Wait()
			},
		})
		arrived += w.goals["web"] + w.goals["cmd"]
	})
	if arrived == 0 || refused == 0 {
		t.Errorf("%d goals arrived and %d were refused: that shows nothing", arrived, refused)
	}
}
