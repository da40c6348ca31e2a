//go:build unix

package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

var shared struct {
	sync.Mutex
	server *Server
	err    error
}

var databases atomic.Int64

// Main runs the tests of a package that use Shared, and ends the server after them.
func Main(m *testing.M) {
	code := m.Run()
	shared.Lock()
	if shared.server != nil {
		shared.server.Close()
	}
	os.Exit(code)
}

// Shared is the one server of a test binary, which is started when it is first
// asked for.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = New("max_connections=300")
	}
	Require(t, shared.err)
	return shared.server
}

// Own is a server of this test alone, with settings beyond the default.
func Own(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := New(settings...)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}

// Database makes a database on the server and returns where it is.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), databases.Add(1))
	s.Exec(t, "postgres", "CREATE DATABASE "+name)
	return s.URL(name)
}

// Exec runs SQL in a database, as its superuser.
func (s *Server) Exec(t testing.TB, database, sql string) {
	t.Helper()
	ctx := context.Background()
	c, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if _, err := c.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
