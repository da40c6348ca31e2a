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

	"mcpreplay/internal/pgtest"
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

// Bookings go to any host, hosts are killed meanwhile, and whoever gets no reply sends
// the same to another: in the end each is booked once.
func TestBookingsAreMadeOnceWhicheverHostDies(t *testing.T) {
	database := pgtest.Own(t).Database(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, append([]string{"-database", database, "-keys", filepath.Join(dir, "keys"), "-http", ":0"}, args...)...)
		cmd.Env = append(os.Environ(), "HOTEL_TOKEN="+token)
		cmd.Stderr = os.Stderr
		return cmd
	}
	if err := run("-migrate").Run(); err != nil {
		t.Fatalf("migrate: %v", err)
	}
	var mu sync.Mutex
	var hosts [3]*host
	start := func(i int) {
		t.Helper()
		h := &host{cmd: run()}
		out, err := h.cmd.StdoutPipe()
		if err == nil {
			err = h.cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		addr, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("host %d does not say where it is: %v", i, err)
		}
		h.url = "http://" + strings.TrimSpace(addr)
		mu.Lock()
		defer mu.Unlock()
		hosts[i] = h
	}
	for i := range hosts {
		start(i)
	}
	defer func() {
		for _, h := range hosts {
			h.cmd.Process.Kill()
			h.cmd.Wait()
		}
	}()
	const bookings = 60
	var wg sync.WaitGroup
	for n := range bookings {
		wg.Go(func() {
			args := fmt.Sprintf(`{"operation_id":"booking-%02d","room":"room-%02d","guest":"bo","night":"2026-12-31","nights":3}`, n, n)
			var last error
			for try := range 60 {
				mu.Lock()
				h := hosts[(n+try)%len(hosts)]
				mu.Unlock()
				text, err := h.call(args)
				if err == nil {
					if text != `{"nights":3}` {
						t.Errorf("booking %d: %s", n, text)
					}
					return
				}
				last = err
				time.Sleep(time.Duration(50+rand.IntN(100)) * time.Millisecond)
			}
			t.Errorf("booking %d: %v", n, last)
		})
	}
	for range 4 { // one after the other dies, wherever it is, and comes back
		i := rand.IntN(len(hosts))
		time.Sleep(time.Duration(50+rand.IntN(150)) * time.Millisecond)
		hosts[i].cmd.Process.Kill()
		hosts[i].cmd.Wait()
		start(i)
	}
	wg.Wait()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var nights, operations int
	if err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM bookings), (SELECT count(*) FROM mcpreplay.operations WHERE state = 'applied')`).Scan(&nights, &operations); err != nil {
		t.Fatal(err)
	}
	if nights != 3*bookings || operations != bookings {
		t.Errorf("%d nights in %d operations, want %d in %d", nights, operations, 3*bookings, bookings)
	}
}
