package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"mcpreplay/internal/exampletest"
)

// bank is a payment system that knows a request again by its key, as such systems do.
type bank struct {
	mu      sync.Mutex
	charges map[string]string // id by key
	made    int
	next    string // what happens to the next charge
	held    chan struct{}
	release chan struct{}
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body) // only then is a client that goes away noticed
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.Method == http.MethodGet {
		id, ok := b.charges[r.URL.Query().Get("idempotency_key")]
		if !ok {
			http.Error(w, "no such charge", http.StatusNotFound)
			return
		}
		json.NewEncoder(w).Encode(Receipt{ChargeID: id})
		return
	}
	next := b.next
	b.next = ""
	switch next {
	case "busy":
		http.Error(w, next, http.StatusTooManyRequests)
		return
	case "refuse":
		http.Error(w, next, http.StatusPaymentRequired)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if b.charges[key] == "" {
		b.made++
		b.charges[key] = fmt.Sprintf("ch_%d", b.made)
	}
	switch next {
	case "drop":
		panic(http.ErrAbortHandler) // it is made, and the reply is lost
	case "hold":
		close(b.held)
		b.mu.Unlock()
		<-r.Context().Done()
		b.mu.Lock()
		return
	case "wait":
		close(b.held)
		b.mu.Unlock()
		<-b.release
		b.mu.Lock()
	}
	json.NewEncoder(w).Encode(Receipt{ChargeID: b.charges[key]})
}

func (b *bank) will(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = what
	b.held, b.release = make(chan struct{}), make(chan struct{})
}

func TestChargesAreMadeOnceWhateverReplyIsLost(t *testing.T) {
	program := exampletest.Build(t)
	b := &bank{charges: map[string]string{}}
	api := httptest.NewUnstartedServer(b)
	api.Config.ErrorLog = nil
	api.Start()
	defer api.Close()
	s := program.Start(nil, "-api", api.URL)
	charge := func(id string) exampletest.Result {
		return s.MustCall("charge", `{"operation_id":"`+id+`","customer":"bo","cents":250}`)
	}

	if r := charge("order-1"); r.Structured != `{"chargeId":"ch_1"}` || r.Replayed {
		t.Errorf("a charge: %+v", r)
	}
	if r := charge("order-1"); r.Structured != `{"chargeId":"ch_1"}` || !r.Replayed {
		t.Errorf("sent again: %+v", r)
	}

	b.will("drop") // of a key, net/http sends it again, so both are lost
	r := charge("order-2")
	if r.IsError { // unless net/http got a reply to its own second attempt
		if state, detail := s.Status("order-2"); state != "applied" {
			t.Errorf("after a lost reply: %s, %s", state, detail)
		}
		r = charge("order-2")
	}
	if r.Structured != `{"chargeId":"ch_2"}` {
		t.Errorf("after a lost reply: %+v", r)
	}

	b.will("busy")
	if r := charge("order-3"); !r.IsError || !strings.Contains(r.Text, "busy") {
		t.Errorf("busy: %+v", r)
	}
	if r := charge("order-3"); r.Structured != `{"chargeId":"ch_3"}` || r.Replayed {
		t.Errorf("sent again after busy: %+v", r)
	}

	b.will("refuse")
	if r := charge("order-4"); !r.IsError || !strings.Contains(r.Text, "refused") {
		t.Errorf("refused: %+v", r)
	}
	if r := charge("order-4"); !r.IsError || !r.Replayed {
		t.Errorf("sent again after a refusal: %+v", r)
	}
	if state, _ := s.Status("order-4"); state != "not_applied" {
		t.Errorf("refused, it is %s", state)
	}

	b.will("hold")
	go s.Call("charge", `{"operation_id":"order-5","customer":"bo","cents":250}`)
	<-b.held // made; its reply is not sent yet
	s.Kill()
	s = program.Start(nil, "-api", api.URL)
	if state, _ := s.Status("order-5"); state != "unknown" {
		t.Errorf("while the dead owner's lease lasts it is %s", state)
	}
	if r := charge("order-5"); r.Structured != `{"chargeId":"ch_4"}` || !r.Replayed { // waits for the lease, then asks
		t.Errorf("after a crash: %+v", r)
	}
	if b.made != 4 {
		t.Errorf("%d charges were made, want 4", b.made)
	}
}
