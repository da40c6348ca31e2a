package guard_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A fleet is rolled from each stage of a rotation to the next: at every moment some
// servers have the file of before. State that one sealed opens at the other, and what
// one recorded is replayed by the other, never a conflict.
func TestARotationBreaksNoFleet(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(t.TempDir(), "keys")
	if _, err := guard.KeyFile(path); err != nil {
		t.Fatal(err)
	}
	change := func(do func(mcpreplay.KeyFile) (mcpreplay.KeyFile, error)) {
		t.Helper()
		if _, err := guard.RewriteKeyFile(path, do); err != nil {
			t.Fatal(err)
		}
	}
	server := func() *mcp.ClientSession {
		t.Helper()
		ring, err := guard.KeyFile(path)
		if err != nil {
			t.Fatal(err)
		}
		store := f.open()
		s := newServer()
		g := f.guard(store, func(o *guard.Options) { o.Keys = ring })
		guard.AddTool(g, s, payTool(), guard.Atomic(store, pay))
		g.Install(s)
		return connect(t, s, &mcp.ClientOptions{MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true}})
	}
	var old, fresh []string
	stages := []func(){
		func() {
			change(func(k mcpreplay.KeyFile) (_ mcpreplay.KeyFile, err error) {
				for _, use := range []mcpreplay.KeyUse{mcpreplay.UseState, mcpreplay.UseFingerprint} {
					e := mcpreplay.NewKeyEntry(use, mcpreplay.KeyNext, time.Now())
					old, fresh = append(old, k[0].ID), append(fresh, e.ID)
					if k, err = k.With(e); err != nil {
						return nil, err
					}
				}
				return k, nil
			})
		},
		func() {
			for _, id := range fresh {
				change(func(k mcpreplay.KeyFile) (mcpreplay.KeyFile, error) { return k.Promote(id, time.Now()) })
			}
		},
	}
	first := server()
	mustCall(t, first, "pay", `{"operation_id":"of-the-start","amount":1}`)
	sealed := mustCall(t, first, "pay", `{"amount":7}`).RequestState
	n := 0
	cross := func(a, b *mcp.ClientSession) {
		t.Helper()
		n++
		id := "pay-" + strings.Repeat("x", n)
		mustCall(t, a, "pay", `{"operation_id":"`+id+`","amount":2}`)
		if res := mustCall(t, b, "pay", `{"operation_id":"`+id+`","amount":2}`); !replayed(res) {
			t.Errorf("stage %d: not a replay: %s", n, text(res))
		}
		asked := mustCall(t, a, "pay", `{"amount":3}`)
		res, err := b.CallTool(t.Context(), &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"amount":3}`), RequestState: asked.RequestState})
		if err != nil || res.IsError {
			t.Errorf("stage %d: state of the other server: %v, %v", n, res, err)
		}
		if res := mustCall(t, b, "pay", `{"operation_id":"of-the-start","amount":1}`); !replayed(res) {
			t.Errorf("stage %d: what was recorded at the start: %s", n, text(res))
		}
	}
	before := first
	for _, stage := range stages {
		stage()
		after := server()
		cross(before, after)
		cross(after, before)
		before = after
	}
	// Retired: what only the old keys could tell is refused, and status still works.
	for _, id := range old[:1] {
		change(func(k mcpreplay.KeyFile) (mcpreplay.KeyFile, error) { return k.Retire(id) })
	}
	last := server()
	was := f.payments("")
	if _, err := call(last, "pay", `{"operation_id":"of-the-start","amount":1}`, nil); reason(err) != "key_retired" {
		t.Errorf("under a retired key: %v", err)
	}
	if o := observed(t, last, "of-the-start"); o.State != mcpreplay.StateApplied {
		t.Errorf("status under a retired key: %s, %s", o.State, o.Detail)
	}
	_, err := last.CallTool(t.Context(), &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(`{"amount":7}`), RequestState: sealed})
	if reason(err) != "invalid_request_state" {
		t.Errorf("state under a retired key: %v", err)
	}
	if got := f.payments(""); got != was {
		t.Errorf("effects went from %q to %q", was, got)
	}
}

func TestKeyFilesAreRewrittenWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "keys")
	if _, err := guard.KeyFile(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const writers = 8
	for i := range writers { // none loses another's key
		wg.Go(func() {
			at := path
			if i%2 == 0 {
				at = filepath.Join(dir, "link")
			}
			_, err := guard.RewriteKeyFile(at, func(k mcpreplay.KeyFile) (mcpreplay.KeyFile, error) {
				return k.With(mcpreplay.NewKeyEntry(mcpreplay.UseState, mcpreplay.KeyNext, time.Now()))
			})
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := guard.ReadKeyFile(path); err != nil {
				t.Errorf("read meanwhile: %v", err)
			}
		})
	}
	wg.Wait()
	keys, err := guard.ReadKeyFile(path)
	if err != nil || len(keys) != writers+2 {
		t.Errorf("%d keys, %v; want %d", len(keys), err, writers+2)
	}
	info, err := os.Lstat(filepath.Join(dir, "link"))
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	if _, err := guard.RewriteKeyFile(path, func(mcpreplay.KeyFile) (mcpreplay.KeyFile, error) { return nil, no }); !errors.Is(err, no) {
		t.Errorf("a change that fails: %v", err)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != string(text) {
		t.Error("a change that failed changed the file")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".keys-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for name, put := range map[string]func(string) error{
		"a directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"huge":        func(p string) error { return os.WriteFile(p, make([]byte, 2<<20), 0o600) },
		"open to all": func(p string) error { return os.WriteFile(p, text, 0o644) },
		"empty":       func(p string) error { return os.WriteFile(p, nil, 0o600) },
	} {
		p := filepath.Join(t.TempDir(), "keys")
		if err := put(p); err != nil {
			t.Fatal(err)
		}
		if _, err := guard.KeyFile(p); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
