//go:build unix

package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bouncer is a pgbouncer in front of a server that lends a connection for one
// transaction at a time.
type Bouncer struct {
	port int
}

// Bouncer starts a pgbouncer in front of one database of s, which ends with the test.
// It has the database under several names, of which each has a schema of that name as
// its search_path.
func (s *Server) Bouncer(t testing.TB, database string, names ...string) *Bouncer {
	t.Helper()
	path := "/usr/sbin/pgbouncer" // which is in nobody's path but root's
	if _, err := os.Stat(path); err != nil {
		path, err = exec.LookPath("pgbouncer")
		Require(t, err)
	}
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := NewDir("bouncer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var config strings.Builder
	config.WriteString("[databases]\n")
	for _, name := range names {
		// Under auth_type any everybody is whom the line names.
		fmt.Fprintf(&config, "%s = host=127.0.0.1 port=%d dbname=%s user=postgres connect_query='SET search_path TO %s'\n", name, s.Port, database, name)
	}
	fmt.Fprintf(&config, `[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
`, port)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd, err := command(dir, path, file)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	b := &Bouncer{port}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		config, err := pgx.ParseConfig(b.URL(names[0]))
		if err == nil {
			config.DefaultQueryExecMode = pgx.QueryExecModeExec
			var c *pgx.Conn
			if c, err = pgx.ConnectConfig(ctx, config); err == nil {
				c.Close(ctx)
			}
		}
		cancel()
		if err == nil {
			return b
		}
		if time.Now().After(deadline) {
			t.Fatalf("pgbouncer does not answer: %v\n%s", err, said.String())
		}
	}
}

// URL is where the database is, under one of its names.
func (b *Bouncer) URL(name string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", b.port, name)
}
