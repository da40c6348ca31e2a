//go:build unix

package main

import (
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcpreplay/internal/exampletest"
)

// A server is stopped in the middle of a charge, for longer than its lease. Another one
// asks the payment system, and settles. The first one goes on, and finds that out: the
// charge was made once, and both tell the same.
func TestAServerThatWasStoppedInTheMiddleFindsItSettled(t *testing.T) {
	program := exampletest.Build(t)
	b := &bank{charges: map[string]string{}}
	api := httptest.NewServer(b)
	defer api.Close()
	first := program.Start(nil, "-api", api.URL, "-lease", "1s")
	b.will("wait")
	const call = `{"operation_id":"order-1","customer":"bo","cents":250}`
	told := make(chan exampletest.Result, 1)
	go func() {
		r, err := first.Call("charge", call)
		if err != nil {
			t.Error(err)
		}
		told <- r
	}()
	<-b.held
	first.Signal(syscall.SIGSTOP)
	second := program.Start(nil, "-api", api.URL, "-lease", "1s")
	if state, detail := second.Status("order-1"); state != "unknown" {
		t.Errorf("while its lease lasts: %s, %s", state, detail)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		state, detail := second.Status("order-1")
		if state == "applied" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is not settled: %s, %s", state, detail)
		}
	}
	close(b.release)
	first.Signal(syscall.SIGCONT)
	if r := <-told; r.IsError || !strings.Contains(r.Structured, "ch_1") {
		t.Errorf("the first one tells %+v", r)
	}
	if r := second.MustCall("charge", call); !r.Replayed || r.Structured != `{"chargeId":"ch_1"}` {
		t.Errorf("sent again: %+v", r)
	}
	if b.made != 1 {
		t.Errorf("%d charges were made", b.made)
	}
}
