package lab_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"mcpreplay/internal/evidence"
	"mcpreplay/internal/lab"
)

// attempts are two runs of the same cells, made once for all tests that damage them.
var attempts = sync.OnceValues(func() (dirs [2]string, err error) {
	parent, err := os.MkdirTemp(filepath.Dir(binary), "attempts-")
	if err != nil {
		return dirs, err
	}
	for i := range dirs {
		dirs[i] = filepath.Join(parent, fmt.Sprint(i))
		sum, _, err := lab.Run(context.Background(), lab.Options{Exe: binary, Dir: dirs[i], Only: []string{"01", "03", "09-stdio", "12-stdio"}})
		if err != nil || !sum.Good() {
			return dirs, fmt.Errorf("run the lab: %+v, %w", sum, err)
		}
	}
	return dirs, nil
})

// damaged is a copy of an attempt, to be damaged.
type damaged struct {
	t   *testing.T
	dir string
}

func damage(t *testing.T) damaged {
	t.Helper()
	dirs, err := attempts()
	if err != nil {
		t.Fatal(err)
	}
	d := damaged{t, filepath.Join(t.TempDir(), "attempt")}
	if err := os.CopyFS(d.dir, os.DirFS(dirs[0])); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d damaged) path(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

func (d damaged) read(name string) []byte {
	d.t.Helper()
	text, err := os.ReadFile(d.path(name))
	if err != nil {
		d.t.Fatal(err)
	}
	return text
}

func (d damaged) write(name string, text []byte) {
	d.t.Helper()
	if err := os.WriteFile(d.path(name), text, 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// edit replaces the first occurrence of a text, which must be there.
func (d damaged) edit(name, old, new string) {
	d.t.Helper()
	text := d.read(name)
	if !bytes.Contains(text, []byte(old)) {
		d.t.Fatalf("%s does not contain %q", name, old)
	}
	d.write(name, bytes.Replace(text, []byte(old), []byte(new), 1))
}

func (d damaged) flip(name string, at int) {
	text := d.read(name)
	if at < 0 {
		at += len(text)
	}
	text[at] ^= 1
	d.write(name, text)
}

// other is a file of the other attempt.
func (d damaged) other(name string) []byte {
	d.t.Helper()
	dirs, err := attempts()
	if err != nil {
		d.t.Fatal(err)
	}
	return damaged{d.t, dirs[1]}.read(name)
}

// reseal makes the inventory fit what is there, as whoever covers his tracks would.
func (d damaged) reseal() {
	d.t.Helper()
	lines := map[string]string{}
	err := fs.WalkDir(os.DirFS(d.dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || name == "INVENTORY" {
			return err
		}
		text := d.read(name)
		lines[name] = fmt.Sprintf("%x %d %s\n", sha256.Sum256(text), len(text), name)
		return nil
	})
	if err != nil {
		d.t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		all.WriteString(lines[name])
	}
	d.write("INVENTORY", []byte(all.String()))
}

func (d damaged) verify() evidence.Report {
	d.t.Helper()
	r, err := evidence.Verify(d.t.Context(), d.dir, lab.Cells())
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

// lines edits the lines of a file.
func (d damaged) lines(name string, fn func([]string) []string) {
	lines := strings.Split(strings.TrimSuffix(string(d.read(name)), "\n"), "\n")
	d.write(name, []byte(strings.Join(fn(lines), "\n")+"\n"))
}

// swapReplies exchanges the text of two replies: the times stay in their order.
func swapReplies(lines []string) []string {
	var recs []evidence.Record
	var replies []int
	for i, line := range lines {
		var r evidence.Record
		if json.Unmarshal([]byte(line), &r) != nil {
			return nil
		}
		recs = append(recs, r)
		if r.Dir == evidence.Received {
			replies = append(replies, i)
		}
	}
	a, b := replies[len(replies)-2], replies[len(replies)-1]
	recs[a].Raw, recs[b].Raw = recs[b].Raw, recs[a].Raw
	for i, r := range recs {
		lines[i] = encodeLine(r)
	}
	return lines
}

// later moves a line behind the next one; the times stay in their order.
func later(lines []string, at int) []string {
	timeA, a, _ := strings.Cut(lines[at], ",")
	timeB, b, _ := strings.Cut(lines[at+1], ",")
	lines[at], lines[at+1] = timeA+","+b, timeB+","+a
	return lines
}

func encodeLine(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Whoever changes an attempt is found out, and told in which file and by which
// rule; also when the inventory was made to fit.
func TestVerifyNamesWhatWasChanged(t *testing.T) {
	const crash, restart, store = "cells/03-stdio/crash.jsonl", "cells/03-stdio/restart.jsonl", "cells/03-stdio/store.sqlite3"
	tests := []struct {
		name   string
		do     func(d damaged)
		reseal bool
		file   string
		rule   string
	}{
		{"a byte of a transcript", func(d damaged) { d.flip(crash, 200) }, false, crash, "inventory"},
		{"a byte of a database", func(d damaged) { d.flip(store, 5000) }, false, store, "inventory"},
		{"a byte of a digest in the inventory", func(d damaged) { d.flip("INVENTORY", 3) }, false, "SUMMARY.json", "inventory"},
		{"a byte of the inventory's last line", func(d damaged) { d.flip("INVENTORY", -1) }, false, "INVENTORY", "inventory"},
		{"a size in the inventory", func(d damaged) { d.edit("INVENTORY", " ", " 1") }, false, "SUMMARY.json", "inventory"},
		{"a space of the inventory", func(d damaged) { d.edit("INVENTORY", " ", "  ") }, false, "INVENTORY", "inventory"},
		{"a file deleted", func(d damaged) { os.Remove(d.path(restart)) }, false, restart, "inventory"},
		{"a file deleted, resealed", func(d damaged) { os.Remove(d.path(restart)) }, true, restart, "facts"},
		{"the inventory deleted", func(d damaged) { os.Remove(d.path("INVENTORY")) }, false, "INVENTORY", "inventory"},
		{"the summary deleted", func(d damaged) { os.Remove(d.path("SUMMARY.json")) }, true, "SUMMARY.json", "summary"},
		{"the results deleted", func(d damaged) { os.Remove(d.path("results.jsonl")) }, true, "results.jsonl", "results"},
		{"the spec deleted", func(d damaged) { os.Remove(d.path("spec.json")) }, true, "spec.json", "spec"},
		{"a file added", func(d damaged) { d.write("cells/03-stdio/notes", nil) }, false, "cells/03-stdio/notes", "inventory"},
		{"a file added, resealed", func(d damaged) { d.write("cells/03-stdio/notes", nil) }, true, "cells/03-stdio/notes", "facts"},
		{"a file added at the top, resealed", func(d damaged) { d.write("notes", nil) }, true, "notes", "tree"},
		{"a directory added", func(d damaged) { os.Mkdir(d.path("cells/03-stdio/more"), 0o755) }, false, "cells/03-stdio/more", "tree"},
		{"an empty directory added", func(d damaged) { os.Mkdir(d.path("cells/more"), 0o755) }, false, "cells/more", "tree"},
		{"a file replaced by a link", func(d damaged) {
			os.Rename(d.path(crash), d.path(crash)+".kept")
			os.Symlink("crash.jsonl.kept", d.path(crash))
		}, false, crash, "tree"},
		{"a directory replaced by a link", func(d damaged) {
			os.Rename(d.path("cells/03-stdio"), filepath.Join(filepath.Dir(d.dir), "away"))
			os.Symlink("../../away", d.path("cells/03-stdio"))
		}, true, "cells/03-stdio", "tree"},
		{"a recorded fact", func(d damaged) {
			d.edit("results.jsonl", `asks body, S1`, `asks body, S2`)
		}, true, "", "facts"},
		{"a fact and what is wanted of it", func(d damaged) {
			d.edit("results.jsonl", `asks body, S1`, `asks body, S2`)
			d.edit("spec.json", `asks body, S1`, `asks body, S2`)
		}, true, "spec.json", "spec"},
		{"a result on the wire", func(d damaged) { d.edit(restart, `created 1`, `created 7`) }, true, restart, "facts"},
		{"a result on the wire and in the results", func(d damaged) {
			d.edit(restart, `created 1`, `created 7`)
			at := bytes.Index(d.read("results.jsonl"), []byte(`{"cell":"03-stdio"`))
			text := d.read("results.jsonl")
			d.write("results.jsonl", append(text[:at:at], bytes.Replace(text[at:], []byte("created 1"), []byte("created 7"), 1)...))
		}, true, restart, "facts"},
		{"an answer on the wire", func(d damaged) { d.edit(crash, `alpha`, `omega`) }, true, crash, "facts"},
		{"a byte of request state", func(d damaged) {
			d.edit(crash, `\"requestState\":\"v1.`, `\"requestState\":\"v1.A`)
		}, true, crash, "facts"},
		{"a reply to the lost request", func(d damaged) {
			d.lines(crash, func(lines []string) []string {
				last := len(lines) - 1 // the exit
				reply := `{"at":99999999,"dir":"<","raw":"{\"jsonrpc\":\"2.0\",\"id\":11,\"result\":{\"content\":[]}}"}`
				return append(lines[:last:last], reply, strings.Replace(lines[last], `"at":`, `"at":9999999`, 1))
			})
		}, true, crash, "facts"},
		{"the transcript of another case", func(d damaged) {
			d.write("cells/09-stdio/crash.jsonl", d.read(crash))
			d.write("cells/09-stdio/restart.jsonl", d.read(restart))
		}, true, "cells/09-stdio/crash.jsonl", "facts"},
		{"all evidence of another case", func(d damaged) {
			for _, name := range []string{"crash.jsonl", "restart.jsonl", "store.sqlite3"} {
				d.write("cells/09-stdio/"+name, d.read("cells/03-stdio/"+name))
			}
		}, true, "cells/09-stdio/crash.jsonl", "facts"},
		{"two replies swapped", func(d damaged) { d.lines(restart, swapReplies) }, true, restart, "facts"},
		{"two lines swapped", func(d damaged) {
			d.lines(restart, func(l []string) []string { l[2], l[4] = l[4], l[2]; return l })
		}, true, restart, "facts"},
		{"a request id used twice", func(d damaged) { d.edit(restart, `\"id\":13`, `\"id\":12`) }, true, restart, "facts"},
		{"the database of another cell", func(d damaged) { d.write(store, d.read("cells/09-stdio/store.sqlite3")) }, true, store, "facts"},
		{"the database of another attempt", func(d damaged) { d.write(store, d.other(store)) }, true, crash, "facts"},
		{"a body in the database", func(d damaged) { d.edit(store, "alpha", "omega") }, true, store, "facts"},
		{"a database that is none", func(d damaged) { d.write(store, []byte("not a database at all, but long enough to look")) }, true, store, "facts"},
		{"a member twice", func(d damaged) {
			d.edit(restart, `\"name\":\"get_operation_status\"`, `\"name\":\"create_guarded_issue\",\"name\":\"get_operation_status\"`)
		}, true, restart, "facts"},
		{"a member in another case", func(d damaged) { d.edit(restart, `\"structuredContent\":`, `\"structuredcontent\":`) }, true, restart, "facts"},
		{"another JSON-RPC", func(d damaged) { d.edit(restart, `\"jsonrpc\":\"2.0\"`, `\"jsonrpc\":\"1.0\"`) }, true, restart, "facts"},
		{"a reply moved behind the request that needs it", func(d damaged) {
			d.lines(crash, func(l []string) []string { return later(l, 4) })
		}, true, crash, "facts"},
		{"a start moved behind a request", func(d damaged) {
			d.lines(crash, func(l []string) []string { return later(l, 0) })
		}, true, crash, "facts"},
		{"a request after the end", func(d damaged) {
			d.lines(restart, func(l []string) []string {
				return append(l, `{"at":99999999,"dir":">","raw":"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}"}`)
			})
		}, true, restart, "facts"},
		{"a call more, as a notification", func(d damaged) {
			d.lines(restart, func(l []string) []string {
				more := `,"dir":">","raw":"{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{\"name\":\"create_guarded_issue\"}}"}`
				time, _, _ := strings.Cut(l[1], ",")
				return slices.Insert(l, 2, time+more)
			})
		}, true, restart, "facts"},
		{"a request more, of another method", func(d damaged) {
			d.lines(restart, func(l []string) []string {
				more := `,"dir":">","raw":"{\"id\":99,\"jsonrpc\":\"2.0\",\"method\":\"resources/read\",\"params\":{\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"}}}"}`
				time, _, _ := strings.Cut(l[1], ",")
				return slices.Insert(l, 2, time+more)
			})
		}, true, restart, "facts"},
		{"an empty transcript more", func(d damaged) { d.write("cells/03-stdio/more.jsonl", nil) }, true, "cells/03-stdio/more.jsonl", "facts"},
		{"a log of no database", func(d damaged) { d.write("cells/03-stdio/more.sqlite3-wal", []byte("x")) }, true, "cells/03-stdio/more.sqlite3-wal", "facts"},
		{"a column that computes what it shows", func(d damaged) {
			d.exec(`ALTER TABLE issues RENAME COLUMN body TO hidden`)
			d.exec(`ALTER TABLE issues ADD COLUMN body TEXT AS ('alpha')`)
		}, true, store, "facts"},
		{"a check that is code", func(d damaged) {
			d.exec(`DROP TABLE watchers`)
			d.exec(`CREATE TABLE watchers (id INTEGER PRIMARY KEY, issue_id INTEGER, name TEXT, CHECK (length(hex(zeroblob(9))) > 0))`)
		}, true, store, "facts"},
		{"the evidence of another transport", func(d damaged) {
			os.RemoveAll(d.path("cells/01-http"))
			if err := os.CopyFS(d.path("cells/01-http"), os.DirFS(d.path("cells/01-stdio"))); err != nil {
				d.t.Fatal(err)
			}
		}, true, "cells/01-http/server.jsonl", "expected"},
		{"a result under another HTTP status", func(d damaged) { d.edit("cells/01-http/server.jsonl", `HTTP/1.1 200 OK`, `HTTP/1.1 500 OK`) }, true, "cells/01-http/server.jsonl", "facts"},
		{"a head that says something else", func(d damaged) {
			d.edit("cells/01-http/server.jsonl", `Mcp-Name: create_guarded_issue`, `Mcp-Name: get_operation_status`)
		}, true, "cells/01-http/server.jsonl", "facts"},
		{"a second token", func(d damaged) {
			d.edit("cells/01-http/server.jsonl", `Authorization:`, `Authorization: Bearer published-lab-token-of-alice\r\nAuthorization:`)
		}, true, "cells/01-http/server.jsonl", "facts"},
		{"the answer that an older client's record is of", func(d damaged) {
			d.execIn("cells/01-legacy/store.sqlite3", `UPDATE mcpreplay_operations SET answers_digest = zeroblob(32)`)
		}, true, "cells/01-legacy/server.jsonl", "facts"},
		{"a path in the place of a module's version", func(d damaged) {
			var p evidence.Provenance
			if err := json.Unmarshal(d.read("provenance.json"), &p); err != nil {
				d.t.Fatal(err)
			}
			p.Modules = append(p.Modules, evidence.Module{Path: "example.com/m", Version: "/home/m"})
			text, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				d.t.Fatal(err)
			}
			d.write("provenance.json", append(text, '\n'))
		}, true, "provenance.json", "provenance"},
		{"a second response on a connection", func(d damaged) {
			d.lines("cells/01-http/server.jsonl", func(l []string) []string {
				at := len(l) - 2 // before the exit
				return slices.Insert(l, at+1, strings.Replace(l[at], `created 1`, `created 2`, 1))
			})
		}, true, "cells/01-http/server.jsonl", "facts"},
		{"the tool of an older client's record", func(d damaged) {
			d.execIn("cells/01-legacy/store.sqlite3", `UPDATE mcpreplay_operations SET tool = 'other'`)
		}, true, "cells/01-legacy/server.jsonl", "facts"},
		{"the summary", func(d damaged) { d.edit("SUMMARY.json", `"failed": 0`, `"failed": 1`) }, true, "SUMMARY.json", "summary"},
		{"a member added to the summary", func(d damaged) { d.edit("SUMMARY.json", `{`, `{"note": "fine",`) }, true, "SUMMARY.json", "summary"},
		{"a status", func(d damaged) { d.edit("results.jsonl", `"status":"passed"`, `"status":"failed"`) }, true, "results.jsonl", "status"},
		{"a result left out", func(d damaged) { d.lines("results.jsonl", func(l []string) []string { return l[1:] }) }, true, "results.jsonl", "results"},
		{"a result twice", func(d damaged) { d.lines("results.jsonl", func(l []string) []string { return append(l, l[0]) }) }, true, "results.jsonl", "results"},
		{"a cell that nobody knows", func(d damaged) { d.edit("spec.json", `"id": "01-stdio"`, `"id": "01-smoke"`) }, true, "spec.json", "spec"},
		{"the provenance", func(d damaged) { d.edit("provenance.json", `"platform": "`, `"platform": "/home/`) }, true, "provenance.json", "provenance"},
		{"a control that is called one no longer", func(d damaged) { d.edit("spec.json", `"control": true`, `"control": false`) }, true, "spec.json", "spec"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := damage(t)
			tt.do(d)
			if tt.reseal {
				d.reseal()
			}
			r := d.verify()
			found := slices.ContainsFunc(r.Problems, func(p evidence.Problem) bool {
				return p.Rule == tt.rule && (tt.file == "" || p.File == tt.file)
			})
			if !found {
				t.Errorf("want %s named by rule %s, got %+v", tt.file, tt.rule, r.Problems)
			}
		})
	}
}

// Verifying leaves an attempt as it was, also where SQLite would like to write.
func TestVerifyChangesNothing(t *testing.T) {
	d := damage(t)
	before := snapshot(t, d.dir)
	for range 2 {
		if r := d.verify(); len(r.Problems) > 0 {
			t.Fatalf("problems: %+v", r.Problems)
		}
	}
	if after := snapshot(t, d.dir); !maps.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			text, err := os.ReadFile(filepath.Join(dir, name))
			files[name] = string(text)
			return err
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// No attempt is ever overwritten.
func TestAnAttemptIsNeverOverwritten(t *testing.T) {
	d := damage(t)
	if _, _, err := lab.Run(t.Context(), lab.Options{Exe: binary, Dir: d.dir, Only: []string{"02-stdio"}}); !os.IsExist(err) {
		t.Errorf("Run() into an attempt that is there = %v", err)
	}
	if r := d.verify(); len(r.Problems) > 0 {
		t.Errorf("problems: %+v", r.Problems)
	}
}

// An attempt that asks for less may hold; what it leaves out is said.
func TestVerifyTellsWhatWasNotAskedFor(t *testing.T) {
	r := damage(t).verify()
	if len(r.Problems) > 0 || !slices.Contains(r.Unasked, "08-control") || slices.Contains(r.Unasked, "03-stdio") {
		t.Errorf("problems %+v, not asked for %v", r.Problems, r.Unasked)
	}
}
