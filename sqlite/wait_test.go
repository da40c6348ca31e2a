package sqlite_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
)

func TestBusyLedgerIsWaitedFor(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	unlock := lock(t, path)
	done := make(chan error)
	go func() {
		_, _, err := s.Apply(context.Background(), operation("op-waits"), effect("op-waits"))
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("Apply() = %v while another holds the lock", err)
	case <-time.After(20 * time.Millisecond): // long enough to be at BEGIN; if not, it waits anyway
	}
	unlock()
	if err := <-done; err != nil {
		t.Errorf("Apply() = %v when the lock is free", err)
	}
}

func TestBusyLedgerIsGivenUp(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := verified(t, path, nil)
	known := apply(t, s, "op-known")
	unlock := lock(t, path)
	start := time.Now()
	late, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, leave)
	for _, tt := range []struct {
		ctx  context.Context
		want error
	}{{late, context.DeadlineExceeded}, {gone, context.Canceled}} {
		_, started, err := s.Apply(tt.ctx, operation("op-late"), func(context.Context, *sqlite.Tx) (mcpreplay.Outcome, error) {
			t.Error("the effect ran")
			return mcpreplay.Outcome{}, nil
		})
		if started || !errors.Is(err, mcpreplay.ErrUnavailable) || !errors.Is(err, tt.want) {
			t.Errorf("Apply() = started %v, %v; want %v and %v", started, err, mcpreplay.ErrUnavailable, tt.want)
		}
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("giving up took %v: SQLite's own wait is not interrupted", took)
	}
	if _, err := s.Get(t.Context(), known.Key); err != nil {
		t.Errorf("Get() while another holds the lock: %v", err)
	}
	unlock()
	if _, err := s.Get(t.Context(), key("op-late")); !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrNotFound)
	}
	apply(t, s, "op-late")
}

func TestBusyLedgerIsNotWaitedForForever(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s, err := sqlite.OpenWeak(path, &sqlite.Options{Backend: "issues"}, sqlite.Weak{Patience: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer lock(t, path)()
	_, _, err = s.Begin(context.Background(), operation("op-late"), claim())
	if !errors.Is(err, mcpreplay.ErrUnavailable) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("Begin() = %v, want %v that names the cause", err, mcpreplay.ErrUnavailable)
	}
}

// hold occupies the writer with an effect until release is called.
func hold(t *testing.T, s *sqlite.Store, id string) (release func() error) {
	t.Helper()
	inside, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, _, err := s.Apply(context.Background(), operation(id), func(ctx context.Context, tx *sqlite.Tx) (mcpreplay.Outcome, error) {
			close(inside)
			<-leave
			return mcpreplay.Outcome{}, writeRow(ctx, tx, id)
		})
		done <- err
	}()
	<-inside
	return func() error {
		close(leave)
		return <-done
	}
}

func TestQueuedCallerMayLeave(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	release := hold(t, s, "op-first")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, started, err := s.Begin(ctx, operation("op-queued"), claim())
	if started || !errors.Is(err, mcpreplay.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Begin() = started %v, %v; want %v", started, err, mcpreplay.ErrUnavailable)
	}
	if err := release(); err != nil {
		t.Errorf("the first: %v", err)
	}
	if _, err := s.Get(t.Context(), key("op-queued")); !errors.Is(err, mcpreplay.ErrNotFound) {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrNotFound)
	}
}

func TestCloseWaitsForTheTransaction(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStore(t, path, nil)
	release := hold(t, s, "op-first")
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for { // until the store refuses, which it does before it is closed
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, _, err := s.Begin(ctx, operation("op-late"), claim())
		cancel()
		if !errors.Is(err, mcpreplay.ErrUnavailable) {
			t.Fatalf("Begin() during Close() = %v, want %v", err, mcpreplay.ErrUnavailable)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	select {
	case err := <-closed:
		t.Errorf("Close() = %v before the transaction ended", err)
	default:
	}
	if err := release(); err != nil {
		t.Errorf("the transaction that Close() found running: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close(): %v", err)
	}
	if n := halves(t, path); n != 0 {
		t.Errorf("%d records have not exactly one effect", n)
	}
	apply(t, verified(t, path, nil), "op-next")
}

func TestReadersWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := verified(t, newPath(t), nil)
	rec := apply(t, s, "op-read")
	leave, inside := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	const views = 4
	for range views {
		go func() {
			_, err := s.View(context.Background(), rec.Key, func(context.Context, *sqlite.Tx, mcpreplay.Record) error {
				inside <- struct{}{}
				<-leave
				return nil
			})
			done <- err
		}()
	}
	for range views {
		<-inside
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := s.Get(ctx, rec.Key); !errors.Is(err, mcpreplay.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get() = %v, want %v", err, mcpreplay.ErrUnavailable)
	}
	apply(t, s, "op-write") // the writer does not wait for readers
	close(leave)
	for range views {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Get(t.Context(), rec.Key); err != nil {
		t.Error(err)
	}
}
