package chaos_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/internal/pgtest"
	"mcpreplay/postgres"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const token = "a-token-of-the-front-desk"

// TestMain is a host as well: the test starts itself as one.
func TestMain(m *testing.M) {
	if database := os.Getenv("CHAOS_DATABASE"); database != "" {
		if err := serve(database, os.Getenv("CHAOS_BANK"), os.Getenv("CHAOS_KEYS")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}

type order struct {
	Note string `json:"note"`
}

type done struct {
	Operation string `json:"operation"`
	Note      string `json:"note"`
}

// lease is short, so that what a dead host has left is settled soon.
const lease = 2 * time.Second

// serve has two tools: one writes beside the ledger, the other to a bank.
func serve(database, bank, keyFile string) error {
	ctx := context.Background()
	pool, err := postgres.NewPool(ctx, database)
	if err != nil {
		return err
	}
	store, err := postgres.Open(ctx, pool, &postgres.Options{Backend: "chaos"})
	if err != nil {
		return err
	}
	keys, err := guard.KeyFile(keyFile)
	if err != nil {
		return err
	}
	g, err := guard.New(store, &guard.Options{Keys: keys, Lease: lease, EffectTimeout: 3 * time.Second, ReconcileTimeout: 2 * time.Second, Wait: 5 * time.Second})
	if err != nil {
		return err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "chaos", Version: "1"}, nil)
	guard.AddTool(g, server, &mcp.Tool{Name: "book"}, guard.Atomic(store, func(ctx context.Context, tx *postgres.Tx, op *guard.Op, in order) (done, error) {
		_, err := tx.Exec(ctx, `INSERT INTO bookings (operation_id) VALUES ($1)`, op.ID)
		return done{op.ID, in.Note}, err
	}))
	c := client{url: bank}
	guard.AddTool(g, server, &mcp.Tool{Name: "charge"}, guard.Reconcile(c.find, guard.External(c.charge)))
	g.Install(server)
	go g.RecoverEvery(ctx, time.Second)
	o := &guard.HTTPOptions{Tokens: map[string]string{token: "desk"}, Listening: func(a net.Addr) { fmt.Println(a) }}
	handler, err := guard.HTTPHandler(server, o)
	if err != nil {
		return err
	}
	return guard.RunHTTP(ctx, "127.0.0.1:0", handler, o)
}

// client is how a host talks to the bank.
type client struct{ url string }

func (c client) charge(ctx context.Context, op *guard.Op, in order) (done, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/"+op.ID, nil)
	if err != nil {
		return done{}, guard.NotApplied(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return done{}, err
	}
	res.Body.Close()
	return done{op.ID, in.Note}, nil
}

func (c client) find(ctx context.Context, op *guard.Op, in order) (guard.Finding[done], error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/"+op.ID, nil)
	if err != nil {
		return guard.Finding[done]{}, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return guard.Finding[done]{}, err
	}
	res.Body.Close()
	if res.StatusCode == http.StatusOK {
		return guard.Found(done{op.ID, in.Note}, "the bank has it"), nil
	}
	return guard.Absent[done]("the bank has nothing of it"), nil
}

// host is one process that serves.
type host struct {
	cmd *exec.Cmd
	url string
}

// startHost starts a host, again and again while its database is away.
func startHost(t *testing.T, env ...string) *host {
	for range 200 {
		h := &host{cmd: exec.Command(os.Args[0])}
		h.cmd.Env, h.cmd.Stderr = append(os.Environ(), env...), io.Discard
		out, err := h.cmd.StdoutPipe()
		if err == nil {
			err = h.cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		addr, err := bufio.NewReader(out).ReadString('\n')
		if err == nil {
			h.url = "http://" + strings.TrimSpace(addr)
			return h
		}
		h.cmd.Wait()
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("a host does not start")
	return nil
}

func (h *host) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

// send sends one call, and reads what came of it as any client does.
func (h *host) send(tool, args string) (mcpreplay.Verdict, json.RawMessage) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"chaos","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},"name":%q,"arguments":%s}}`, tool, args)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token,
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
	} {
		req.Header.Set(k, v)
	}
	unknown := mcpreplay.Verdict{Kind: mcpreplay.VerdictUnknown}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return unknown, nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return unknown, nil
	}
	if _, data, ok := bytes.Cut(text, []byte("data: ")); ok { // an event stream with one message
		text = bytes.TrimSpace(data)
	}
	var reply struct{ Result json.RawMessage }
	if json.Unmarshal(text, &reply) != nil {
		return unknown, nil
	}
	return mcpreplay.ClassifyResponse(text, "1"), reply.Result
}

// fleet are the hosts, of which each is killed now and then.
type fleet struct {
	t   *testing.T
	env [][]string
	mu  sync.Mutex
	now []*host
}

func (f *fleet) start() {
	for _, env := range f.env {
		f.now = append(f.now, startHost(f.t, env...))
	}
	f.t.Cleanup(func() {
		for _, h := range f.now {
			h.kill()
		}
	})
}

func (f *fleet) host(n int) *host {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now[n%len(f.now)]
}

func (f *fleet) kill(n int) {
	f.host(n).kill()
	h := startHost(f.t, f.env[n]...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now[n] = h
}
