package push

// Points are the steps of a delivery, for tests that stop at them.
var Points = []string{
	string(atNote), string(atDrain), string(atPrompt), string(atCommit), string(atAccepted), string(atFinish), string(atDrop),
}

// PointsBack are those of a delivery that is put back.
var PointsBack = []string{string(atRequeue), string(atRequeued)}

// At has fn called before each step.
func (p *Pusher) At(fn func(step string)) { p.at = func(at point) { fn(string(at)) } }

// Notes is how many deliveries are under way.
func (p *Pusher) Notes() int {
	all, err := p.notes.all("")
	if err != nil {
		return -1
	}
	return len(all)
}
