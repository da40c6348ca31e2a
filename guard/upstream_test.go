package guard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// An upstream does what it is asked to and then loses its reply in 40 of 100 calls. With
// a reconciler nothing stays unknown; without one just what was lost does. Either way
// each operation is done once, however often it is sent.
func TestAnUpstreamThatLosesItsReplies(t *testing.T) {
	const calls, callers = 1000, 8
	for _, reconciled := range []bool{false, true} {
		t.Run(fmt.Sprintf("reconciled %t", reconciled), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			dice := rand.New(rand.NewPCG(40, 100))
			done, drops := map[string]int{}, 0
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				mu.Lock()
				defer mu.Unlock()
				name := r.URL.Query().Get("name")
				if r.Method == http.MethodGet {
					if done[name] == 0 {
						http.NotFound(w, r)
					}
					return
				}
				done[name]++
				if dice.IntN(100) < 40 {
					drops++
					panic(http.ErrAbortHandler)
				}
			}))
			defer upstream.Close()
			ask := func(ctx context.Context, method string, op *guard.Op) (int, error) {
				req, err := http.NewRequestWithContext(ctx, method, upstream.URL+"/?name="+op.ID, http.NoBody)
				if err != nil {
					return 0, err
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					return 0, err
				}
				return res.StatusCode, res.Body.Close()
			}
			effect := guard.External(func(ctx context.Context, op *guard.Op, in payment) (receipt, error) {
				if _, err := ask(ctx, http.MethodPost, op); err != nil {
					return receipt{}, err
				}
				return paid(op, in)
			})
			if reconciled {
				effect = guard.Reconcile(func(ctx context.Context, op *guard.Op, in payment) (guard.Finding[receipt], error) {
					status, err := ask(ctx, http.MethodGet, op)
					if err != nil {
						return guard.Finding[receipt]{}, err
					}
					if status == http.StatusNotFound {
						return guard.Absent[receipt]("it is not there"), nil
					}
					r, err := paid(op, in)
					return guard.Found(r, "it is there"), err
				}, effect)
			}
			f := newFixture(t)
			cs, g := f.external(effect, func(o *guard.Options) { o.Lease = 5 * time.Second })
			send := func(n int) *mcp.CallToolResult {
				res, err := call(cs, "pay", fmt.Sprintf(`{"operation_id":"pay-%04d","amount":%d}`, n, n), nil)
				if err != nil {
					t.Errorf("call %d: %v", n, err)
					return &mcp.CallToolResult{}
				}
				return res
			}
			unknown := make([]bool, calls)
			for range 2 { // each is sent again, whatever was told
				var wg sync.WaitGroup
				for c := range callers {
					wg.Go(func() {
						for n := c; n < calls; n += callers {
							unknown[n] = isUnknown(send(n))
						}
					})
				}
				wg.Wait()
			}
			if _, err := g.Recover(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			left := 0
			for _, u := range unknown {
				if u {
					left++
				}
			}
			want := drops
			if reconciled {
				want = 0
			}
			effects := 0
			for _, n := range done {
				effects += n
			}
			text, _ := json.Marshal(map[string]int{"effects": effects, "drops": drops, "unknown": left})
			if effects != calls || len(done) != calls || left != want || drops < calls/4 {
				t.Errorf("%s; want %d effects, and %d unknown", text, calls, want)
			}
			t.Logf("%s", text)
		})
	}
}
