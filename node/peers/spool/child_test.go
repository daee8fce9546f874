package spool

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"opencode-mesh/node/peers/files"
	"opencode-mesh/node/peers/files/filestest"
	"opencode-mesh/protocol/peers"
)

// childJob is set in processes that the tests start, to what they are to do.
const childJob = "MESH_TEST_SPOOL_CHILD"

type job struct {
	Dir  string
	Op   string
	Now  int64  // Unix milliseconds
	At   int    // the step before which the process is killed, or the half of it that is done
	Lock bool   // steps of the lock count, too
	Name string // of the process
}

// child does a job and says "done" when it has returned.
func child(text string) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	s := New(Config{Dir: j.Dir, MaxQueue: 1000, Now: func() time.Time { return time.UnixMilli(j.Now) }})
	if j.At > 0 {
		faults := &filestest.Faults{FS: noSync{files.OS{}}, At: j.At, Half: true}
		if !j.Lock {
			faults.Only = func(path string) bool { return !strings.Contains(path, lockDir) }
		}
		s.sys = faults
	}
	q := s.Queue(endpoint)
	var err error
	if j.Op == "share" {
		err = share(q, j.Name)
	} else {
		err = scenarios[j.Op].change(context.Background(), q)
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("done")
}

// run starts a process and returns what it said.
func run(t *testing.T, j job) string {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childJob+"="+string(text))
	out, _ := cmd.CombinedOutput() // it was killed, most of the time
	return strings.TrimSpace(string(out))
}

// share accepts messages, some of which the other process has, too.
func share(q *Queue, name string) error {
	for i := range 20 {
		for _, id := range []string{fmt.Sprint("both", i), fmt.Sprint(name, i)} {
			m := message(id)
			status, fresh, err := q.Accept(context.Background(), m, Enqueue)
			if err != nil {
				return err
			}
			if status != peers.Queued {
				return fmt.Errorf("%s is %s", id, status)
			}
			if fresh {
				fmt.Println("fresh", id)
			}
		}
	}
	return nil
}

func TestTwoProcessesThatShareASpoolTakeEachMessageOnce(t *testing.T) {
	w := newWorld(t, Config{})
	said := make(chan string)
	for _, name := range []string{"a", "b"} {
		go func() {
			said <- run(t, job{Dir: w.cfg().Dir, Op: "share", Now: w.now().UnixMilli(), Name: name})
		}()
	}
	fresh := map[string]int{}
	for range 2 {
		out := <-said
		if !strings.HasSuffix(out, "done") {
			t.Error(out)
		}
		for line := range strings.Lines(out) {
			if id, ok := strings.CutPrefix(strings.TrimSpace(line), "fresh "); ok {
				fresh[id]++
			}
		}
	}
	if len(fresh) != 60 {
		t.Error(len(fresh), "messages were taken, not 60")
	}
	for id, n := range fresh {
		if n != 1 {
			t.Error(id, "was taken", n, "times")
		}
	}
	records, err := w.Records(StateQueued)
	w.must(err)
	for i, r := range records {
		if r.Sequence != float64(i+1) {
			t.Fatal("the numbers are not one each:", i+1, r.Sequence)
		}
	}
	if len(records) != 60 {
		t.Error(len(records), "are queued")
	}
}
