package guard_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"mcpreplay/guard"
)

// A legacy client is asked by the SDK in the middle of its call, and once: a tool
// that wants to know more is refused before any effect, not left to look like an
// empty success.
func TestALegacyClientCannotBeAskedTwice(t *testing.T) {
	f := newFixture(t)
	server := newServer()
	guard.AddTool(f.guard(f.store, nil), server, payTool(), guard.Ask(askTwice, guard.Atomic(f.store, pay)))
	inR, in := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- (&guard.Stdio{In: inR, Out: outW}).Run(context.Background(), server) }()
	out := bufio.NewScanner(outR)
	exchange := func(send string) string {
		t.Helper()
		fmt.Fprintln(in, send)
		if !out.Scan() {
			t.Fatalf("no reply to %s", send)
		}
		return out.Text()
	}
	exchange(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"legacy","version":"1"}}}`)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	asked := exchange(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"pay","arguments":{"operation_id":"pay-1","amount":1}}}`)
	if !strings.Contains(asked, "Which account?") {
		t.Fatalf("the first question: %s", asked)
	}
	refused := exchange(`{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"name":"savings"}}}`)
	if !strings.Contains(refused, `"message":"unsupported continuation: `) || !strings.Contains(refused, `"id":2`) {
		t.Errorf("the second question: %s", refused)
	}
	in.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := f.payments("") + f.operations(); got != "" {
		t.Errorf("the file holds:\n%s", got)
	}
}

// Over stateless HTTP the SDK cannot ask a legacy client at all. What needs no
// question is served to it.
func TestALegacyClientOverHTTPIsNotAsked(t *testing.T) {
	f := newFixture(t)
	server := payServer(f, nil)
	asking := payTool()
	asking.Name = "ask"
	guard.AddTool(f.guard(f.store, nil), server, asking, guard.Ask(askTwice, guard.Atomic(f.store, pay)))
	handler, err := guard.HTTPHandler(server, &guard.HTTPOptions{Tokens: map[string]string{aliceToken: "alice"}})
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(handler)
	defer ts.Close()
	call := func(tool, id string) string {
		t.Helper()
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{"operation_id":%q,"amount":1}}}`, tool, id)
		req, err := http.NewRequest(http.MethodPost, ts.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Authorization": "Bearer " + aliceToken, "MCP-Protocol-Version": "2025-11-25"} {
			req.Header.Set(k, v)
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
		return string(text)
	}
	if got := call("ask", "ask-1"); !strings.Contains(got, `"message":"unsupported continuation: this client cannot be asked over this connection"`) {
		t.Errorf("a question: %s", got)
	}
	if got := call("pay", "pay-1"); !strings.Contains(got, `"state":"applied"`) {
		t.Errorf("no question: %s", got)
	}
	if got := f.payments(""); got != "pay-1 | 1\n" {
		t.Errorf("effects: %q", got)
	}
}
