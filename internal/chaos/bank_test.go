package chaos_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
)

// bank does what it is told, each time it is told: it knows no request again. It loses
// requests and replies.
type bank struct {
	mu   sync.Mutex
	done map[string]int
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	operation := strings.TrimPrefix(r.URL.Path, "/")
	lost := rand.IntN(100)
	if lost < 4 {
		panic(http.ErrAbortHandler) // before anything
	}
	b.mu.Lock()
	if r.Method == http.MethodPost {
		b.done[operation]++
	}
	n := b.done[operation]
	b.mu.Unlock()
	if lost < 12 {
		panic(http.ErrAbortHandler) // after all
	}
	if n == 0 {
		w.WriteHeader(http.StatusNotFound)
	}
}

func (b *bank) count(operation string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done[operation]
}
