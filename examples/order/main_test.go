package main

import (
	"database/sql"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	_ "github.com/ncruces/go-sqlite3/driver"

	"mcpreplay/internal/exampletest"
)

func TestAnOrderIsDoneInPartsThatAreKnown(t *testing.T) {
	var next atomic.Value
	var shipped atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch next.Load() {
		case "refuse":
			http.Error(w, "not there", http.StatusUnprocessableEntity)
			return
		case "drop":
			shipped.Add(1)
			panic(http.ErrAbortHandler)
		}
		shipped.Add(1)
		w.Write([]byte(`{"shipment":"sh-1"}`))
	}))
	defer api.Close()
	program := exampletest.Build(t)
	s := program.Start(nil, "-shipper", api.URL)
	stock := func() (n int) {
		t.Helper()
		db, err := sql.Open("sqlite3", "file:"+filepath.Join(program.Dir, "order.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if err := db.QueryRow(`SELECT n FROM stock WHERE item = 'lamp'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	order := func(id string) exampletest.Result {
		return s.MustCall("order", `{"operation_id":"`+id+`","item":"lamp","address":"Bergen"}`)
	}

	next.Store("refuse")
	want := `{"state":"partial","text":"lamp is not shipped. It is back in the stock."}`
	if r := order("order-1"); r.Structured != want || stock() != 2 {
		t.Errorf("refused: %+v, %d in stock", r, stock())
	}
	next.Store("")
	if r := order("order-1"); r.Structured != want || !r.Replayed || stock() != 2 {
		t.Errorf("a partial order, sent again: %+v, %d in stock", r, stock())
	}
	if r := order("order-2"); r.Structured != `{"shipment":"sh-1","state":"applied","text":"lamp is on its way."}` || stock() != 1 {
		t.Errorf("an order: %+v, %d in stock", r, stock())
	}

	next.Store("drop")
	if r := order("order-3"); !r.IsError || !strings.Contains(r.Text, "not known") || stock() != 0 {
		t.Errorf("a lost reply: %+v, %d in stock", r, stock())
	}
	next.Store("")
	if r := order("order-3"); !r.IsError || !strings.Contains(r.Text, "not known") {
		t.Errorf("after a lost reply, sent again: %+v", r)
	}
	if r := order("order-4"); !r.IsError || !strings.Contains(r.Text, "no lamp left") {
		t.Errorf("without stock: %+v", r)
	}
	if n := shipped.Load(); n != 2 {
		t.Errorf("%d were shipped, want 2", n)
	}
	s.Kill()

	db, err := sql.Open("sqlite3", "file:"+filepath.Join(program.Dir, "order.db"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`UPDATE stock SET n = 1`); err != nil {
		t.Fatal(err)
	}
	db.Close()
	s = program.Start(nil, "-shipper", api.URL)
	if r := order("order-4"); r.IsError { // nothing had happened
		t.Errorf("with stock again: %+v", r)
	}
	if state, detail := s.Status("order-3"); state != "unknown" {
		t.Errorf("a lost reply, after a restart: %s, %s", state, detail)
	}
}
