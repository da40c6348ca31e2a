package guard

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Where a server says how it is, for whoever starts and stops it.
const (
	livePath  = "/healthz"
	readyPath = "/readyz"
)

// health answers both. A storm of questions costs one look a second.
type health struct {
	ask func(context.Context) error
	log *slog.Logger

	mu     sync.Mutex
	asked  time.Time
	answer error
}

func (h *health) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	status, text := http.StatusOK, "ok\n"
	draining, _ := r.Context().Value(drainingKey{}).(context.Context)
	switch {
	case r.URL.Path == livePath:
	case draining != nil && draining.Err() != nil:
		status, text = http.StatusServiceUnavailable, "draining\n"
	case h.look(r.Context()) != nil:
		status, text = http.StatusServiceUnavailable, "not ready\n"
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // or whoever asked is gone
}

// look asks, unless it was asked a moment ago.
func (h *health) look(ctx context.Context) error {
	if h.ask == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.asked.IsZero() && time.Since(h.asked) < healthFor {
		return h.answer
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime)
	defer cancel()
	_, h.answer = bounded(ctx, healthTime, func(ctx context.Context) (struct{}, error) { return struct{}{}, h.ask(ctx) })
	h.asked = time.Now()
	if h.answer != nil {
		h.log.Warn("not ready", "error", h.answer)
	}
	return h.answer
}
