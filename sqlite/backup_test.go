package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/sqlite"
)

// A copy that is made while another process writes is one state of the ledger: all
// that was acknowledged before, and no operation without its effect.
func TestBackupWhileOthersWrite(t *testing.T) {
	t.Parallel()
	path, out := newPath(t), newPath(t)
	s := openStore(t, path, nil)
	writer := spawn(t, "crash", path, "busy")
	var acknowledged []string
	for len(acknowledged) < 200 && writer.out.Scan() {
		acknowledged = append(acknowledged, writer.out.Text())
	}
	before, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Backup(t.Context(), out)
	if err != nil {
		t.Fatal(err)
	}
	more := 0
	for more < 50 && writer.out.Scan() { // nobody was kept from writing
		more++
	}
	writer.cmd.Process.Kill()
	writer.cmd.Wait()
	if more < 50 {
		t.Errorf("the other process wrote %d more: %s", more, writer.stderr.String())
	}
	fi, err := os.Stat(out)
	if err != nil || fi.Mode() != 0o600 || fi.Size() != b.Bytes {
		t.Errorf("the copy is %v, %v", fi, err)
	}
	if list, err := os.ReadDir(filepath.Dir(out)); err != nil || len(list) != 1 {
		t.Errorf("beside it lie %v, %v", list, err)
	}
	copied := openStore(t, out, &sqlite.Options{ReadOnly: true})
	verify(t, copied)
	info, err := copied.Info(t.Context())
	if err != nil || info.Ref() != b.Ledger.Ref() || info.Ref().Instance != before.Instance || info.Position < before.Position {
		t.Errorf("the copy is %+v, %v, said to be %+v", info, err, b.Ledger.Ref())
	}
	if n := query[int64](t, out, "SELECT count(*) FROM mcpreplay_operations"); n != b.Operations || n != query[int64](t, out, "SELECT count(*) FROM item") {
		t.Errorf("the copy has %d operations, said to be %d, or not an effect for each", n, b.Operations)
	}
	if n := missing(t, out, acknowledged[:200]); n != 0 {
		t.Errorf("%d acknowledged operations are missing", n)
	}
}

// Nothing is ever overwritten, and what fails leaves nothing.
func TestBackupRefuses(t *testing.T) {
	t.Parallel()
	s := openStore(t, newPath(t), nil)
	apply(t, s, "op-1")
	for _, name := range []string{"", "-wal"} {
		out := newPath(t)
		if err := os.WriteFile(out+name, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Backup(t.Context(), out); !errors.Is(err, fs.ErrExist) {
			t.Errorf("beside ledger.db%s: %v", name, err)
		}
		if text, err := os.ReadFile(out + name); err != nil || string(text) != "mine" {
			t.Errorf("ledger.db%s was changed: %q, %v", name, text, err)
		}
	}
	if _, err := s.Backup(t.Context(), filepath.Join(t.TempDir(), "none", "ledger.db")); err == nil {
		t.Error("a copy was made in a directory that is not there")
	}
	out := newPath(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Backup(ctx, out); err == nil {
		t.Error("a copy was made though it was cancelled")
	}
	if list, err := os.ReadDir(filepath.Dir(out)); err != nil || len(list) != 0 {
		t.Errorf("what failed leaves %v, %v", list, err)
	}
}

// backedUp is a ledger with op-kept, and its backup; then op-lost came.
func backedUp(t *testing.T) (path, backup string) {
	t.Helper()
	path, backup = newPath(t), newPath(t)
	s, err := openAlone(path, "issues")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, "op-kept")
	if _, err := s.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	apply(t, s, "op-lost")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path, backup
}

func holds(t *testing.T, path string) (ids []string, info mcpreplay.Info) {
	t.Helper()
	s := openStore(t, path, nil)
	defer s.Close()
	verify(t, s)
	for _, rec := range all(t, s) {
		ids = append(ids, rec.ID)
	}
	slices.Sort(ids)
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ids, info
}

var restoring = sqlite.Restoring{Actor: "olga", Reason: "the disk broke"}

func replacing() sqlite.Restoring {
	o := restoring
	o.Replace = true
	return o
}

func TestRestore(t *testing.T) {
	t.Parallel()
	for _, replace := range []bool{false, true} {
		path, backup := backedUp(t)
		before, err := os.ReadFile(backup)
		if err != nil {
			t.Fatal(err)
		}
		o := restoring
		if o.Replace = replace; !replace {
			path = newPath(t)
		}
		r, err := sqlite.Restore(t.Context(), backup, path, o)
		if err != nil {
			t.Fatal(err)
		}
		ids, info := holds(t, path)
		if !slices.Equal(ids, []string{"op-kept"}) || info.Incarnation != 2 || info.Position < 1<<32 || info.Ref() != r.Ledger.Ref() || r.Report.Operations != 1 {
			t.Errorf("it holds %v as %+v, said to be %+v", ids, info, r)
		}
		if last := info.Restores[0]; last.Actor != "olga" || last.Reason != "the disk broke" || last.After != 1 {
			t.Errorf("it was declared as %+v", last)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
			t.Errorf("the ledger is %v, %v", fi, err)
		}
		if after, err := os.ReadFile(backup); err != nil || string(after) != string(before) {
			t.Errorf("the backup was changed (%v)", err)
		}
		if replace {
			if ids, info := holds(t, r.Replaced); !slices.Equal(ids, []string{"op-kept", "op-lost"}) || info.Incarnation != 1 {
				t.Errorf("aside lies %v, incarnation %d", ids, info.Incarnation)
			}
		}
		if _, err := sqlite.Restore(t.Context(), backup, path, restoring); !errors.Is(err, fs.ErrExist) {
			t.Errorf("restored over a ledger: %v", err)
		}
	}
}

// A refused restore leaves everything as it was.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	type places struct{ path, backup string }
	for name, tt := range map[string]struct {
		prepare func(*testing.T, *places)
		want    error
		text    string
	}{
		"no backup":    {func(t *testing.T, p *places) { p.backup = newPath(t) }, fs.ErrNotExist, ""},
		"a directory":  {func(t *testing.T, p *places) { p.backup = t.TempDir() }, nil, "no regular file"},
		"the ledger":   {func(t *testing.T, p *places) { p.backup = p.path }, nil, "the ledger itself"},
		"no directory": {func(t *testing.T, p *places) { p.path = filepath.Join(newPath(t), "x.db") }, fs.ErrNotExist, ""},
		"no database": {func(t *testing.T, p *places) {
			p.backup = newPath(t)
			if err := os.WriteFile(p.backup, []byte(strings.Repeat("x", 8192)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, sqlite.ErrNotSound, ""},
		"a half": {func(t *testing.T, p *places) {
			for i := range 200 {
				s := openStore(t, p.path, nil)
				apply(t, s, fmt.Sprintf("op-more-%d", i))
				if i == 199 {
					p.backup = newPath(t)
					if _, err := s.Backup(t.Context(), p.backup); err != nil {
						t.Fatal(err)
					}
				}
				s.Close()
			}
			fi, err := os.Stat(p.backup)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(p.backup, fi.Size()/4096/2*4096); err != nil {
				t.Fatal(err)
			}
		}, sqlite.ErrNotSound, ""},
		"changed history": {func(t *testing.T, p *places) {
			meddle(t, p.backup, "UPDATE mcpreplay_operations SET state = 'partial'")
		}, sqlite.ErrNotSound, "op-kept: state"},
		"another backend": {func(t *testing.T, p *places) {
			other, err := sqlite.Open(newPath(t), &sqlite.Options{Backend: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			p.backup = newPath(t)
			if _, err := other.Backup(t.Context(), p.backup); err != nil {
				t.Fatal(err)
			}
		}, nil, `"issues", and the backup one of "orders"`},
		"a live copy": {func(t *testing.T, p *places) {
			s := openStore(t, p.backup, nil) // stays open, with its log
			apply(t, s, "op-more")
		}, nil, "has a log"},
		"in use": {func(t *testing.T, p *places) { openStore(t, p.path, nil) }, sqlite.ErrInUse, ""},
		"looked at": {func(t *testing.T, p *places) {
			if _, err := openStore(t, p.path, &sqlite.Options{ReadOnly: true}).Info(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, sqlite.ErrInUse, ""},
		"a stray log": {func(t *testing.T, p *places) {
			p.path = newPath(t)
			if err := os.WriteFile(p.path+"-wal", []byte("left"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, fs.ErrExist, "-wal"},
		"nobody": {func(*testing.T, *places) {}, nil, "who declares it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p places
			p.path, p.backup = backedUp(t)
			tt.prepare(t, &p)
			before := tree(t, filepath.Dir(p.path))
			o := replacing()
			if name == "nobody" {
				o.Reason = ""
			}
			_, err := sqlite.Restore(t.Context(), p.backup, p.path, o)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("Restore() = %v, want %v %q", err, tt.want, tt.text)
			}
			if after := tree(t, filepath.Dir(p.path)); after != before {
				t.Errorf("it left\n%s, before was\n%s", after, before)
			}
		})
	}
}

// tree lists the files of a directory, without the index of a log, which SQLite
// makes as it likes.
func tree(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err.Error()
	}
	var text strings.Builder
	for _, f := range list {
		if fi, err := f.Info(); err == nil && !strings.HasSuffix(f.Name(), "-shm") && (fi.Size() > 0 || !strings.HasSuffix(f.Name(), "-wal")) {
			fmt.Fprintln(&text, f.Name(), fi.Size())
		}
	}
	return text.String()
}

// A backup that is restored twice is another incarnation each time.
func TestRestoreTwice(t *testing.T) {
	t.Parallel()
	path, backup := backedUp(t)
	for want := int64(2); want < 5; want++ {
		r, err := sqlite.Restore(t.Context(), backup, path, replacing())
		if err != nil || r.Ledger.Incarnation != want {
			t.Errorf("incarnation %d, %v; want %d", r.Ledger.Incarnation, err, want)
		}
		holds(t, path)
	}
	o := restoring
	o.After = 9
	r, err := sqlite.Restore(t.Context(), backup, newPath(t), o)
	if err != nil || r.Ledger.Incarnation != 10 {
		t.Errorf("incarnation %d, %v; want 10", r.Ledger.Incarnation, err)
	}
}

// A recorded contradiction is a fact of the world and no fault of the backup.
func TestRestoreKeepsContradictions(t *testing.T) {
	t.Parallel()
	path, backup := backedUp(t)
	s := openStore(t, path, nil)
	rec, err := s.Get(t.Context(), key("op-kept"))
	if err == nil {
		_, err = s.Advance(t.Context(), mcpreplay.Change{Key: rec.Key, Revision: rec.Revision,
			Event: mcpreplay.Event{Kind: mcpreplay.EventContradiction, Actor: "late", Evidence: "it failed"}})
	}
	backup += ".2"
	if err == nil {
		_, err = s.Backup(t.Context(), backup)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := sqlite.Restore(t.Context(), backup, newPath(t), restoring)
	if err != nil || len(r.Report.Findings) != 1 {
		t.Errorf("Restore() = %+v, %v", r, err)
	}
}

var errCrash = errors.New("the process ends here")

// Wherever a restore is cut off there is the old ledger, which may have to be told
// apart from its second name, or the declared one; never another. Restoring again
// then works.
func TestRestoreThatIsCutOff(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"copied", "declared", "linked", "log aside", "placed"} {
		for _, replace := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", point, replace), func(t *testing.T) {
				t.Parallel()
				path, backup := backedUp(t)
				o := restoring
				if o.Replace = replace; !replace {
					path = newPath(t)
				}
				reached := false
				_, err := sqlite.RestoreAt(t.Context(), backup, path, o, func(p string) error {
					if reached = reached || p == point; p == point {
						return errCrash
					}
					return nil
				})
				if !reached && !replace && (point == "linked" || point == "log aside") {
					return // only what is replaced is moved
				}
				if !errors.Is(err, errCrash) {
					t.Fatalf("it was not cut off: %v", err)
				}
				switch {
				case point == "placed":
					if ids, info := holds(t, path); len(ids) != 1 || info.Incarnation != 2 {
						t.Errorf("it holds %v, incarnation %d", ids, info.Incarnation)
					}
					return
				case !replace:
					if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("there is something: %v", err)
					}
				case point == "linked" || point == "log aside":
					if _, err := sqlite.Open(path, &sqlite.Options{Backend: "issues"}); !errors.Is(err, mcpreplay.ErrUnavailable) && !errors.Is(err, mcpreplay.ErrIncompatible) {
						t.Errorf("the old one was opened under two names: %v", err)
					}
					asides, err := filepath.Glob(path + ".replaced-*")
					if err != nil || len(asides) == 0 {
						t.Fatal(asides, err)
					}
					back := newPath(t) // one name is as good as the other
					if err := errors.Join(os.Rename(path, back), os.Remove(asides[0])); err != nil {
						t.Fatal(err)
					}
					if ids, info := holds(t, back); len(ids) != 2 || info.Incarnation != 1 {
						t.Errorf("the old one holds %v, incarnation %d", ids, info.Incarnation)
					}
					if err := errors.Join(os.Link(back, path), os.Link(back, path+".replaced-again")); err != nil {
						t.Fatal(err)
					}
				default:
					if ids, info := holds(t, path); len(ids) != 2 || info.Incarnation != 1 {
						t.Errorf("the old one holds %v, incarnation %d", ids, info.Incarnation)
					}
				}
				if _, err := sqlite.Restore(t.Context(), backup, path, o); err != nil {
					t.Fatal(err)
				}
				if ids, info := holds(t, path); len(ids) != 1 || info.Incarnation != 2 {
					t.Errorf("restored again, it holds %v, incarnation %d", ids, info.Incarnation)
				}
			})
		}
	}
}

// A ledger whose server was killed has a part of itself in its log. What is moved
// aside is whole, also where the restore is cut off and its new name taken away.
func TestRestoreReplacesWhatWasKilled(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		_, backup := backedUp(t)
		path := newPath(t)
		writer := spawn(t, "crash", path, "busy")
		var acknowledged []string
		for len(acknowledged) < 100 && writer.out.Scan() {
			acknowledged = append(acknowledged, writer.out.Text())
		}
		writer.cmd.Process.Kill()
		writer.cmd.Wait()
		if log, err := os.Stat(path + "-wal"); err != nil || log.Size() == 0 {
			t.Fatalf("there is nothing in its log: %v", err)
		}
		whole := path
		r, err := sqlite.RestoreAt(t.Context(), backup, path, replacing(), func(p string) error {
			if cut && p == "log aside" {
				return errCrash
			}
			return nil
		})
		switch {
		case !cut && err == nil:
			whole = r.Replaced
		case cut && errors.Is(err, errCrash):
			for _, side := range []string{"", "-wal"} {
				if err := os.Remove(r.Replaced + side); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
		default:
			t.Fatal(err)
		}
		ids, _ := holds(t, whole)
		for _, id := range acknowledged {
			if !slices.Contains(ids, id) {
				t.Errorf("cut off %v: %s is gone", cut, id)
			}
		}
	}
}

// A ledger that is damaged beyond opening is moved aside with its log.
func TestRestoreReplacesWhatIsDamaged(t *testing.T) {
	t.Parallel()
	path, backup := backedUp(t)
	for name, text := range map[string]string{"": strings.Repeat("x", 8192), "-wal": "what is left of its log"} {
		if err := os.WriteFile(path+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, err := sqlite.Restore(t.Context(), backup, path, replacing())
	if err != nil {
		t.Fatal(err)
	}
	if ids, _ := holds(t, path); len(ids) != 1 {
		t.Errorf("it holds %v", ids)
	}
	for name, want := range map[string]string{"": strings.Repeat("x", 8192), "-wal": "what is left of its log"} {
		if text, err := os.ReadFile(r.Replaced + name); err != nil || string(text) != want {
			t.Errorf("aside%s: %.30q, %v", name, text, err)
		}
	}
}

// A backup of long ago is refused as a wrong clock would be, unless that is allowed.
func TestRestoreOfLongAgo(t *testing.T) {
	t.Parallel()
	_, backup := backedUp(t)
	o := restoring
	o.Clock = func() time.Time { return time.Now().AddDate(3, 0, 0) }
	if _, err := sqlite.Restore(t.Context(), backup, newPath(t), o); !errors.Is(err, mcpreplay.ErrClock) {
		t.Errorf("Restore() = %v, want %v", err, mcpreplay.ErrClock)
	}
	o.MaxClockJump = -1
	if _, err := sqlite.Restore(t.Context(), backup, newPath(t), o); err != nil {
		t.Error(err)
	}
}
