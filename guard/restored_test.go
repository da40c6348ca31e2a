package guard_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// After a declared restore an id that was minted before it, and has no record, is
// no new work: it may have been done since the backup. It cannot be fenced either.
// A running server learns of the restore by itself.
func TestMintedIDsOfBeforeARestoreAreUnknown(t *testing.T) {
	for _, when := range []string{"while it runs", "before it starts"} {
		t.Run(when, func(t *testing.T) {
			f := newFixture(t)
			keys := ring(t, stateSecret)
			var cs *mcp.ClientSession
			start := func() { cs = connect(t, payServer(f, func(o *guard.Options) { o.Retention = 48 * time.Hour }), nil) }
			start()
			kept := keys.MintID(time.Unix(f.clock.Load(), 0))
			args := func(id string) string { return `{"operation_id":"` + id + `","amount":1}` }
			mustCall(t, cs, "pay", args(kept))
			f.clock.Add(3600)
			early := keys.MintID(time.Unix(f.clock.Load()-1, 0))
			late := keys.MintID(time.Unix(f.clock.Load()+59, 0)) // by a clock that was ahead
			if _, err := f.store.DeclareRestore(t.Context(), "olga", "the disk broke"); err != nil {
				t.Fatal(err)
			}
			if when == "before it starts" {
				start()
			}
			foreign := ring(t, []byte(strings.Repeat("x", 32))).MintID(time.Unix(f.clock.Load()-1, 0)) // its key is retired
			for _, id := range []string{early, late, foreign} {
				mustCall(t, cs, "fence_operation", `{"operation_id":"`+id+`","reason":"gave up"}`)
				res := mustCall(t, cs, "pay", args(id))
				said, _ := res.StructuredContent.(map[string]any)
				if !res.IsError || said["code"] != "operation_unknown" {
					t.Errorf("%s: %q, %v; want operation_unknown", id, text(res), said)
				}
				if obs := status(t, cs, id); obs.State != mcpreplay.StateUnknown || obs.NewOperationSafe {
					t.Errorf("%s: status tells %+v", id, obs)
				}
			}
			if res := mustCall(t, cs, "pay", args(kept)); !replayed(res) {
				t.Error("what the backup holds was not replayed")
			}
			if got, want := f.payments(""), kept+" | 1\n"; got != want {
				t.Errorf("the file holds %q, want %q", got, want)
			}
			// What comes after is new work: without an id, with one that was minted
			// since, and with one that the caller chose.
			f.clock.Add(61)
			fresh := keys.MintID(time.Unix(f.clock.Load(), 0))
			for _, a := range []string{`{"amount":2}`, args(fresh), args("chosen-1")} {
				if res := mustCall(t, cs, "pay", a); res.IsError || replayed(res) {
					t.Errorf("pay %s: %q", a, text(res))
				}
			}
			mustCall(t, cs, "fence_operation", `{"operation_id":"`+keys.MintID(time.Unix(f.clock.Load(), 0))+`"}`)
		})
	}
}

// A keyless call works right after the restore: its request state tells of which
// incarnation its id is.
func TestKeylessCallsRightAfterARestore(t *testing.T) {
	f := newFixture(t)
	cs := connect(t, payServer(f, nil), nil)
	if _, err := f.store.DeclareRestore(t.Context(), "olga", "the disk broke"); err != nil {
		t.Fatal(err)
	}
	if res := mustCall(t, cs, "pay", `{"amount":1}`); res.IsError {
		t.Errorf("it got %q", text(res))
	}
}

// unlisted is a ledger whose restores cannot be read once it was looked at.
type unlisted struct {
	*sqlite.Store
	looked bool
}

func (s *unlisted) Info(ctx context.Context) (mcpreplay.Info, error) {
	if s.looked {
		return mcpreplay.Info{}, mcpreplay.ErrUnavailable
	}
	s.looked = true
	return s.Store.Info(ctx)
}

// Where it cannot be told whether an id is of before a restore, nothing is done.
func TestRestoresThatCannotBeRead(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	g := f.guard(&unlisted{Store: f.store}, nil)
	guard.AddTool(g, server, payTool(), guard.Atomic(f.store, pay))
	g.Install(server)
	cs := connect(t, server, nil)
	if _, err := f.store.DeclareRestore(t.Context(), "olga", "the disk broke"); err != nil {
		t.Fatal(err)
	}
	id := ring(t, stateSecret).MintID(time.Unix(f.clock.Load(), 0))
	if _, err := call(cs, "pay", `{"operation_id":"`+id+`","amount":1}`, nil); reason(err) != "ledger_unavailable" {
		t.Errorf("pay: %v", err)
	}
	if _, err := call(cs, "fence_operation", `{"operation_id":"`+id+`"}`, nil); reason(err) != "ledger_unavailable" {
		t.Errorf("fence: %v", err)
	}
	if got := f.payments("") + f.operations(); got != "" {
		t.Errorf("the file holds:\n%s", got)
	}
}
