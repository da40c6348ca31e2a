//go:build unix

package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
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

// Bouncer starts a pgbouncer in front of s, which ends with the test.
func (s *Server) Bouncer(t testing.TB) *Bouncer {
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
	config := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 8
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
`, s.Port, port)
	// Under auth_type any everybody is whom the database line names.
	config = strings.Replace(config, "port="+fmt.Sprint(s.Port), fmt.Sprintf("port=%d user=postgres", s.Port), 1)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
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
		config, err := pgx.ParseConfig(b.URL("postgres"))
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

// URL is where a database is through the pooler.
func (b *Bouncer) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", b.port, url.PathEscape(database))
}
