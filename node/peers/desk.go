package peers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/node/peers/spool"
	"opencode-mesh/protocol/peers"
)

const (
	// DeskWait is how long the desk stays published for an acknowledgement that does not
	// come.
	DeskWait = 24 * time.Hour
	// deskGrace is how long it stays after it was asked for.
	deskGrace = time.Minute
	// DeskFile is where its name is kept, in Config.DataDir.
	DeskFile = "peers-desk.json"
)

// desk is the endpoint for people: what `meshnode peers` sends, it sends from there, and
// what is sent to it waits there for somebody to take it. It is published only for as
// long as there is a reason to.
type desk struct {
	s    *Service
	id   string
	wake chan struct{}

	// deciding holds a token while it is decided whether the desk is published and that is
	// done, so that nobody who asked for it sees it go; it guards asked.
	deciding chan struct{}
	asked    time.Time
}

func newDesk(s *Service) *desk {
	return &desk{s: s, id: peers.EndpointID(deskSession(s.cfg.Node)), wake: make(chan struct{}, 1), deciding: make(chan struct{}, 1)}
}

// take waits for deciding.
func (d *desk) take(ctx context.Context) error {
	select {
	case d.deciding <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *desk) give() { <-d.deciding }

func deskSession(node string) string { return "mesh-desk-" + node }

// Desk publishes the endpoint for people and returns it.
func (s *Service) Desk(ctx context.Context) (Endpoint, error) {
	d := s.desk
	if err := d.take(ctx); err != nil {
		return Endpoint{}, err
	}
	defer d.give()
	d.asked = s.cfg.now()
	if err := d.publish(ctx); err != nil {
		return Endpoint{}, err
	}
	e, ok := s.Own(d.id)
	if !ok {
		return e, ErrNoEndpoint // it was withdrawn at this moment
	}
	return e, nil
}

// DeskID is the address of the desk, published or not.
func (s *Service) DeskID() string { return s.desk.id }

// DeskIdentity is who the desk is or would be. It publishes nothing.
func (s *Service) DeskIdentity() (id, name string, err error) {
	name, err = s.desk.name()
	return s.desk.id, cmp.Or(name, s.cfg.Node), err
}

// DeskNamed reports whether somebody gave the desk a name.
func (s *Service) DeskNamed() (bool, error) {
	name, err := s.desk.name()
	return name != "", err
}

// Name gives the desk a name, under which it stays published; "": takes it away.
func (s *Service) Name(ctx context.Context, name string) error {
	if name != "" && !peers.ValidName(name) {
		return fmt.Errorf("%q is no name: 1 to 32 letters, digits, blanks, - and _", name)
	}
	if err := s.desk.save(name); err != nil {
		return err
	}
	if name == "" {
		if _, published := s.Own(s.desk.id); !published {
			return nil
		}
	}
	_, err := s.Desk(ctx)
	return err
}

// publish publishes the desk, or changes what is published.
func (d *desk) publish(ctx context.Context) error {
	name, err := d.name()
	if err != nil {
		return err
	}
	return d.s.Publish(ctx, Endpoint{
		ID: d.id, Session: deskSession(d.s.cfg.Node), Title: "people at " + d.s.cfg.Node, Name: cmp.Or(name, d.s.cfg.Node),
		Directory: d.s.cfg.Node + ":", // people are in none, and where the node has its data is nobody's business
		Policy:    peers.PolicyHold, Permissions: PermissionsAsk, Receiver: people{},
	})
}

// look has run look whether the desk is needed, if the news is of the desk.
func (d *desk) look(id string) {
	if id != d.id {
		return
	}
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run publishes the desk while it is needed, until ctx ends.
func (d *desk) run(ctx context.Context) {
	tick := time.NewTicker(d.s.cfg.Options.Sweep)
	defer tick.Stop()
	for {
		if err := d.decide(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, errStopping) {
			d.s.cfg.Log.Error("peers: the desk for people is not as it should be", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-tick.C:
		}
	}
}

func (d *desk) decide(ctx context.Context) error {
	if err := d.take(ctx); err != nil {
		return err
	}
	defer d.give()
	needed, err := d.needed()
	if err != nil {
		return err
	}
	_, published := d.s.Own(d.id)
	switch {
	case needed && !published:
		return d.publish(ctx)
	case !needed && published:
		return d.s.Withdraw(ctx, d.id)
	}
	return nil
}

// needed reports whether anybody may want to write to the desk, or to be heard by it.
// Called with deciding.
func (d *desk) needed() (bool, error) {
	now := d.s.cfg.now()
	if !d.asked.IsZero() && now.Sub(d.asked) < deskGrace {
		return true, nil
	}
	name, err := d.name()
	if name != "" || err != nil {
		return true, err
	}
	open, err := d.s.Records(d.id, spool.StateHeld, spool.StateQueued, spool.StateInflight)
	if len(open) > 0 || err != nil {
		return true, err
	}
	return d.s.Awaiting(d.id)
}

// Awaiting reports whether a message of an endpoint waits for its final acknowledgement,
// which comes to a published endpoint only, and is not older than DeskWait.
func (s *Service) Awaiting(id string) (bool, error) {
	sent, err := s.outbox.List(id)
	for _, r := range sent {
		if r.Awaits() && s.cfg.now().Sub(time.UnixMilli(int64(r.CreatedAt))) < DeskWait {
			return true, err
		}
	}
	return false, err
}

type deskFile struct {
	Name string `json:"name"`
}

// name is the name that was given, "" if none was.
func (d *desk) name() (string, error) {
	b, err := os.ReadFile(filepath.Join(d.s.cfg.DataDir, DeskFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	var f deskFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return "", fmt.Errorf("read the name of the desk: %w", err)
	}
	return f.Name, nil
}

// save keeps a name; "": none. A crash leaves the old one or the new one.
func (d *desk) save(name string) error {
	path := filepath.Join(d.s.cfg.DataDir, DeskFile)
	b, err := json.Marshal(deskFile{Name: name})
	if err == nil {
		err = files.Replace(files.OS{}, path, b)
	}
	if err != nil {
		return fmt.Errorf("keep the name of the desk: %w", err)
	}
	return nil
}

// people are the receiver of the desk: what somebody accepted was delivered by that.
type people struct{}

func (people) Deliver(context.Context, spool.Record) error    { return nil }
func (people) Acked(context.Context, peers.Ack) (bool, error) { return false, nil }

// Held is a message that waits for a person.
type Held struct {
	Endpoint string       `json:"endpoint"` // who it is for
	Name     string       `json:"name"`     // of that
	Record   spool.Record `json:"record"`
}

// Ref names a message of an endpoint.
type Ref struct {
	Endpoint string    `json:"endpoint"`
	Key      spool.Key `json:"key"`
}

// Inbox lists what waits for a person at any endpoint of this node, the desk first, then
// in the order of endpoints, each in the order of arrival.
func (s *Service) Inbox(context.Context) ([]Held, error) {
	var list []Held
	ids := []string{s.desk.id}
	for _, id := range s.Endpoints() {
		if id != s.desk.id {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		held, err := s.Records(id, spool.StateHeld)
		if err != nil {
			return nil, err
		}
		e, _ := s.Own(id)
		for _, r := range held {
			list = append(list, Held{Endpoint: id, Name: e.Name, Record: r})
		}
	}
	return list, nil
}

// Accept lets held messages be delivered; at the desk, that is all. It stops at the first
// that cannot be: spool.ErrFull, spool.ErrUnknown, or *spool.StateError if it is held no more.
func (s *Service) Accept(ctx context.Context, refs ...Ref) error {
	for _, ref := range refs {
		if err := s.spool.Queue(ref.Endpoint).Release(ctx, ref.Key); err != nil {
			return fmt.Errorf("accept the message %s: %w", ref.Key.ID, err)
		}
		if e := s.find(ref.Endpoint); e != nil {
			e.kick()
		}
	}
	return nil
}

// Drop ends held messages as dropped. It stops at the first that cannot be.
func (s *Service) Drop(ctx context.Context, refs ...Ref) error {
	for _, ref := range refs {
		if err := s.spool.Queue(ref.Endpoint).Drop(ctx, ref.Key); err != nil {
			return fmt.Errorf("drop the message %s: %w", ref.Key.ID, err)
		}
		s.settled(ref.Endpoint)
	}
	return nil
}
