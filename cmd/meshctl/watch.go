package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/hub/client"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
)

func (m *Main) watch() *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch", Short: "Show live events", Example: "  meshctl watch --json", Args: cobra.NoArgs,
		RunE: m.with(func(cmd *cobra.Command, _ []string, c *client.Client) error {
			return m.follow(cmd, func(fn func(api.Event) error, lost func(error)) error {
				return c.Events(cmd.Context(), fn, lost)
			})
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

func (m *Main) taskEvents() *cobra.Command {
	cmd := &cobra.Command{
		Use: "events ID…", Short: "Follow the events of tasks", Example: "  meshctl task events laptop-m5x2k9-7f3q", Args: someIDs,
		RunE: m.with(func(cmd *cobra.Command, args []string, c *client.Client) error {
			for _, id := range args { // the stream would be silent about one that is not there
				if _, err := c.Task(cmd.Context(), id); err != nil {
					return err
				}
			}
			return m.follow(cmd, func(fn func(api.Event) error, lost func(error)) error {
				return c.Events(cmd.Context(), func(e api.Event) error {
					about, err := concerns(e, args)
					if err != nil || !about {
						return err
					}
					return fn(e)
				}, lost)
			})
		}),
	}
	cli.JSONFlag(cmd)
	return cmd
}

// concerns reports whether an event is about one of some tasks, or about the stream.
func concerns(e api.Event, ids []string) (bool, error) {
	switch e.Type {
	case api.EventTask:
		var t struct {
			Task string `json:"task"`
		}
		err := json.Unmarshal(e.Data, &t)
		return slices.Contains(ids, t.Task), err
	case api.EventBeat, api.EventResync:
		return true, nil
	}
	return false, nil
}

// follow prints events until Ctrl-C, which is the normal end of watching.
func (m *Main) follow(cmd *cobra.Command, run func(func(api.Event) error, func(error)) error) error {
	print := m.printEvent
	if cli.AsJSON(cmd) {
		print = m.jsonEvent
	}
	hub := &outage{tell: func(text string) { fmt.Fprintln(m.app.Stderr, text) }}
	err := run(func(e api.Event) error {
		hub.back()
		return print(e)
	}, hub.lost)
	if cmd.Context().Err() != nil {
		return nil
	}
	return err
}

// outage tells once that the hub is away, and once that it is back.
type outage struct {
	tell func(text string)
	away bool
}

func (o *outage) lost(err error) {
	if !o.away {
		o.away = true
		o.tell("connection lost, still trying: " + err.Error())
	}
}

func (o *outage) back() {
	if o.away {
		o.away = false
		o.tell("the hub is back")
	}
}

// jsonEvent prints every event but heartbeats.
func (m *Main) jsonEvent(e api.Event) error {
	if e.Type == api.EventBeat {
		return nil
	}
	return m.app.JSONLine(struct {
		ID   string          `json:"id,omitempty"`
		Type string          `json:"type"`
		Data json.RawMessage `json:"data"`
	}{e.ID, e.Type, e.Data})
}

// printEvent prints what people may want to see.
func (m *Main) printEvent(e api.Event) error {
	at := time.Now().Format(time.TimeOnly)
	switch e.Type {
	case api.EventTask:
		var t api.Task
		if err := json.Unmarshal(e.Data, &t); err != nil {
			return err
		}
		parts := []string{at, t.Controller + " -> " + t.Target}
		if t.Op != "" {
			parts = append(parts, t.Op)
		}
		parts = append(parts, m.style().state(t.State), t.Task)
		if p := fill(t); p != nil {
			parts = append(parts, m.style().ctx(p))
		}
		_, err := fmt.Fprintln(m.app.Stdout, strings.Join(append(parts, headline(t)), "  "))
		return err
	case api.EventNode:
		var n api.Node
		if err := json.Unmarshal(e.Data, &n); err != nil {
			return err
		}
		_, err := fmt.Fprintf(m.app.Stdout, "%s  node %s  %s  %s\n", at, n.Name, n.State, mesh.CleanLine(n.Agent.Health))
		return err
	case api.EventResync:
		fmt.Fprintln(m.app.Stderr, at, " some events may be missing here")
	}
	return nil
}
