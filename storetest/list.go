package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mcpreplay"
)

func ids(recs []mcpreplay.Record) []string {
	var out []string
	for _, r := range recs {
		out = append(out, r.ID)
	}
	return out
}

func list(t *testing.T, s mcpreplay.Store, f mcpreplay.Filter) []mcpreplay.Record {
	t.Helper()
	recs, err := s.List(t.Context(), f)
	if err != nil {
		t.Fatalf("List(%+v): %v", f, err)
	}
	return recs
}

func testFilters(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	var recs []mcpreplay.Record
	for i := range 6 {
		op := operation(fmt.Sprintf("op-list-%d", i))
		op.Principal = []string{"alice", "bob"}[i%2]
		op.Tool = []string{"create", "delete", "close"}[i%3]
		rec := begin(t, store, op, claim())
		if i >= 4 {
			rec = advance(t, store, finish(rec, mcpreplay.StateApplied))
		}
		recs = append(recs, rec)
	}
	since := recs[3].CreatedAt
	var after []string
	for i := len(recs) - 1; i >= 0; i-- {
		if !recs[i].CreatedAt.Before(since) {
			after = append(after, recs[i].ID)
		}
	}
	tests := []struct {
		filter mcpreplay.Filter
		want   []string
	}{
		{mcpreplay.Filter{}, []string{"op-list-5", "op-list-4", "op-list-3", "op-list-2", "op-list-1", "op-list-0"}},
		{mcpreplay.Filter{Principal: "bob"}, []string{"op-list-5", "op-list-3", "op-list-1"}},
		{mcpreplay.Filter{Principal: "nobody"}, nil},
		{mcpreplay.Filter{ID: "op-list-2"}, []string{"op-list-2"}},
		{mcpreplay.Filter{ID: "op-list-2", Principal: "bob"}, nil},
		{mcpreplay.Filter{Tool: "create"}, []string{"op-list-3", "op-list-0"}},
		{mcpreplay.Filter{State: mcpreplay.StateApplied}, []string{"op-list-5", "op-list-4"}},
		{mcpreplay.Filter{State: mcpreplay.StateInProgress, Principal: "alice", Tool: "create"}, []string{"op-list-0"}},
		{mcpreplay.Filter{Since: since}, after},
		{mcpreplay.Filter{Since: recs[5].CreatedAt.Add(time.Hour)}, nil},
		{mcpreplay.Filter{Before: recs[2].Seq}, []string{"op-list-1", "op-list-0"}},
		{mcpreplay.Filter{Limit: 2}, []string{"op-list-5", "op-list-4"}},
		{mcpreplay.Filter{Principal: "alice", Before: recs[4].Seq, Limit: 1}, []string{"op-list-2"}},
	}
	for _, tt := range tests {
		got := list(t, store, tt.filter)
		if diff := cmp.Diff(tt.want, ids(got)); diff != "" {
			t.Errorf("List(%+v) (-want +got):\n%s", tt.filter, diff)
		}
		for _, r := range got {
			sameRecord(t, "List()", r, get(t, store, r.Key))
			if r.Ledger.Position != recs[5].Position {
				t.Errorf("List() reads the ledger at %d, want %d", r.Ledger.Position, recs[5].Position)
			}
		}
	}
	// Since is a time, not a number of microseconds: half of one later is later.
	for _, r := range list(t, store, mcpreplay.Filter{Since: since.Add(500 * time.Nanosecond)}) {
		if !r.CreatedAt.After(since) {
			t.Errorf("List(Since %v) has a record created at %v", since.Add(500*time.Nanosecond), r.CreatedAt)
		}
	}
}

func testPages(t *testing.T, s *suite[mcpreplay.Store]) {
	store := s.store(t)
	var want []string
	for i := range 107 {
		id := fmt.Sprintf("op-page-%03d", i)
		begin(t, store, operation(id), fence())
		want = append([]string{id}, want...)
	}
	var got []string
	f := mcpreplay.Filter{Limit: 10}
	for {
		recs := list(t, store, f)
		if len(recs) == 0 {
			break
		}
		got = append(got, ids(recs)...)
		f.Before = recs[len(recs)-1].Seq
	}
	same(t, "all pages", got, want)
	if n := len(list(t, store, mcpreplay.Filter{})); n != 100 {
		t.Errorf("List() without a limit = %d records, want 100", n)
	}
	if n := len(list(t, store, mcpreplay.Filter{Limit: 1 << 40})); n != 107 {
		t.Errorf("List() with a large limit = %d records, want 107", n)
	}
}
