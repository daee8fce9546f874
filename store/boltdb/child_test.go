package boltdb_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"opencode-mesh/store/boltdb"
)

// Roles of the re-executed test binary.
const (
	roleHold  = "hold"  // open the database, say so, wait for the end of stdin
	roleWrite = "write" // write records and print each one that was acknowledged
)

// child is main of the re-executed test binary.
func child(role, path string) int {
	db, err := boltdb.Open(childConfig(path))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("open")
	switch role {
	case roleHold:
		_, _ = io.Copy(io.Discard, os.Stdin)
		if err := db.Close(); err != nil {
			return 1
		}
	case roleWrite:
		var mu sync.Mutex // makes one line one write
		var seq atomic.Int64
		var wg sync.WaitGroup
		base := time.Now().UnixNano()
		for range 8 {
			wg.Go(func() {
				for {
					key := fmt.Sprintf("%d-%d", base, seq.Add(1))
					if err := db.Update(context.Background(), set(key, strings.Repeat(key, 20))); err != nil {
						return
					}
					mu.Lock()
					fmt.Println(key)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
	return 0
}

// startChild runs this binary in a role and waits until it has opened the database.
func startChild(t *testing.T, role, path string) (*exec.Cmd, io.Closer, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+role, childEnv+"_PATH="+path)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "open" {
		t.Fatalf("child said %q", lines.Text())
	}
	return cmd, stdin, lines
}

func TestEveryAcknowledgedUpdateSurvivesAKill(t *testing.T) {
	cfg := config(t)
	acked := map[string]bool{}
	for _, after := range []int{1, 40, 133, 250} {
		cmd, _, lines := startChild(t, roleWrite, cfg.Path)
		for n := 0; lines.Scan(); n++ {
			acked[lines.Text()] = true
			if n == after {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = cmd.Wait()

		problems, err := boltdb.Check(t.Context(), cfg, func(_ []string, k, v []byte) error {
			if string(v) != strings.Repeat(string(k), 20) {
				return fmt.Errorf("value is torn: %q", v)
			}
			return nil
		})
		if err != nil || len(problems) != 0 {
			t.Fatalf("after the kill: %v %v", problems, err)
		}
		db, err := boltdb.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = db.View(func(tx *bolt.Tx) error {
			for key := range acked {
				if tx.Bucket(bucket).Get([]byte(key)) == nil {
					t.Errorf("acknowledged record %s is lost", key)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(acked) < 424 {
		t.Errorf("only %d acknowledged records were tested", len(acked))
	}
}
