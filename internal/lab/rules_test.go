package lab_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"mcpreplay/internal/evidence"
)

// exec changes the database of 03-stdio behind the ledger's back.
func (d damaged) exec(statement string) {
	d.t.Helper()
	db := openRaw(d.t, d.path("cells/03-stdio/store.sqlite3"))
	if _, err := db.ExecContext(d.t.Context(), statement); err != nil {
		d.t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		d.t.Fatal(err)
	}
	os.Remove(d.path("cells/03-stdio/store.sqlite3-shm"))
}

// A rule that cannot be broken checks nothing. Those about dispatch are broken by
// the controls; each of the others is broken here.
func TestEveryRuleCanBeBroken(t *testing.T) {
	const restart = "cells/03-stdio/restart.jsonl"
	tests := []struct {
		rule string
		do   func(d damaged)
	}{
		{"wire", func(d damaged) { d.edit(restart, `\"id\":13`, `\"id\":12`) }},
		{"protocol", func(d damaged) {
			d.edit(restart, `protocolVersion\":\"2026-07-28`, `protocolVersion\":\"2026-07-29`)
		}},
		{"state", func(d damaged) { d.exec(`UPDATE mcpreplay_ledger SET instance = '00000000000000000000000000000000'`) }},
		{"ledger", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET revision = revision + 1`) }},
		{"ledger", func(d damaged) { d.exec(`UPDATE mcpreplay_ledger SET backend = 'sqlite:other'`) }},
		{"ledger", func(d damaged) { d.edit(restart, `\"position\":1`, `\"position\":9`) }},
		{"fingerprint", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET fingerprint = zeroblob(32)`) }},
		{"fingerprint", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET answers_digest = zeroblob(32)`) }},
		{"unrecorded_effect", func(d damaged) { d.exec(`INSERT INTO issues (operation_id, title, body) VALUES ('other', 'x', 'y')`) }},
		{"missing_effect", func(d damaged) { d.exec(`DELETE FROM issues`) }},
		{"duplicate_effect_after_crash", func(d damaged) {
			d.exec(`INSERT INTO issues (operation_id, title, body) SELECT operation_id, title, body FROM issues`)
		}},
		{"unbacked_reply", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET state = 'partial'`) }},
		{"foreign_reply", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET principal = 'bob'`) }},
		{"changed_result", func(d damaged) {
			d.exec(`UPDATE mcpreplay_results SET body = CAST(replace(body, 'created', 'deleted') AS BLOB)`)
		}},
		{"changed_result", func(d damaged) { d.edit(restart, `created 1`, `created 2`) }},
		{"guessed_outcome", func(d damaged) {
			d.write("cells/03-stdio/lab.jsonl", []byte(`{"at":99999999,"event":{"kind":"outcome","operation":"case-03","conclusion":{"client":"crash","from":"call","kind":"verdict","effect":"applied","action":"return_stored_result"}}}`+"\n"))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.rule, func(t *testing.T) {
			t.Parallel()
			d := damage(t)
			tt.do(d)
			facts, err := evidence.DeriveCell(t.Context(), d.dir, "03-stdio")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(facts, func(f string) bool { return strings.HasPrefix(f, "! "+tt.rule+" ") }) {
				t.Errorf("no fact says that %s is broken:\n%s", tt.rule, strings.Join(facts, "\n"))
			}
		})
	}
}
