package main

import (
	"fmt"
	"sync"
	"testing"

	"mcpreplay/internal/exampletest"
)

func TestATaskIsAddedOnceByGeneratedCode(t *testing.T) {
	program := exampletest.Build(t)
	const call = `{"operation_id":"task-1","title":"buy milk","assignee":"bo"}`
	s := program.Start(nil)
	if r := s.MustCall("add_task", call); r.Structured != `{"id":1,"open":1}` || r.Replayed {
		t.Errorf("added: %+v", r)
	}
	s.Kill()
	s, other := program.Start(nil), program.Start(nil) // hosts start servers twice
	if r := s.MustCall("add_task", call); r.Structured != `{"id":1,"open":1}` || !r.Replayed {
		t.Errorf("sent again: %+v", r)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		for _, s := range []*exampletest.Server{s, other} {
			wg.Go(func() {
				s.MustCall("add_task", fmt.Sprintf(`{"operation_id":"many-%02d","title":"task","assignee":"al"}`, i))
			})
		}
	}
	wg.Wait()
	if r := s.MustCall("add_task", `{"operation_id":"task-2","title":"last","assignee":"al"}`); r.Structured != `{"id":22,"open":21}` {
		t.Errorf("after 20 from two servers: %+v", r)
	}
	if state, detail := other.Status("task-1"); state != "applied" {
		t.Errorf("status: %s, %s", state, detail)
	}
}
