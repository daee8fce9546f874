package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"opencode-mesh/auth/local"
	"opencode-mesh/cmd/internal/cli"
	"opencode-mesh/protocol/api"
	"opencode-mesh/protocol/mesh"
	"opencode-mesh/store"
	"opencode-mesh/store/bolt"
)

func (m *Main) backup() *cobra.Command {
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Copy the store, of a running hub too", Example: "  meshhub backup mesh.bak", Args: cobra.ExactArgs(1),
		Long: "Writes a consistent copy of the store to FILE, readable by you only. It holds the hashes of password and credentials and every task's text.",
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := m.dataDir(cmd)
			if err != nil {
				return err
			}
			if err := mustExist(dir); err != nil {
				return err
			}
			return newFile(args[0], func(w io.Writer) error {
				err := runningBackup(cmd, dir, w)
				if errors.Is(err, local.ErrNotRunning) {
					err = stoppedBackup(cmd, dir, w)
				}
				return err
			})
		},
	}
	dataFlag(cmd)
	return cmd
}

// runningBackup copies the store of the hub that runs on dir.
func runningBackup(cmd *cobra.Command, dir string, w io.Writer) error {
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, "http://local/v1/backup", nil)
	if err != nil {
		return err
	}
	resp, err := local.Client(dir).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return cli.Coded(api.DecodeError(resp.StatusCode, data))
	}
	if _, err = io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// stoppedBackup copies the store of a hub that does not run.
func stoppedBackup(cmd *cobra.Command, dir string, w io.Writer) error {
	st, err := bolt.Open(bolt.Config{Dir: dir})
	if err != nil {
		return err
	}
	_, err = st.Backup(cmd.Context(), w)
	return errors.Join(err, st.Close())
}

// newFile makes a file that gets its name once it is whole and on disk. An existing
// one is not touched.
func newFile(path string, write func(io.Writer) error) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return cli.Usage("%s exists; name another file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.part")
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func (m *Main) restore() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "restore FILE",
		Short:   "Make a data directory from a backup",
		Long:    "Makes the store of --data from a backup; an existing store is never overwritten. What happened since the backup is undone: credentials issued since are unknown, those revoked since are valid again. --revoke-all closes that door.",
		Example: "  meshhub restore mesh.bak --data /srv/mesh-hub", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := m.dataDir(cmd)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			r, err := bolt.Restore(cmd.Context(), args[0], dir)
			if err != nil {
				return err
			}
			m.tellRestored(r)
			if all, _ := cmd.Flags().GetBool("revoke-all"); !all {
				return nil
			}
			return m.admin(cmd, func(a admin) error { return a.call(http.MethodPost, "/v1/revoke-all", nil, nil) })
		},
	}
	dataFlag(cmd)
	cmd.Flags().Bool("revoke-all", false, "revoke every credential in it")
	return cmd
}

// tellRestored lists what the restore undid (semantics 10).
func (m *Main) tellRestored(r bolt.Restored) {
	w := m.app.Stderr
	asOf := "an unknown time"
	if !r.AsOf.IsZero() {
		asOf = r.AsOf.Format(time.RFC3339)
	}
	fmt.Fprintf(w, "restored hub %s as of %s: %d tasks, %d of them open\n", r.Info.HubID, asOf, r.Tasks, r.Open)
	fmt.Fprintln(w, "undone: tasks, sessions, credentials, revocations and password changes since then")
	list := func(heading string, creds []store.Credential) {
		if len(creds) > 0 {
			fmt.Fprintln(w, heading)
		}
		for _, c := range creds {
			fmt.Fprintf(w, "  %s (%s), issued %s\n", mesh.CleanLine(c.Name), c.Role, c.CreatedAt.Format(time.RFC3339))
		}
	}
	list("valid from now on:", r.Credentials)
	list("revoked before, and still:", r.Revoked)
	fmt.Fprintln(w, "revoke what should not be: meshhub revoke NAME, or restore with --revoke-all")
}
