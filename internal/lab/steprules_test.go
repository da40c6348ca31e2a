package lab_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"
)

// The cells whose steps and settlements are damaged here.
const (
	twice     = "12-stdio"
	settled   = "fault-exit-after-partial-first-commit-partial"
	released  = "fault-exit-in-write-2-partial"
	givenBack = "fault-panic-in-write-2-partial"
	outside   = "fault-exit-after-issue-insert-external"
)

var parts = sync.OnceValues(func() (string, error) {
	parent, err := os.MkdirTemp(filepath.Dir(binary), "parts-")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, "attempt")
	sum, _, err := lab.Run(context.Background(), lab.Options{Exe: binary, Dir: dir, Only: []string{twice, settled, released, givenBack, outside}})
	if err != nil || sum.Passed != 5 {
		return "", fmt.Errorf("run the lab: %+v, %w", sum, err)
	}
	return dir, nil
})

// Nothing that is done in parts, or settled, can be told otherwise than it was.
func TestEveryRuleOfStepsCanBeBroken(t *testing.T) {
	dir, err := parts()
	if err != nil {
		t.Fatal(err)
	}
	const add = `INSERT INTO mcpreplay_events (seq, kind, state, revision, step, outcome, actor, evidence, at)
		SELECT seq, '%s', state, revision + 1, '%s', '%s', actor, '', at FROM mcpreplay_events ORDER BY position DESC LIMIT 1`
	tests := []struct{ cell, rule, says, statement string }{
		{twice, "steps", "is not the next step", `UPDATE mcpreplay_events SET step = 'mail' WHERE step = 'watcher'`},
		{twice, "steps", "is made again", `UPDATE mcpreplay_events SET step = 'issue' WHERE step = 'watcher'`},
		{twice, "steps", "is made again", `UPDATE mcpreplay_events SET kind = 'step' WHERE kind = 'compensation'; UPDATE mcpreplay_events SET outcome = 'succeeded' WHERE outcome = 'failed' AND step = 'watcher'`},
		{twice, "steps", "after everything had stopped", `UPDATE mcpreplay_events SET kind = 'step' WHERE kind = 'compensation'`},
		{twice, "steps", "no step has failed", `UPDATE mcpreplay_events SET outcome = 'succeeded' WHERE step = 'watcher'`},
		{twice, "steps", "is not undone", `DELETE FROM mcpreplay_events WHERE kind = 'compensation'`},
		{twice, "steps", "next to be undone", `UPDATE mcpreplay_events SET step = 'watcher' WHERE kind = 'compensation'`},
		{settled, "steps", "0 of 2 steps were done", `DELETE FROM mcpreplay_events WHERE step = 'issue'`},
		{twice, "steps", "has 1 issue", `UPDATE mcpreplay_events SET outcome = 'succeeded' WHERE kind = 'compensation'`},
		{twice, "steps", "has 2 issues", `INSERT INTO issues (operation_id, title, body) SELECT operation_id, title, body FROM issues`},
		{twice, "steps", "has a watcher", `INSERT INTO watchers (issue_id, name) VALUES (1, 'x')`},
		{twice, "steps", "the result of", `UPDATE mcpreplay_results SET body = CAST(replace(body, 'watcher failed', 'watcher succeeded') AS BLOB)`},
		{twice, "steps", "the result of", `UPDATE mcpreplay_operations SET effect = '2'`},
		{twice, "steps", "a late outcome disagrees", fmt.Sprintf(add, "contradiction", "", "")},
		{twice, "steps", "whether there is an outcome", fmt.Sprintf(add, "step", "watcher", "succeeded")},
		{twice, "steps", "whether there is an outcome", `UPDATE mcpreplay_events SET kind = 'acknowledge' WHERE step = 'watcher'`},
		{twice, "record", "is by another", `UPDATE mcpreplay_events SET actor = 'other' WHERE step = 'watcher'`},
		{twice, "record", "is by another", `UPDATE mcpreplay_events SET actor = '' WHERE kind = 'claim'`},
		{twice, "record", "is by another", `UPDATE mcpreplay_events SET actor = 'other' WHERE kind = 'finish'`},
		{twice, "record", "is by another", `UPDATE mcpreplay_events SET kind = 'unheard-of' WHERE kind = 'finish'`},
		{twice, "record", "of another owner", `UPDATE mcpreplay_operations SET owner = 'other'`},
		{settled, "record", "is by another", `UPDATE mcpreplay_events SET actor = (SELECT actor FROM mcpreplay_events WHERE kind = 'claim') WHERE kind = 'settle'`},
		{settled, "record", "is by another", `UPDATE mcpreplay_events SET actor = (SELECT actor FROM mcpreplay_events WHERE kind = 'claim') WHERE kind = 'reconcile'`},
		{settled, "record", "is by another", `UPDATE mcpreplay_events SET kind = 'doubt' WHERE kind = 'settle'`},
		{settled, "steps", "it ends as applied", `UPDATE mcpreplay_events SET state = 'applied' WHERE kind = 'settle'`},
		{settled, "steps", "nobody knows whether issue happened", `UPDATE mcpreplay_events SET outcome = 'attempted' WHERE step = 'issue'`},
		{settled, "steps", "something was done", `UPDATE mcpreplay_events SET kind = 'release', state = 'released' WHERE kind = 'settle'`},
		{settled, "steps", "may run again", `UPDATE mcpreplay_events SET kind = 'takeover' WHERE kind = 'reconcile'`},
		{settled, "settlement", "while its owner could be alive", `crash.jsonl: "--lease","200ms" -> "--lease","10m"`},
		{settled, "settlement", "before it was claimed", `UPDATE mcpreplay_events SET kind = 'step' WHERE kind = 'claim'`},
		{settled, "settlement", "did not have yet", `restart.jsonl: \"position\":4 -> \"position\":2`},
		{released, "settlement", "was not told the outcome", `restart.jsonl: \"position\":3 -> \"position\":8`},
		{outside, "steps", "its effect has no steps", `UPDATE mcpreplay_events SET kind = 'step', outcome = 'succeeded' WHERE kind = 'reconcile'`},
		{outside, "steps", "nobody can have known", `UPDATE mcpreplay_events SET state = 'not_applied' WHERE kind = 'settle'`},
		{outside, "steps", "has 0 issues", `DELETE FROM issues`},
		{outside, "steps", "has 2 issues", `INSERT INTO issues (operation_id, title, body) SELECT operation_id, title, body FROM issues`},
		{outside, "steps", "the result of", `UPDATE mcpreplay_results SET body = CAST(replace(body, 'created 1', 'created 2') AS BLOB)`},
		{outside, "settlement", "while its owner could be alive", `crash.jsonl: "--lease","200ms" -> "--lease","10m"`},
		{givenBack, "settlement", "was told that nothing happened", `UPDATE mcpreplay_events SET actor = 'other' WHERE kind = 'release'`},
	}
	for _, tt := range tests {
		t.Run(tt.says, func(t *testing.T) {
			t.Parallel()
			d := damaged{t, filepath.Join(t.TempDir(), "attempt")}
			if err := os.CopyFS(d.dir, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if name, change, ok := strings.Cut(tt.statement, ".jsonl: "); ok {
				old, new, _ := strings.Cut(change, " -> ")
				d.edit("cells/"+tt.cell+"/"+name+".jsonl", old, new)
			} else {
				d.execIn("cells/"+tt.cell+"/store.sqlite3", tt.statement)
			}
			facts, err := evidence.DeriveCell(t.Context(), d.dir, tt.cell)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(facts, func(f string) bool {
				return strings.HasPrefix(f, "! "+tt.rule+" ") && strings.Contains(f, tt.says)
			}) {
				t.Errorf("no fact says that of %s by %s:\n%s", tt.rule, tt.statement, strings.Join(facts, "\n"))
			}
		})
	}
}
