package node

import (
	"context"
	"os"
	"time"

	"opencode-mesh/node/link"
	"opencode-mesh/node/mail"
	"opencode-mesh/node/opencomms/push"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// Status is how a node is, for its operator.
type Status struct {
	Name        string          `json:"name"`
	Version     string          `json:"version"`
	PID         int             `json:"pid"`
	StartedAt   time.Time       `json:"started_at"`
	DataDir     string          `json:"data_dir"`
	HubID       string          `json:"hub_id"`
	Link        link.Status     `json:"link"`
	Agent       api.AgentStatus `json:"agent"`
	Policy      string          `json:"policy"`
	AcceptFrom  []string        `json:"accept_from,omitempty"`
	MaxParallel int             `json:"max_parallel"`
	Workspaces  []string        `json:"workspaces"`
	Services    []string        `json:"services"`
	// Tasks is what the node has in hand, with its journal.
	Tasks tasks.Snapshot `json:"tasks"`
	// Mail is what the node's mail box has under way.
	Mail mail.Snapshot `json:"mail"`
	// Push is how it stands with OpencommsPush in the projects that have channels.
	Push []push.Project `json:"opencomms_push,omitempty"`
	// Forked are the journals that the hub refused as copies while this process ran
	// and that still finish something.
	Forked []tasks.Snapshot `json:"forked,omitempty"`
}

// Status looks at everything now.
func (n *Node) Status(ctx context.Context) Status {
	s := Status{
		Name: n.cfg.Profile.Name, Version: n.cfg.Version, PID: os.Getpid(), StartedAt: n.started, DataDir: n.cfg.DataDir,
		HubID: n.cfg.Profile.HubID, Link: n.link.Status(), Agent: n.desk.agent(ctx),
		AcceptFrom: n.cfg.AcceptFrom, Workspaces: []string{}, Services: n.cfg.services.names(),
		Mail: n.desk.box.Snapshot(), Push: n.push.Status(),
	}
	for _, w := range n.cfg.Workspaces {
		s.Workspaces = append(s.Workspaces, w.Name)
	}
	for i, r := range n.desk.runners() {
		if i == 0 {
			s.Policy, s.MaxParallel, s.Tasks = r.Policy(), r.MaxParallel(), r.Snapshot()
		} else {
			s.Forked = append(s.Forked, r.Snapshot())
		}
	}
	return s
}
