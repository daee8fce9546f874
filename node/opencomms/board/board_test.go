package board_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"opencode-mesh/node/opencomms"
	"opencode-mesh/node/opencomms/board"
	"opencode-mesh/node/opencomms/engine"
	"opencode-mesh/protocol/api"
	ocm "opencode-mesh/protocol/opencomms"
)

// desk is a board over some projects, and what the hub would ask it through.
type desk struct {
	t        *testing.T
	projects []board.Project
	mux      *chi.Mux
}

func newDesk(t *testing.T, projects ...board.Project) *desk {
	d := &desk{t: t, projects: projects, mux: chi.NewMux()}
	board.New(board.Config{Projects: func() []board.Project { return d.projects }}).Routes(d.mux)
	return d
}

// get asks for a path.
func (d *desk) get(path string, out any) (int, *api.Error) {
	d.t.Helper()
	w := httptest.NewRecorder()
	d.mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if len(w.Body.Bytes()) > api.MaxTunnelBody {
		d.t.Fatalf("%s: %d bytes do not fit into a tunnel", path, w.Body.Len())
	}
	var e api.ErrorBody
	_ = json.Unmarshal(w.Body.Bytes(), &e)
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), out); err != nil {
			d.t.Fatalf("%s: %v: %.200s", path, err, w.Body)
		}
	}
	return w.Code, e.Error
}

func (d *desk) list() api.ChannelList {
	d.t.Helper()
	var l api.ChannelList
	if status, e := d.get("/v1/opencomms/channels", &l); status != http.StatusOK {
		d.t.Fatalf("%d %v", status, e)
	}
	return l
}

func (d *desk) messages(id string, query url.Values) api.ChannelMessages {
	d.t.Helper()
	var p api.ChannelMessages
	if status, e := d.get(path(id)+"?"+query.Encode(), &p); status != http.StatusOK {
		d.t.Fatalf("%s: %d %v", id, status, e)
	}
	return p
}

func path(id string) string {
	project, name, _ := strings.Cut(id, ".")
	return "/v1/opencomms/channels/" + project + "/" + url.PathEscape(name) + "/messages"
}

// project makes a directory with channels of two members, A and B.
func project(t *testing.T, channels ...string) (board.Project, *opencomms.Project) {
	t.Helper()
	dir := t.TempDir()
	p, err := opencomms.Open(dir, opencomms.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range channels {
		first := engine.NewMember{Session: "ses_a", Role: "A", RolePrompt: "the secret prompt", Host: "claude", Mode: ocm.ModePull}
		if _, err := p.Create(t.Context(), engine.CreateRequest{Channel: name, Member: &first}); err != nil {
			t.Fatal(err)
		}
		second := engine.NewMember{Session: "ses_b", Role: "B", RolePrompt: "the secret prompt", Host: "codex", Mode: ocm.ModePull}
		if _, err := p.Join(t.Context(), engine.JoinRequest{Channel: name, Member: second}); err != nil {
			t.Fatal(err)
		}
	}
	return board.Project{Name: filepath.Base(dir), Dir: dir}, p
}

// write puts messages into a channel as they are.
func write(t *testing.T, p *opencomms.Project, channel string, rows ...ocm.EnvelopeFields) {
	t.Helper()
	err := p.Update(t.Context(), func(s *ocm.State) error {
		ch := engine.Find(s, channel)
		for _, row := range rows {
			row.ChannelID, row.Type = ch.ID, ocm.TypeManual
			if row.Sender == "" {
				row.Sender, row.SenderRole, row.Recipient, row.RecipientRole = "ses_a", "A", "ses_b", "B"
			}
			if row.Status == "" {
				row.Status = ocm.StatusDelivered
			}
			row.Correlation = "cor_" + strings.Repeat("0", 32)
			s.Messages.Set(row.ID, &ocm.Envelope{EnvelopeFields: row})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func id(n int) string { return fmt.Sprintf("ocm_%032x", n) }

func TestChannelsOfEveryProjectAreListedWithoutWhatIsTheNodesOwn(t *testing.T) {
	one, p := project(t, "review", "build")
	two, _ := project(t, "other")
	one.Name, two.Name = "main", "second"
	channel := func() (ch *ocm.Channel) {
		s, err := p.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return engine.Find(s, "review")
	}()
	one.Linked = map[string][]string{channel.ID: {"beta"}}
	none := board.Project{Name: "none", Dir: t.TempDir()}
	write(t, p, "review",
		ocm.EnvelopeFields{ID: id(1), Timestamp: 1_770_000_000_000, Content: "hello"},
		ocm.EnvelopeFields{ID: id(2), Timestamp: 1_770_000_001_000, Content: "there", Status: ocm.StatusPending})
	d := newDesk(t, two, none, one)
	l := d.list()
	var names []string
	for _, c := range l.Channels {
		names = append(names, c.Project+"/"+c.Name)
	}
	if want := []string{"main/build", "main/review", "second/other"}; !slices.Equal(names, want) || l.More || len(l.Problems) != 0 {
		t.Fatalf("%v, %+v", names, l)
	}
	c := l.Channels[1]
	if c.Messages != 2 || c.Waiting != 1 || c.LastAt == nil || !c.LastAt.Equal(time.UnixMilli(1_770_000_001_000)) || !slices.Equal(c.Linked, []string{"beta"}) || c.CreatedAt.IsZero() {
		t.Errorf("%+v", c)
	}
	if len(c.Members) != 2 || c.Members[0].Role != "A" || c.Members[0].Host != "claude" || c.Members[1].Waiting != 1 || c.Members[0].Waiting != 0 {
		t.Errorf("%+v", c.Members)
	}
	if l.Channels[0].LastAt != nil || l.Channels[0].Messages != 0 {
		t.Errorf("%+v", l.Channels[0])
	}
	page := d.messages(c.ID, nil)
	if len(page.Messages) != 2 || page.Messages[0].Content != "there" || page.Messages[0].From != "A" || page.Messages[0].To != "B" || page.Next != "" {
		t.Errorf("%+v", page)
	}
	all, _ := json.Marshal([]any{l, page})
	for _, secret := range []string{"ses_a", "ses_b", "secret", one.Dir, filepath.Dir(one.Dir)} {
		if strings.Contains(string(all), secret) {
			t.Errorf("%q is shown: %s", secret, all)
		}
	}
}

func TestAListFollowsItsFile(t *testing.T) {
	p, file := project(t, "review")
	d := newDesk(t, p)
	for n := range 4 {
		if c := d.list().Channels[0]; c.Messages != n {
			t.Fatalf("%d messages, want %d", c.Messages, n)
		}
		write(t, file, "review", ocm.EnvelopeFields{ID: id(n), Timestamp: 1_770_000_000_000, Content: "x"})
	}
	if _, err := file.DeleteSession(t.Context(), engine.Caller{Operator: true}, "review", true); err != nil {
		t.Fatal(err)
	}
	if l := d.list(); len(l.Channels) != 0 {
		t.Fatalf("%+v", l)
	}
}

func TestOfAProjectThatIsLinkedOnlyTheOtherChannelsStayHidden(t *testing.T) {
	p, file := project(t, "linked", "private")
	s, err := file.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.LinkedOnly, p.Linked = true, map[string][]string{engine.Find(s, "linked").ID: {"beta"}}
	d := newDesk(t, p)
	if l := d.list(); len(l.Channels) != 1 || l.Channels[0].Name != "linked" {
		t.Fatalf("%+v", l)
	}
	d.messages(board.ID(p.Dir, "linked"), nil)
	for _, hidden := range []string{board.ID(p.Dir, "private"), board.ID(p.Dir, "nowhere"), board.ID(filepath.Dir(p.Dir), "linked"), "x.linked", "..%2f.linked"} {
		if status, _ := d.get(path(hidden), nil); status != http.StatusNotFound {
			t.Errorf("%s: %d", hidden, status)
		}
	}
	d.projects = nil // the link has ended
	if status, _ := d.get(path(board.ID(p.Dir, "linked")), nil); status != http.StatusNotFound || len(d.list().Channels) != 0 {
		t.Errorf("%d after it ended", status)
	}
}

func TestPagesOfMessagesFollowOneAnotherWithoutGapOrRepeat(t *testing.T) {
	p, file := project(t, "review")
	d := newDesk(t, p)
	var rows []ocm.EnvelopeFields
	for i := range 60 {
		rows = append(rows, ocm.EnvelopeFields{ID: id(i), Timestamp: 1_770_000_000_000 + int64(i/7), Content: fmt.Sprint(i)}) // copies of a broadcast share a time
	}
	write(t, file, "review", rows...)
	for _, limit := range []int{1, 7, 59, 60, 61} {
		seen, last := map[string]bool{}, time.Now().Add(time.Hour)
		pages := 0
		for q := (url.Values{"limit": {fmt.Sprint(limit)}}); ; pages++ {
			page := d.messages(board.ID(p.Dir, "review"), q)
			if len(page.Messages) > limit {
				t.Fatalf("%d messages on a page of %d", len(page.Messages), limit)
			}
			for _, m := range page.Messages {
				if seen[m.ID] || m.At.After(last) {
					t.Fatalf("%s at %v after %v", m.ID, m.At, last)
				}
				seen[m.ID], last = true, m.At
			}
			if page.Next == "" {
				break
			}
			q.Set("before", page.Next)
		}
		if len(seen) != 60 || pages != 59/limit {
			t.Errorf("limit %d: %d messages on %d pages", limit, len(seen), pages+1)
		}
	}
	if got := len(d.messages(board.ID(p.Dir, "review"), nil).Messages); got != api.DefaultChannelPage {
		t.Errorf("%d messages by default", got)
	}
	for _, q := range []string{"limit=0", "limit=201", "limit=x", "before=x", "before=1", "before=1.x", "before=." + strings.Repeat("9", 100)} {
		if status, e := d.get(path(board.ID(p.Dir, "review"))+"?"+q, nil); status != http.StatusBadRequest || e == nil {
			t.Errorf("%s: %d", q, status)
		}
	}
}

func TestAnswersAreBoundedWhateverTheFileHolds(t *testing.T) {
	p, file := project(t, "review")
	d := newDesk(t, p)
	var rows []ocm.EnvelopeFields
	for i := range 300 {
		rows = append(rows, ocm.EnvelopeFields{ID: id(i), Timestamp: 1_770_000_000_000 + int64(i), Content: strings.Repeat("<\x01é", 20_000)})
	}
	rows[299].Timestamp = 1 << 50 // beyond the year 9999
	rows[298].Content = "short"
	write(t, file, "review", rows...)
	page := d.messages(board.ID(p.Dir, "review"), url.Values{"limit": {"200"}})
	size := 0
	for i, m := range page.Messages {
		size += len(m.Content)
		if len(m.Content) > api.MaxChannelContent || !utf8.ValidString(m.Content) || m.Truncated != (m.Content != "short") {
			t.Fatalf("message %d: %d bytes, truncated %v", i, len(m.Content), m.Truncated)
		}
	}
	if size > api.MaxChannelContents+api.MaxChannelContent || len(page.Messages) < 30 || page.Next == "" {
		t.Errorf("%d bytes in %d messages", size, len(page.Messages))
	}
	err := file.Update(t.Context(), func(s *ocm.State) error {
		for i := range api.MaxChannels + 10 {
			ch := *engine.Find(s, "review")
			ch.ID, ch.Name, ch.Description = fmt.Sprintf("chn_%032x", i), fmt.Sprint("c", i), strings.Repeat("<", 140)
			s.Channels.Set(ch.Name, &ch)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if l := d.list(); len(l.Channels) != api.MaxChannels || !l.More {
		t.Errorf("%d channels, more %v", len(l.Channels), l.More)
	}
}

func TestAFileThatCannotBeReadIsAProblemOfItsProjectAlone(t *testing.T) {
	good, _ := project(t, "review")
	bad, _ := project(t, "broken")
	if err := os.WriteFile(filepath.Join(bad.Dir, ".opencomms", "state.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad.Name = "bad"
	d := newDesk(t, bad, good)
	for range 3 {
		l := d.list()
		if len(l.Channels) != 1 || len(l.Problems) != 1 || l.Problems[0].Project != "bad" || strings.Contains(l.Problems[0].Message, bad.Dir) {
			t.Fatalf("%+v", l)
		}
	}
	if status, e := d.get(path(board.ID(bad.Dir, "broken")), nil); status != http.StatusServiceUnavailable || strings.Contains(e.Message, bad.Dir) {
		t.Errorf("%d %v", status, e)
	}
}

func TestANodeThatShowsNoChannelsSaysSo(t *testing.T) {
	d := &desk{t: t, mux: chi.NewMux()}
	board.New(board.Config{}).Routes(d.mux)
	for _, p := range []string{"/v1/opencomms/channels", path("x.y")} {
		if status, e := d.get(p, nil); status != http.StatusForbidden || e.Code != api.CodeRefused {
			t.Errorf("%s: %d %v", p, status, e)
		}
	}
}

func TestLookingWritesNothing(t *testing.T) {
	p, _ := project(t, "review")
	look := func() (names []string) {
		err := filepath.WalkDir(p.Dir, func(path string, e os.DirEntry, err error) error {
			info, ierr := e.Info()
			if err == nil && ierr == nil {
				names = append(names, fmt.Sprint(path, info.Size(), info.ModTime()))
			}
			return ierr
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	empty := board.Project{Name: "empty", Dir: t.TempDir()}
	before := look()
	d := newDesk(t, p, empty)
	d.list()
	d.messages(board.ID(p.Dir, "review"), nil)
	if after := look(); !slices.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
	if left, err := os.ReadDir(empty.Dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestALookThatNobodyWaitsForEnds(t *testing.T) {
	p, _ := project(t, "review")
	b := board.New(board.Config{Projects: func() []board.Project { return []board.Project{p} }})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.List(ctx); err == nil {
		t.Error("it went on")
	}
}
