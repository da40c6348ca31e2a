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
	d.execIn("cells/03-stdio/store.sqlite3", statement)
}

func (d damaged) execIn(name, statement string) {
	d.t.Helper()
	db := openRaw(d.t, d.path(name))
	if _, err := db.ExecContext(d.t.Context(), statement); err != nil {
		d.t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		d.t.Fatal(err)
	}
	os.Remove(d.path(name + "-shm"))
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
		{"text", func(d damaged) { d.edit(restart, `created 1`, `created 2`) }},
		{"guessed_outcome", func(d damaged) {
			d.write("cells/03-stdio/lab.jsonl", []byte(`{"at":99999999,"event":{"kind":"outcome","operation":"case-03","conclusion":{"client":"crash","from":"call","kind":"verdict","effect":"applied","action":"return_stored_result"}}}`+"\n"))
		}},
		{"order", func(d damaged) {
			d.lines("cells/03-stdio/crash.jsonl", func(l []string) []string { return later(l, 4) })
		}},
		{"record", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET tool = 'other'`) }},
		{"record", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET tool = ''`) }},
		{"record", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET retention_until = retention_until + 1`) }},
		{"record", func(d damaged) { d.exec(`UPDATE mcpreplay_operations SET fingerprint = zeroblob(32)`) }},
		{"record", func(d damaged) { d.exec(`UPDATE mcpreplay_events SET actor = 'bob'`) }},
		{"state", func(d damaged) { d.edit("cells/03-stdio/crash.jsonl", `"--state-ttl","600s"`, `"--state-ttl","601s"`) }},
		{"ledger", func(d damaged) { d.exec(`UPDATE mcpreplay_ledger SET incarnation = 2`) }},
		{"ledger", func(d damaged) {
			d.edit("cells/03-stdio/crash.jsonl", `\"position\":0`, `\"position\":1`)
			d.edit(restart, `\"position\":1`, `\"position\":0`)
		}},
		{"mark", func(d damaged) {
			d.edit("cells/03-stdio/crash.jsonl", `{\"operationId\":\"case-03\"`, `{\"operationId\":\"case-04\"`)
		}},
		{"mark", func(d damaged) { d.edit("cells/03-stdio/crash.jsonl", `\"replayed\":false`, `\"replayed\":true`) }},
		{"mark", func(d damaged) { d.edit(restart, `\"recordedAt\":\"2026`, `\"recordedAt\":\"2027`) }},
		{"mark", func(d damaged) { d.edit(restart, `This is the recorded result of`, `This is the first result of`) }},
		{"text", func(d damaged) { d.edit(restart, `\"text\":\"{\\\"operationId`, `\"text\":\"Not so: {\\\"operationId`) }},
		{"text", func(d damaged) { d.edit(restart, `\"type\":\"text\"`, `\"type\":\"blob\"`) }},
		{"start", func(d damaged) { d.edit(restart, `"--ledger"`, `"--more","0s","--ledger"`) }},
		{"start", func(d damaged) { d.edit(restart, `"--principal","alice"`, `"--principal","alice","--principal","bob"`) }},
		{"start", func(d damaged) { d.edit(restart, `"--principal","alice",`, ``) }},
		{"start", func(d damaged) { d.edit(restart, `"sqlite:store.sqlite3"`, `"sqlite:other.sqlite3"`) }},
		{"start", func(d damaged) { d.edit(restart, `"transport":"stdio"`, `"transport":"http"`) }},
		{"request", func(d damaged) { d.edit(restart, `\"arguments\":{`, `\"more\":1,\"arguments\":{`) }},
		{"request", func(d damaged) { d.edit(restart, `{\"action\":\"accept\"`, `{\"more\":1,\"action\":\"accept\"`) }},
		{"request", func(d damaged) {
			d.lines("cells/03-stdio/crash.jsonl", func(l []string) []string {
				l[3] = strings.Replace(l[3], `\"elicitation\":{}`, ``, 1)
				return l
			})
		}},
		{"state", func(d damaged) {
			d.edit("cells/03-stdio/crash.jsonl", `\"required\":[\"body\"]}}}}`, `\"required\":[]}}}}`)
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
