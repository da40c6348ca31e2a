package main

import (
	"testing"

	"mcpreplay/internal/exampletest"
)

func TestNothingIsDeletedBeforeEveryQuestionIsAnswered(t *testing.T) {
	program := exampletest.Build(t)
	const first, second = "Delete all documents in drafts?", "Why?"
	call := func(id string, answers map[string]any) exampletest.Result {
		s := program.Start(answers)
		defer s.Stop()
		return s.MustCall("delete_folder", `{"operation_id":"`+id+`","folder":"drafts"}`)
	}
	if r := call("del-1", map[string]any{first: map[string]any{"sure": false}}); r.Structured != `{"documents":0}` {
		t.Errorf("not sure: %+v", r)
	}
	if r := call("del-2", map[string]any{first: map[string]any{"sure": true}}); !r.IsError { // declines to say why
		t.Errorf("no reason: %+v", r)
	}
	yes := map[string]any{first: map[string]any{"sure": true}, second: map[string]any{"why": "they are old"}}
	if r := call("del-3", yes); r.Structured != `{"documents":2}` {
		t.Errorf("sure: %+v", r)
	}
	if r := call("del-3", nil); r.Structured != `{"documents":2}` || !r.Replayed { // is not even asked again
		t.Errorf("sent again: %+v", r)
	}
}
