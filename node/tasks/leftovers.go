package tasks

import (
	"opencode-mesh/node/agent"
	"opencode-mesh/protocol/api"
)

// maxLeftovers bounds the turns that wait for their agent to forget them; those
// beyond are forgotten when the journal drops them.
const maxLeftovers = 10000

// leave notes that nothing of a turn is needed any more but its record. Callers
// hold mu.
func (j *journal) leave(t api.Triple) {
	if len(j.leftovers) < maxLeftovers {
		j.leftovers = append(j.leftovers, t)
	}
}

// tidy lets the agent forget what it keeps of turns that are over, such as the
// directory of a run.
func (j *journal) tidy() {
	j.mu.Lock()
	turns := j.leftovers
	j.leftovers = nil
	j.mu.Unlock()
	for _, t := range turns {
		j.forget(t)
	}
}

// forget is for one turn. What fails is tried again when the journal drops it.
func (j *journal) forget(t api.Triple) {
	f, ok := j.cfg.Agent.(agent.Forgetter)
	if !ok {
		return
	}
	if err := f.Forget(t); err != nil {
		j.log.Debug("an agent keeps what is left of a turn", "task", t.Task, "attempt", t.Attempt, "turn", t.Turn, "err", err)
	}
}
