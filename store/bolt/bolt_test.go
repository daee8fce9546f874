package bolt_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
	"opencode-mesh/store/storetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(talkerEnv); dir != "" {
		fmt.Fprintln(os.Stderr, talk(dir))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// config is that of a store in a directory of the test. Without a ballast, which
// would be written anew for each of many stores.
func config(t *testing.T) bolt.Config {
	t.Helper()
	return bolt.Config{Dir: filepath.Join(t.TempDir(), "data"), BallastBytes: -1}
}

// open opens a store. When the test ends it is closed, and its file must be sound.
func open(t *testing.T, cfg bolt.Config) *bolt.Store {
	t.Helper()
	s, err := bolt.Open(cfg)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		sound(t, cfg.Dir)
	})
	return s
}

// sound wants a store without a fault.
func sound(t *testing.T, dir string) {
	t.Helper()
	found, err := bolt.Check(dir)
	if err != nil {
		t.Errorf("check: %v", err)
	}
	for _, f := range found {
		t.Errorf("check found: %s", f)
	}
}

func TestStoreKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, config(t)) })
}

func TestBackupsKeepTheContract(t *testing.T) {
	storetest.RunBackup(t,
		func(t *testing.T) store.Store { return open(t, config(t)) },
		func(t *testing.T, backup []byte) store.Store {
			file := filepath.Join(t.TempDir(), "backup")
			if err := os.WriteFile(file, backup, 0o600); err != nil {
				t.Fatal(err)
			}
			cfg := config(t)
			if _, err := bolt.Restore(t.Context(), file, cfg.Dir); err != nil {
				t.Fatal(err)
			}
			return open(t, cfg)
		})
}
