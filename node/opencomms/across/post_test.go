package across

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"opencode-mesh/protocol/api"
)

// post is a hub that keeps everything in memory: what it does when it dies is tested
// elsewhere.
type post struct {
	t    tester
	lose func() bool // whether a request or answer is lost now

	mu       sync.Mutex
	known    map[string]api.Mail
	queue    []api.Mail // in the order in which they were taken
	receipts []receiptFor
	ids      map[string]string // identity by name
	clock    int64
}

type receiptFor struct {
	to string
	r  api.MailReceipt
}

func newPost(t tester) *post {
	return &post{t: t, lose: func() bool { return false }, known: map[string]api.Mail{}, ids: map[string]string{}, clock: 1_000_000}
}

// client is a node's way to the post.
type client struct {
	p    *post
	name string
}

var errLost = errors.New("lost on the wire")

func (c client) Call(ctx context.Context, _, path string, in, out any) error {
	p := c.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if p.lose() {
		return errLost
	}
	p.clock++
	var answer any
	switch v := in.(type) {
	case api.MailQuery:
		known := api.MailKnown{NowMS: p.clock, Unknown: []string{}}
		for _, id := range v.IDs {
			if _, ok := p.known[id]; !ok {
				known.Unknown = append(known.Unknown, id)
			}
		}
		answer = known
	case api.Mail:
		if err := v.Check(); err != nil {
			return err
		}
		if _, ok := p.ids[v.To]; !ok {
			return api.Errorf(api.CodeUnknownTarget, "no node %s", v.To)
		}
		if _, ok := p.known[v.ID]; !ok {
			v.From, v.FromID = c.name, p.ids[c.name]
			if v.SentMS == 0 {
				v.SentMS = p.clock
			}
			p.known[v.ID] = v
			p.queue = append(p.queue, v)
		}
		answer = api.MailReceipt{ID: v.ID, State: api.MailQueued}
	default:
		return fmt.Errorf("unexpected call of %s", path)
	}
	if p.lose() {
		return errLost
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, out)
}

// pump delivers what can be delivered; mail for a side that is away waits.
func (p *post) pump(sides map[string]*side) {
	p.mu.Lock()
	queue, receipts := p.queue, p.receipts
	p.queue, p.receipts = nil, nil
	p.mu.Unlock()
	var rest []api.Mail
	held := map[string]bool{}
	var more []receiptFor
	for _, m := range queue {
		lane := m.From + "/" + m.To + "/" + m.Lane
		s := sides[m.To]
		if held[lane] || s == nil || !s.online || p.lose() {
			held[lane] = true
			rest = append(rest, m)
			continue
		}
		if m.ToID != "" && m.ToID != p.ids[m.To] {
			more = append(more, receiptFor{m.From, api.MailReceipt{ID: m.ID, State: api.MailReturned, Code: api.MailTargetReplaced}})
			continue
		}
		err := s.put(http.MethodPut, "/v1/mail/"+m.ID, m)
		var refusal *api.Error
		switch {
		case err == nil && !p.lose():
			more = append(more, receiptFor{m.From, api.MailReceipt{ID: m.ID, State: api.MailDelivered}})
		case errors.As(err, &refusal) && refusal.Code.Status() < 500 && refusal.Code != api.CodeQueueFull:
			more = append(more, receiptFor{m.From, api.MailReceipt{ID: m.ID, State: api.MailReturned, Code: string(refusal.Code)}})
		default: // again, though it may have arrived
			held[lane] = true
			rest = append(rest, m)
		}
	}
	var waiting []receiptFor
	for _, r := range append(receipts, more...) {
		s := sides[r.to]
		if s == nil || !s.online || p.lose() || s.put(http.MethodPost, "/v1/mail/receipts", api.MailReceipts{Receipts: []api.MailReceipt{r.r}}) != nil || p.lose() {
			waiting = append(waiting, r)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(rest, p.queue...)
	p.receipts = append(waiting, p.receipts...)
}
