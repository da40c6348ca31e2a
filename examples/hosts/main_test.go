package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcpreplay"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"
)

const token = "a-token-of-the-front-desk"

// host is one of the servers.
type host struct {
	cmd *exec.Cmd
	url string
}

type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return http.DefaultTransport.RoundTrip(r)
}

// call sends one call over a connection of its own.
func (h *host) call(args string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: h.url, HTTPClient: &http.Client{Transport: bearer{}}, DisableStandaloneSSE: true, MaxRetries: -1}, nil)
	if err != nil {
		return "", err
	}
	defer cs.Close()
	res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "book", Arguments: json.RawMessage(args)})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(res.StructuredContent)
	if res.IsError {
		return "", fmt.Errorf("%s", text)
	}
	return string(text), err
}

// fleet is the servers, and where their bookings are.
type fleet struct {
	t        *testing.T
	program  string
	dir      string
	server   *pgtest.Server
	database string

	mu    sync.Mutex
	hosts []*host
}

func newFleet(t *testing.T, n int) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), server: pgtest.Own(t), hosts: make([]*host, n)}
	f.program, f.database = filepath.Join(f.dir, "program"), f.server.Database(t)
	if out, err := exec.Command("go", "build", "-o", f.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := f.command("-migrate").Run(); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	for i := range f.hosts {
		f.start(i)
	}
	t.Cleanup(func() {
		for _, h := range f.hosts {
			h.cmd.Process.Kill()
			h.cmd.Wait()
		}
	})
	return f
}

func (f *fleet) command(args ...string) *exec.Cmd {
	cmd := exec.Command(f.program, append([]string{"-database", f.database, "-keys", filepath.Join(f.dir, "keys"), "-http", ":0"}, args...)...)
	cmd.Env = append(os.Environ(), "HOTEL_TOKEN="+token)
	cmd.Stderr = os.Stderr
	return cmd
}

// start starts a host, again and again while its database is away.
func (f *fleet) start(i int) {
	f.t.Helper()
	for range 100 {
		h := &host{cmd: f.command()}
		out, err := h.cmd.StdoutPipe()
		if err == nil {
			err = h.cmd.Start()
		}
		if err != nil {
			f.t.Fatal(err)
		}
		addr, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			h.cmd.Wait()
			time.Sleep(100 * time.Millisecond)
			continue
		}
		h.url = "http://" + strings.TrimSpace(addr)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hosts[i] = h
		return
	}
	f.t.Fatalf("host %d does not start", i)
}

// kill kills a host, wherever it is, and starts it again.
func (f *fleet) kill(i int) {
	f.hosts[i].cmd.Process.Kill()
	f.hosts[i].cmd.Wait()
	f.start(i)
}

// book sends a booking to one host after the other until it has a reply.
func (f *fleet) book(n int) error {
	args := fmt.Sprintf(`{"operation_id":"booking-%06d","room":"room-%06d","guest":"bo","night":"2026-12-31","nights":3}`, n, n)
	var last error
	for try := range 200 {
		f.mu.Lock()
		h := f.hosts[(n+try)%len(f.hosts)]
		f.mu.Unlock()
		text, err := h.call(args)
		if err == nil && text != `{"nights":3}` {
			return fmt.Errorf("booking %d: %s", n, text)
		}
		if err == nil {
			return nil
		}
		last = err
		time.Sleep(time.Duration(50+rand.IntN(100)) * time.Millisecond)
	}
	return fmt.Errorf("booking %d: %w", n, last)
}

// judge counts what there is, by a connection of its own.
func (f *fleet) judge(bookings int) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.database)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close(f.t.Context())
	var nights, applied, others int
	err = conn.QueryRow(f.t.Context(), `SELECT (SELECT count(*) FROM bookings), count(*) FILTER (WHERE state = 'applied'), count(*) FILTER (WHERE state <> 'applied') FROM mcpreplay.operations`).
		Scan(&nights, &applied, &others)
	if err != nil {
		f.t.Fatal(err)
	}
	if nights != 3*bookings || applied != bookings || others != 0 {
		f.t.Errorf("%d nights in %d operations and %d others, want %d in %d", nights, applied, others, 3*bookings, bookings)
	}
	store, err := postgres.Connect(f.t.Context(), f.database, &postgres.Options{ReadOnly: true})
	if err != nil {
		f.t.Fatal(err)
	}
	defer store.Close()
	report, err := mcpreplay.Verify(f.t.Context(), store)
	if err != nil || !report.Consistent() {
		f.t.Errorf("verify: %v, %v", report.Findings, err)
	}
}

// Bookings go to any host, hosts are killed meanwhile, and whoever gets no reply sends
// the same to another: in the end each is booked once.
func TestBookingsAreMadeOnceWhicheverHostDies(t *testing.T) {
	f := newFleet(t, 3)
	const bookings = 60
	var wg sync.WaitGroup
	for n := range bookings {
		wg.Go(func() {
			if err := f.book(n); err != nil {
				t.Error(err)
			}
		})
	}
	for range 4 { // one after the other dies
		time.Sleep(time.Duration(50+rand.IntN(150)) * time.Millisecond)
		f.kill(rand.IntN(len(f.hosts)))
	}
	wg.Wait()
	f.judge(bookings)
}
