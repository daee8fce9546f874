package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"opencode-mesh/node/agent"
	"opencode-mesh/node/tasks"
	"opencode-mesh/protocol/api"
)

// leave is a permission that an agent asks for.
var leave = api.Asked{Kind: api.QuestionPermission, Text: "run make?", Options: []string{api.PermitOnce, api.PermitAlways, api.PermitReject}}

// asking asks one question and gives the answer as summary, or the reason why there
// is none.
func asking(id string) runFunc {
	return func(ctx context.Context, _ agent.Turn, h agent.Host) (api.Outcome, error) {
		text, err := h.Ask(ctx, id, leave)
		if errors.Is(err, agent.ErrStopping) {
			return api.Outcome{}, agent.ErrDetached
		}
		if err != nil {
			text = "no answer: " + err.Error()
		}
		return api.Outcome{State: api.StateDone, Summary: text}, nil
	}
}

func TestAsk(t *testing.T) {
	t.Run("is told to the hub once, and the answer reaches the agent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("per_1")))
			o := g.take("t1")
			a := g.asked()
			if a.Triple != o.Triple || a.JournalID != g.id || a.Epoch != g.epoch || a.Question != "per_1" ||
				a.Asked == nil || a.Asked.Text != leave.Text || a.Asked.Kind != leave.Kind || len(a.Asked.Options) != 3 {
				t.Fatalf("ask %+v", a)
			}
			time.Sleep(time.Minute)
			if status, err := g.reply(o.Triple, "per_1", "always"); err != nil || status != http.StatusOK {
				t.Fatalf("answer: %d %v", status, err)
			}
			if out := g.result().Outcome; out.Summary != "always" {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
			none(t, g.hub.asks, "further word about the question")
		})
	})

	t.Run("keeps the lane and the slot, because the turn still runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newAgent(true, asking("q"))
			g := newRig(t, a)
			o := g.take("t1")
			g.take("t2")
			g.asked()
			g.began()
			synctest.Wait()
			none(t, a.began, "next turn of the session")
			g.reply(o.Triple, "q", "x")
			g.began()
			g.reply(triple("t2", 1, 1), "q", "y")
			g.stop()
		})
	})

	t.Run("takes the repeat of an answer that was delivered, and no other one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if _, err := h.Ask(ctx, "q", leave); err != nil {
					return api.Outcome{}, err
				}
				// An agent that could not use the answer may ask for it again.
				if text, err := h.Ask(ctx, "q", leave); err != nil || text != "once" {
					return api.Outcome{}, fmt.Errorf("asked again: %q %w", text, err)
				}
				return sleeper(time.Second)(ctx, turn, h)
			}))
			o := g.take("t1")
			g.asked()
			for range 3 {
				if status, err := g.reply(o.Triple, "q", "once"); err != nil || status != http.StatusOK {
					t.Fatalf("answer: %d %v", status, err)
				}
			}
			if _, err := g.reply(o.Triple, "q", "always"); err == nil || err.Code != api.CodeAlreadyAnswered {
				t.Fatalf("another answer: %v", err)
			}
			if out := g.result().Outcome; out.State != api.StateDone {
				t.Fatalf("outcome %+v", out)
			}
			if _, err := g.reply(o.Triple, "q", "once"); err == nil || err.Code != api.CodeQuestionGone {
				t.Fatalf("a repeat after the turn: %v", err)
			}
			g.stop()
			none(t, g.hub.asks, "second question")
		})
	})

	t.Run("answers are checked like everything that the hub says", func(t *testing.T) {
		gate := newGated()
		g := newRig(t, newAgent(true, gate.run))
		o := g.take("t1")
		g.began()
		good := api.Reply{Triple: o.Triple, JournalID: g.id, Epoch: g.epoch, Question: "q", Text: "x"}
		for want, change := range map[api.Code]func(*api.Reply){
			api.CodeQuestionGone:    func(*api.Reply) {},
			api.CodeJournalMismatch: func(r *api.Reply) { r.Epoch++ },
			api.CodeBadRequest:      func(r *api.Reply) { r.Question = "" },
			api.CodeTooLarge:        func(r *api.Reply) { r.Text = strings.Repeat("x", api.MaxAnswer+1) },
		} {
			rp := good
			change(&rp)
			if _, err := g.call(http.MethodPost, "/v1/tasks/t1/answer", rp, nil); err == nil || err.Code != want {
				t.Errorf("wanted %s, got %v", want, err)
			}
		}
		for _, other := range []api.Triple{triple("t1", 1, 2), triple("t1", 2, 1), triple("t9", 1, 1)} {
			if _, err := g.reply(other, "q", "x"); err == nil || err.Code != api.CodeQuestionGone {
				t.Errorf("%v: %v", other, err)
			}
		}
		if _, err := g.call(http.MethodPost, "/v1/tasks/t2/answer", good, nil); err == nil || err.Code != api.CodeBadRequest {
			t.Errorf("path of another task: %v", err)
		}
		gate.open("t1")
	})

	t.Run("is told again with growing pauses until the hub has it, and at once on a new connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")), func(c *tasks.Config) { c.RetryMin, c.RetryMax = 10*time.Second, time.Hour })
			g.hub.setAsk(func(api.Ask) error { return errors.New("stream reset") })
			o := g.take("t1")
			time.Sleep(4 * time.Second)
			synctest.Wait()
			if n := len(g.hub.asks); n != 1 {
				t.Fatalf("told %d times at first", n)
			}
			time.Sleep(40 * time.Second) // 5 to 10 s, then 10 to 20 s, then 20 to 40 s
			synctest.Wait()
			if n := len(g.hub.asks); n < 3 || n > 4 {
				t.Fatalf("told %d times after 44 seconds", n)
			}
			g.r.Connect(nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			for len(g.hub.asks) > 0 {
				g.asked()
			}
			g.hub.setAsk(nil)
			g.r.Connect(g.hub)
			synctest.Wait()
			if n := len(g.hub.asks); n != 1 {
				t.Fatalf("told %d times after the reconnect", n)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if n := len(g.hub.asks); n != 1 {
				t.Fatalf("told %d times although the hub has it", n)
			}
			g.r.Connect(nil)
			g.r.Connect(g.hub) // perhaps of a hub that was restored
			synctest.Wait()
			if n := len(g.hub.asks); n != 2 {
				t.Fatalf("told %d times after a further reconnect", n)
			}
			g.reply(o.Triple, "q", "once")
			g.result()
			g.stop()
			if n := len(g.hub.asks); n != 2 {
				t.Fatalf("told %d times in the end", n)
			}
		})
	})

	t.Run("that the hub refuses for good has no answer, at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")))
			g.hub.setAsk(func(api.Ask) error { return api.Errorf(api.CodeUnknownTask, "never heard of it") })
			g.take("t1")
			if out := g.result().Outcome; !strings.Contains(out.Summary, agent.ErrNoAnswer.Error()) || !strings.Contains(out.Summary, "never heard") {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
			if n := len(g.hub.asks); n != 1 {
				t.Fatalf("told %d times", n)
			}
		})
	})

	t.Run("that the hub knows waits on, whatever it says to a repeat", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")))
			o := g.take("t1")
			g.asked()
			g.hub.setAsk(func(api.Ask) error { return api.Errorf(api.CodeConflict, "I have it") })
			g.r.Connect(g.hub)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if n := len(g.hub.asks); n != 1 {
				t.Fatalf("repeated %d times", n)
			}
			g.reply(o.Triple, "q", "once")
			if out := g.result().Outcome; out.Summary != "once" {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("that meets another epoch is told again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")))
			g.hub.setAsk(func(api.Ask) error {
				g.hub.setAsk(nil)
				return api.Errorf(api.CodeJournalMismatch, "a new hello is on its way")
			})
			o := g.take("t1")
			g.asked()
			g.asked()
			g.reply(o.Triple, "q", "once")
			g.result()
			g.stop()
		})
	})

	t.Run("that is answered while it is told once more is withdrawn after that", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			slow := make(chan struct{})
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				_, _ = h.Ask(ctx, "q", leave)
				return sleeper(time.Hour)(ctx, turn, h)
			}))
			g.hub.setAsk(func(api.Ask) error { // it has it, and the node does not hear of that
				g.hub.setAsk(func(a api.Ask) error {
					if a.Asked != nil {
						<-slow
					}
					return nil
				})
				return errors.New("stream reset")
			})
			o := g.take("t1")
			g.asked()
			time.Sleep(time.Second)
			if _, err := g.reply(o.Triple, "q", "once"); err != nil {
				t.Fatal(err)
			}
			close(slow)
			if a := g.asked(); a.Asked == nil {
				t.Fatalf("ask %+v", a)
			}
			if a := g.asked(); a.Asked != nil {
				t.Fatalf("ask %+v", a)
			}
			g.stop()
		})
	})

	t.Run("may be put one after the other as often as the agent likes, and the last answers are remembered", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				ids := []int{}
				for i := range 70 {
					ids = append(ids, i)
				}
				for _, i := range append(ids, 69, 6, 0) {
					if text, err := h.Ask(ctx, fmt.Sprint("q", i), leave); err != nil || text != fmt.Sprint("a", i) {
						return api.Outcome{}, fmt.Errorf("question %d: %q %w", i, text, err)
					}
				}
				return done(ctx, turn, h)
			}))
			o := g.take("t1")
			for i := range 71 {
				want := fmt.Sprint("q", i%70) // 69 and 6 are remembered
				if a := g.asked(); a.Question != want {
					t.Fatalf("asked %s, wanted %s", a.Question, want)
				}
				g.reply(o.Triple, want, fmt.Sprint("a", i%70))
			}
			if out := g.result().Outcome; out.State != api.StateDone {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("beyond sixteen at once has no answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			errs := map[string]error{}
			g := newRig(t, newAgent(true, func(ctx context.Context, _ agent.Turn, h agent.Host) (api.Outcome, error) {
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() {
						_, err := h.Ask(ctx, fmt.Sprint("q", i), leave)
						mu.Lock()
						defer mu.Unlock()
						errs[fmt.Sprint("q", i)] = err
					})
				}
				wg.Wait()
				return api.Outcome{State: api.StateDone}, nil
			}))
			o := g.take("t1")
			synctest.Wait()
			mu.Lock()
			if len(errs) != 4 {
				t.Errorf("%d were refused: %v", len(errs), errs)
			}
			for id, err := range errs {
				if !errors.Is(err, agent.ErrNoAnswer) {
					t.Errorf("%s: %v", id, err)
				}
			}
			mu.Unlock()
			for range 16 {
				if _, err := g.reply(o.Triple, g.asked().Question, "once"); err != nil {
					t.Error(err)
				}
			}
			g.result()
			g.stop()
		})
	})

	t.Run("with an id that makes no sense is an error", func(t *testing.T) {
		for _, id := range []string{"", strings.Repeat("x", 257)} {
			g := newRig(t, newAgent(true, asking(id)))
			g.take("t1")
			if out := g.result().Outcome; !strings.Contains(out.Summary, "the id of a question") {
				t.Errorf("outcome %+v", out)
			}
		}
	})

	t.Run("is cut to its limits", func(t *testing.T) {
		long := api.Asked{Kind: api.QuestionText, Text: strings.Repeat("é", 1<<20)}
		for range 100 {
			long.Options = append(long.Options, strings.Repeat("o", 4000))
		}
		g := newRig(t, newAgent(true, func(ctx context.Context, _ agent.Turn, h agent.Host) (api.Outcome, error) {
			_, err := h.Ask(ctx, "q", long)
			return api.Outcome{State: api.StateDone}, err
		}))
		o := g.take("t1")
		if a := g.asked().Asked; len(a.Text) != 64<<10 || len(a.Options) != 32 || len(a.Options[0]) != 512 {
			t.Errorf("text of %d bytes, %d options, the first of %d", len(a.Text), len(a.Options), len(a.Options[0]))
		}
		g.reply(o.Triple, "q", "x")
	})
}

func TestAskThatEndsWithoutAnswer(t *testing.T) {
	t.Run("is withdrawn when the agent gives it up, and may be asked anew under the same id", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			why := errors.New("answered in the terminal")
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				short, cancel := context.WithTimeoutCause(ctx, time.Minute, why)
				defer cancel()
				if _, err := h.Ask(short, "q", leave); !errors.Is(err, why) {
					return api.Outcome{}, fmt.Errorf("given up: %w", err)
				}
				return asking("q")(ctx, turn, h)
			}))
			o := g.take("t1")
			if a := g.asked(); a.Asked == nil {
				t.Fatalf("ask %+v", a)
			}
			g.hub.setAsk(func(a api.Ask) error { // the first word about the end gets lost
				if a.Asked == nil {
					g.hub.setAsk(nil)
					return errors.New("stream reset")
				}
				return nil
			})
			time.Sleep(time.Minute + time.Second)
			for _, gone := range []bool{true, true, false} {
				if a := g.asked(); (a.Asked == nil) != gone || a.Question != "q" || a.JournalID != g.id || a.Triple != o.Triple {
					t.Fatalf("ask %+v", a)
				}
			}
			if _, err := g.reply(o.Triple, "q", "once"); err != nil {
				t.Fatal(err)
			}
			if out := g.result().Outcome; out.Summary != "once" {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("is withdrawn when the turn is canceled, and then no answer is taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hang := make(chan struct{})
			g := newRig(t, newAgent(true, func(ctx context.Context, _ agent.Turn, h agent.Host) (api.Outcome, error) {
				_, err := h.Ask(context.WithoutCancel(ctx), "q", leave)
				<-hang
				return api.Outcome{State: api.StateCanceled, Summary: fmt.Sprint(errors.Is(err, agent.ErrCanceled))}, nil
			}))
			o := g.take("t1")
			g.asked()
			g.withdraw(o.Triple, api.WithdrawCancel)
			if a := g.asked(); a.Asked != nil || a.Question != "q" {
				t.Fatalf("ask %+v", a)
			}
			if _, err := g.reply(o.Triple, "q", "once"); err == nil || err.Code != api.CodeQuestionGone {
				t.Fatalf("answer: %v", err)
			}
			close(hang)
			if out := g.result().Outcome; out.Summary != "true" {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("that the hub never heard of is not withdrawn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				short, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				_, _ = h.Ask(short, "q", leave)
				return sleeper(2*time.Minute)(ctx, turn, h)
			}))
			g.r.Connect(nil)
			g.take("t1")
			time.Sleep(2 * time.Minute)
			g.r.Connect(g.hub)
			time.Sleep(2 * time.Minute)
			g.result()
			g.stop()
			none(t, g.hub.asks, "word about the question")
		})
	})

	t.Run("is not withdrawn any more once the turn has ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")))
			g.hub.setAsk(func(a api.Ask) error {
				if a.Asked == nil {
					return errors.New("stream reset")
				}
				return nil
			})
			o := g.take("t1")
			g.asked()
			g.withdraw(o.Triple, api.WithdrawCancel)
			g.result()
			time.Sleep(time.Hour)
			synctest.Wait()
			if n := len(g.hub.asks); n == 0 || n > 2 {
				t.Fatalf("withdrawn %d times", n)
			}
			g.stop()
		})
	})

	t.Run("is not withdrawn while another call waits for the same answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				var wg sync.WaitGroup
				wg.Go(func() {
					short, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					_, _ = h.Ask(short, "q", leave)
				})
				defer wg.Wait()
				return asking("q")(ctx, turn, h)
			}))
			o := g.take("t1")
			time.Sleep(10 * time.Minute)
			if _, err := g.reply(o.Triple, "q", "once"); err != nil {
				t.Fatal(err)
			}
			if out := g.result().Outcome; out.Summary != "once" {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
			if n := len(g.hub.asks); n != 1 {
				t.Fatalf("told %d times", n)
			}
		})
	})

	t.Run("waits as long as the dispatch says and a minute more, from when the hub had it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")))
			g.r.Connect(nil)
			g.take("t1", func(o *api.Offer) { o.QuestionMS = 600_000 })
			time.Sleep(10 * time.Minute)
			g.r.Connect(g.hub)
			g.asked()
			time.Sleep(11*time.Minute - time.Millisecond)
			synctest.Wait()
			none(t, g.hub.results, "result before the time is over")
			time.Sleep(2 * time.Millisecond)
			if out := g.result().Outcome; !strings.Contains(out.Summary, agent.ErrNoAnswer.Error()) {
				t.Fatalf("outcome %+v", out)
			}
			if a := g.asked(); a.Asked != nil {
				t.Fatalf("ask %+v", a)
			}
			g.stop()
		})
	})

	t.Run("waits half an hour and a minute when neither dispatch nor hub say a word", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")))
			g.r.Connect(nil)
			g.take("t1")
			time.Sleep(31*time.Minute - time.Millisecond)
			synctest.Wait()
			if n := len(g.r.Snapshot().Running); n != 1 {
				t.Fatalf("%d turns run", n)
			}
			time.Sleep(2 * time.Millisecond)
			g.r.Connect(g.hub)
			if out := g.result().Outcome; !strings.Contains(out.Summary, agent.ErrNoAnswer.Error()) {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})
}

func TestAskOverARestart(t *testing.T) {
	t.Run("is not withdrawn by the stop, and is asked again under the same id", func(t *testing.T) {
		g := newRig(t, newAgent(true, asking("q")))
		o := g.take("t1")
		g.asked()
		g.stop()
		none(t, g.hub.asks, "withdrawal")

		h := openRig(t, g.cfg.Path, newAgent(true, asking("q")), newHub())
		if a := h.asked(); a.Triple != o.Triple || a.Question != "q" || a.Epoch != h.epoch {
			t.Fatalf("ask %+v", a)
		}
		if _, err := h.reply(o.Triple, "q", "once"); err != nil {
			t.Fatal(err)
		}
		if out := h.result().Outcome; out.Summary != "once" {
			t.Fatalf("outcome %+v", out)
		}
	})

	t.Run("gets the answer that the hub delivers before it is asked again", func(t *testing.T) {
		for _, began := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, newAgent(true, asking("q")))
				o := g.take("t1")
				g.asked()
				g.stop()

				again := make(chan struct{})
				h := openRig(t, g.cfg.Path, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
					<-again
					return asking("q")(ctx, turn, h)
				}), newHub(), func(c *tasks.Config) { c.StartDelay = time.Minute })
				if began {
					time.Sleep(2 * time.Minute)
					h.began()
				}
				if _, err := h.reply(o.Triple, "q", "always"); err != nil {
					t.Fatalf("before the question, turn begun %v: %v", began, err)
				}
				close(again)
				time.Sleep(2 * time.Minute)
				if out := h.result().Outcome; out.Summary != "always" {
					t.Fatalf("outcome %+v", out)
				}
				none(t, h.hub.asks, "question that is answered")
				h.stop()
			})
		}
	})
}

func TestDeadlineStandsStillForAQuestion(t *testing.T) {
	minute := func(o *api.Offer) { o.DeadlineMS = 60_000 }

	t.Run("while the hub has it, and goes on where it was", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				time.Sleep(20 * time.Second)
				if _, err := h.Ask(ctx, "q", leave); err != nil {
					return api.Outcome{}, err
				}
				return sleeper(time.Hour)(ctx, turn, h)
			}))
			o := g.take("t1", minute)
			time.Sleep(25 * time.Minute)
			g.asked()
			if _, err := g.reply(o.Triple, "q", "once"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(40*time.Second - time.Millisecond)
			synctest.Wait()
			none(t, g.hub.results, "result before the deadline")
			time.Sleep(2 * time.Millisecond)
			if out := g.result().Outcome; out.Error == nil || out.Error.Code != api.TaskDeadline || out.RanMS != 60_000 {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("and what it waited does not count in a later turn or process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				if turn.Turn == 1 {
					time.Sleep(20 * time.Second)
					if _, err := h.Ask(ctx, "q", leave); err != nil {
						return api.Outcome{}, agent.ErrDetached
					}
					return asks(ctx, turn, h)
				}
				return sleeper(time.Hour)(ctx, turn, h)
			})
			g := newRig(t, a)
			o := g.take("t1", minute)
			time.Sleep(10 * time.Minute)
			g.stop()
			h := openRig(t, g.cfg.Path, a, newHub())
			time.Sleep(10 * time.Minute)
			h.reply(o.Triple, "q", "once")
			if out := h.result().Outcome; out.State != api.StateQuestion || out.RanMS != 40_000 {
				t.Fatalf("outcome %+v", out)
			}
			h.take("t1", answer(2), minute)
			time.Sleep(20*time.Second - time.Millisecond)
			synctest.Wait()
			none(t, h.hub.results, "result before the deadline")
			time.Sleep(2 * time.Millisecond)
			if out := h.result().Outcome; out.Error == nil || out.Error.Code != api.TaskDeadline {
				t.Fatalf("outcome %+v", out)
			}
			h.stop()
		})
	})

	t.Run("but not while the hub does not know of it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, asking("q")))
			g.hub.setAsk(func(api.Ask) error { return errors.New("stream reset") })
			g.take("t1", minute)
			time.Sleep(time.Minute + time.Second)
			if out := g.result().Outcome; out.RanMS != 60_000 || !strings.Contains(out.Summary, agent.ErrDeadline.Error()) {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})

	t.Run("until the last of several is answered", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, newAgent(true, func(ctx context.Context, turn agent.Turn, h agent.Host) (api.Outcome, error) {
				var wg sync.WaitGroup
				for _, id := range []string{"q1", "q2"} {
					wg.Go(func() { _, _ = h.Ask(ctx, id, leave) })
				}
				wg.Wait()
				return sleeper(time.Hour)(ctx, turn, h)
			}))
			o := g.take("t1", minute)
			time.Sleep(5 * time.Minute)
			g.reply(o.Triple, "q1", "once")
			time.Sleep(5 * time.Minute)
			g.reply(o.Triple, "q2", "once")
			time.Sleep(time.Minute - time.Millisecond)
			synctest.Wait()
			none(t, g.hub.results, "result before the deadline")
			time.Sleep(2 * time.Millisecond)
			if out := g.result().Outcome; out.Error == nil || out.Error.Code != api.TaskDeadline {
				t.Fatalf("outcome %+v", out)
			}
			g.stop()
		})
	})
}
