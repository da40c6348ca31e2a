//go:build unix

package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/postgres"
)

// cut is what a proxy does with the next COMMIT that passes it.
type cut int32

const (
	pass      cut = iota
	loseAsk       // it does not arrive, and the connection ends
	loseReply     // it arrives, and its reply does not
	delay         // the client's side ends, and it arrives when the proxy is told
	hang          // it arrives when the proxy is told
)

// proxy stands between a store and its server.
type proxy struct {
	url     string
	next    atomic.Int32 // a cut, once
	cuts    atomic.Int32
	release chan struct{}
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{release: make(chan struct{})}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	to := u.Host
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(ctx, c, to) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		wg.Wait()
	})
	u.Host = l.Addr().String()
	p.url = u.String()
	return p
}

func (p *proxy) serve(ctx context.Context, client net.Conn, to string) {
	server, err := net.Dial("tcp", to)
	if err != nil {
		client.Close()
		return
	}
	stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
	defer stop()
	defer client.Close()
	defer server.Close()
	var mute atomic.Bool
	answered := make(chan struct{}, 1)
	go func() {
		defer func() { answered <- struct{}{} }()
		buf := make([]byte, 1<<16)
		for {
			n, err := server.Read(buf)
			if err != nil {
				client.Close()
				return
			}
			if mute.Load() {
				if bytes.Contains(buf[:n], []byte("COMMIT\x00")) {
					return
				}
				continue
			}
			client.Write(buf[:n])
		}
	}()
	buf := make([]byte, 1<<20)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if bytes.Contains(buf[:n], []byte("COMMIT\x00")) {
			switch how := cut(p.next.Swap(int32(pass))); how {
			case loseAsk:
				p.cuts.Add(1)
				return
			case loseReply:
				p.cuts.Add(1)
				mute.Store(true)
				server.Write(buf[:n])
				<-answered
				return
			case delay, hang:
				p.cuts.Add(1)
				if how == delay {
					mute.Store(true)
					client.Close()
				}
				select {
				case <-p.release:
				case <-ctx.Done():
					return
				}
				server.Write(buf[:n])
				<-answered
				return
			}
		}
		server.Write(buf[:n])
	}
}

// TestConnectionIsCutAtCommit: whoever does not hear the answer to COMMIT says that
// the outcome is unknown, and the ledger knows.
func TestConnectionIsCutAtCommit(t *testing.T) {
	t.Parallel()
	direct := newDatabase(t)
	sure := verified(t, direct, nil)
	p := newProxy(t, direct)
	s := openPool(t, newPool(t, p.url), nil)
	for i, how := range []cut{loseAsk, loseReply} {
		claimed, _, err := sure.Begin(t.Context(), operation(fmt.Sprintf("op-claimed-%d", i)), claim())
		if err != nil {
			t.Fatal(err)
		}
		for name, do := range map[string]func(op mcpreplay.Operation) error{
			"Begin": func(op mcpreplay.Operation) error { _, _, err := s.Begin(t.Context(), op, claim()); return err },
			"Apply": func(op mcpreplay.Operation) error { _, _, err := s.Apply(t.Context(), op, effect(op.ID)); return err },
			"ApplyStep": func(op mcpreplay.Operation) error {
				step := mcpreplay.Change{Key: claimed.Key, Revision: claimed.Revision, Event: mcpreplay.Event{Kind: mcpreplay.EventStep, Step: "s"}}
				_, err := s.ApplyStep(t.Context(), step, func(ctx context.Context, tx *postgres.Tx, _ *mcpreplay.Change) error { return writeRow(ctx, tx, op.ID) })
				return err
			},
		} {
			op := operation(fmt.Sprintf("op-cut-%d-%s", i, name))
			p.next.Store(int32(how))
			if err := do(op); !errors.Is(err, mcpreplay.ErrUnknown) {
				t.Errorf("%s, cut %d = %v, want %v", name, how, err, mcpreplay.ErrUnknown)
			}
			there := 0
			if how == loseReply {
				there = 1
			}
			found := 0
			if name == "ApplyStep" {
				rec, err := sure.Get(t.Context(), claimed.Key)
				if err != nil {
					t.Fatal(err)
				}
				found = int(rec.Revision - claimed.Revision)
			} else if _, err := sure.Get(t.Context(), op.Key); err == nil {
				found = 1
			}
			if found != there {
				t.Errorf("%s, cut %d: %d records, want %d", name, how, found, there)
			}
			if n := query[int](t, direct, "SELECT count(*) FROM item WHERE label = $1", op.ID); name != "Begin" && n != there {
				t.Errorf("%s, cut %d: %d effects, want %d", name, how, n, there)
			}
		}
	}
	if got := p.cuts.Load(); got != 6 {
		t.Errorf("%d connections were cut, want 6", got)
	}
}

// TestCommitArrivesLate: while an attempt whose outcome is unknown may still commit,
// a record that is not there proves nothing, and a repeat waits for it.
func TestCommitArrivesLate(t *testing.T) {
	t.Parallel()
	direct := newDatabase(t)
	sure := verified(t, direct, nil)
	p := newProxy(t, direct)
	s := openPool(t, newPool(t, p.url), nil)
	p.next.Store(int32(delay))
	if _, _, err := s.Apply(t.Context(), operation("op-late"), effect("late")); !errors.Is(err, mcpreplay.ErrUnknown) {
		t.Fatalf("Apply() = %v, want %v", err, mcpreplay.ErrUnknown)
	}
	if _, err := sure.Get(t.Context(), key("op-late")); !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrNotFound)
	}
	type reply struct {
		rec     mcpreplay.Record
		started bool
		err     error
	}
	replies := make(chan reply, 2)
	go func() {
		rec, started, err := sure.Apply(t.Context(), operation("op-late"), effect("late"))
		replies <- reply{rec, started, err}
	}()
	go func() {
		rec, started, err := sure.Begin(t.Context(), mcpreplay.Operation{Key: key("op-late")}, mcpreplay.Change{
			To: mcpreplay.StateNotApplied, Fence: true, Event: mcpreplay.Event{Kind: mcpreplay.EventFence, Actor: "alice"},
		})
		replies <- reply{rec, started, err}
	}()
	select {
	case r := <-replies:
		t.Fatalf("a repeat did not wait: %+v", r)
	case <-time.After(200 * time.Millisecond):
	}
	close(p.release)
	for range 2 {
		if r := <-replies; r.err != nil || r.started || r.rec.State != mcpreplay.StateApplied {
			t.Errorf("a repeat = %s, started %v, %v; want the record of the first", r.rec.State, r.started, r.err)
		}
	}
	if n := query[int](t, direct, "SELECT count(*) FROM item"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// TestCommitThatDoesNotEnd: nobody waits for an answer for ever.
func TestCommitThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	direct := newDatabase(t)
	verified(t, direct, nil)
	p := newProxy(t, direct)
	s, err := postgres.Patient(t.Context(), newPool(t, p.url), backend(nil), time.Second, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p.next.Store(int32(hang))
	_, _, err = s.Apply(t.Context(), operation("op-hangs"), effect("hangs"))
	if !errors.Is(err, mcpreplay.ErrUnknown) {
		t.Errorf("Apply() = %v, want %v", err, mcpreplay.ErrUnknown)
	}
	close(p.release)
}

// TestConnectionIsCutBeforeCommit: what is lost before COMMIT was sent is done again
// without anybody noticing.
func TestConnectionIsCutBeforeCommit(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	s := verified(t, url, nil)
	pool := newPool(t, url)
	runs := 0
	_, started, err := s.Apply(t.Context(), operation("op-cut"), func(ctx context.Context, tx *postgres.Tx) (mcpreplay.Outcome, error) {
		runs++
		if err := writeRow(ctx, tx, "cut"); err != nil {
			return mcpreplay.Outcome{}, err
		}
		if runs == 1 {
			var pid int
			if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				return mcpreplay.Outcome{}, err
			}
			if _, err := pool.Exec(ctx, "SELECT pg_terminate_backend($1, 5000)", pid); err != nil {
				return mcpreplay.Outcome{}, err
			}
			return mcpreplay.Outcome{}, writeRow(ctx, tx, "cut")
		}
		return mcpreplay.Outcome{}, nil
	})
	if err != nil || !started || runs != 2 {
		t.Errorf("Apply() = started %v, %v after %d runs; want true, nil after 2", started, err, runs)
	}
	if n := query[int](t, url, "SELECT count(*) FROM item"); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// TestStoppedProcessLosesItsTurn: one that took a position and then says nothing does
// not keep the others from committing.
func TestStoppedProcessLosesItsTurn(t *testing.T) {
	t.Parallel()
	direct := newDatabase(t)
	sure := verified(t, direct, nil)
	p := newProxy(t, direct)
	s, err := postgres.Patient(t.Context(), newPool(t, p.url), backend(nil), time.Second, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p.next.Store(int32(hang))
	stopped := make(chan error)
	go func() {
		_, _, err := s.Apply(t.Context(), operation("op-stopped"), effect("stopped"))
		stopped <- err
	}()
	for deadline := time.Now().Add(20 * time.Second); p.cuts.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("COMMIT does not come by")
		}
	}
	rec := apply(t, sure, "op-other") // within LockTimeout
	if err := <-stopped; !errors.Is(err, mcpreplay.ErrUnavailable) || errors.Is(err, mcpreplay.ErrUnknown) {
		t.Errorf("Apply() of a process that lost its turn = %v, want %v: COMMIT did not arrive", err, mcpreplay.ErrUnavailable)
	}
	if n := query[int](t, direct, "SELECT count(*) FROM item WHERE label = 'stopped'"); n != 0 {
		t.Errorf("%d effects of it", n)
	}
	if rec.Position != 1 {
		t.Errorf("the other is at %d, want 1: what was given up leaves no gap", rec.Position)
	}
	close(p.release)
}
