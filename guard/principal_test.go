package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"mcpreplay/guard"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	aliceToken = "alice-0123456789abcdef"
	bobToken   = "bob-0123456789abcdef00"
)

// post sends one tools/call as raw HTTP and returns status and body.
func post(t *testing.T, url, token, tool, rest string) (int, string) {
	t.Helper()
	return postLine(t, url, token, tool, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s,"name":%q,%s}}`, metaModern, tool, rest))
}

func postLine(t *testing.T, url, token, tool, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
	} {
		req.Header.Set(k, v)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// Two principals of one server can neither read, replay, take nor fence each
// other's operation; all that one may learn is that an id is taken, and only by
// trying to write.
func TestPrincipalsOverHTTPAreApart(t *testing.T) {
	f := newFixture(t)
	handler, err := guard.HTTPHandler(payServer(f, nil), &guard.HTTPOptions{Tokens: map[string]string{aliceToken: "alice", bobToken: "bob"}})
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(handler)
	defer ts.Close()
	pay := `"arguments":{"operation_id":"pay-1","amount":1}`
	ask := `"arguments":{"operation_id":"pay-1"}`

	if code, body := post(t, ts.URL, aliceToken, "pay", pay); code != 200 || !strings.Contains(body, `"replayed":false`) {
		t.Fatalf("alice pays: %d %s", code, body)
	}
	if code, body := post(t, ts.URL, aliceToken, "pay", pay); code != 200 || !strings.Contains(body, `"replayed":true`) {
		t.Errorf("alice repeats: %d %s", code, body)
	}
	for _, door := range []struct{ tool, rest string }{{"pay", pay}, {"pay", `"arguments":{"operation_id":"pay-1","amount":2}`}, {"fence_operation", ask}} {
		code, body := post(t, ts.URL, bobToken, door.tool, door.rest)
		if code != 400 || !strings.Contains(body, `"operation_conflict"`) || strings.Contains(body, "alice") || strings.Contains(body, "differs") || strings.Contains(body, "paid") {
			t.Errorf("bob at %s: %d %s, want a bare conflict", door.tool, code, body)
		}
	}
	// What bob sees of alice's operation is what he sees of none.
	for _, tool := range []string{"get_operation_status", "acknowledge_operation"} {
		_, taken := post(t, ts.URL, bobToken, tool, ask)
		_, absent := post(t, ts.URL, bobToken, tool, `"arguments":{"operation_id":"pay-2"}`)
		if strings.ReplaceAll(absent, "pay-2", "pay-1") != taken || !strings.Contains(taken, `"state":"unknown"`) {
			t.Errorf("%s, told to bob of a taken and of an absent id:\n%s\n%s", tool, taken, absent)
		}
	}
	if _, list := post(t, ts.URL, bobToken, "list_my_operations", `"arguments":{}`); !strings.Contains(list, `"operations":[]`) {
		t.Errorf("bob's list: %s", list)
	}
	for _, token := range []string{"", "mallory-0123456789abcdef"} {
		if code, body := post(t, ts.URL, token, "get_operation_status", ask); code != 401 || strings.Contains(body, "result") {
			t.Errorf("token %q: %d %s, want 401", token, code, body)
		}
	}
	if got := f.payments("") + f.operations(); got != "pay-1 | 1\npay-1 | applied\n" {
		t.Errorf("the file holds:\n%s", got)
	}
}

// Request state is sealed for its principal.
func TestRequestStateOfAnotherPrincipalIsRefused(t *testing.T) {
	f := newFixture(t)
	handler, err := guard.HTTPHandler(payServer(f, nil), &guard.HTTPOptions{Tokens: map[string]string{aliceToken: "alice", bobToken: "bob"}})
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(handler)
	defer ts.Close()
	_, asked := post(t, ts.URL, aliceToken, "pay", `"arguments":{"amount":1}`)
	var reply struct{ Result struct{ RequestState string } }
	if err := json.NewDecoder(bytes.NewReader([]byte(asked))).Decode(&reply); err != nil || reply.Result.RequestState == "" {
		t.Fatalf("handshake: %s (%v)", asked, err)
	}
	rest := fmt.Sprintf(`"arguments":{"amount":1},"requestState":%q`, reply.Result.RequestState)
	if code, body := post(t, ts.URL, bobToken, "pay", rest); code != 400 || !strings.Contains(body, "Invalid or expired requestState") {
		t.Errorf("bob with alice's state: %d %s", code, body)
	}
	if code, body := post(t, ts.URL, aliceToken, "pay", rest); code != 200 || !strings.Contains(body, `"state":"applied"`) {
		t.Errorf("alice with her own: %d %s", code, body)
	}
}

// A handler mounted without authentication has no principal, whatever the guard
// calls its local one.
func TestHTTPWithoutAuthenticationIsNobody(t *testing.T) {
	f := newFixture(t)
	server := payServer(f, nil)
	ts := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
	defer ts.Close()
	for _, tool := range []string{"pay", "get_operation_status", "fence_operation", "acknowledge_operation", "list_my_operations"} {
		code, body := post(t, ts.URL, "", tool, `"arguments":{"operation_id":"pay-1","amount":1}`)
		if code != 400 || !strings.Contains(body, "principal_required") {
			t.Errorf("%s: %d %s, want principal_required", tool, code, body)
		}
	}
	if got := f.payments("") + f.operations(); got != "" {
		t.Errorf("the file holds:\n%s", got)
	}
}
