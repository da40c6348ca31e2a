package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The metrics of a server are at an address of their own, and its health at the one it
// serves on.
func TestAServerTellsHowItIs(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errR, errW := io.Pipe()
	e := &env{stdin: strings.NewReader(""), stdout: io.Discard, stderr: errW, getenv: func(string) string { return "" }}
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, e, []string{"serve", "--ledger", "sqlite:" + filepath.Join(t.TempDir(), "l.db"), "--http", ":0", "--metrics", ":0", "--token", "alice=abcdefghijklmnopqrst"})
		errW.Close()
	}()
	var serving, metrics string
	lines := bufio.NewScanner(errR)
	for (serving == "" || metrics == "") && lines.Scan() {
		if m := regexp.MustCompile(`^metrics on (\S+)$`).FindStringSubmatch(lines.Text()); m != nil {
			metrics = m[1]
		}
		if m := regexp.MustCompile(`^serving on (\S+)$`).FindStringSubmatch(lines.Text()); m != nil {
			serving = m[1]
		}
	}
	go io.Copy(io.Discard, errR)
	get := func(url string) (int, string) {
		t.Helper()
		res, err := http.Get(url)
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
	for _, path := range []string{"/healthz", "/readyz"} {
		if status, text := get(serving + path); status != http.StatusOK || text != "ok\n" {
			t.Errorf("%s: %d %q", path, status, text)
		}
	}
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}`
	for _, call := range []string{`"create_guarded_issue","arguments":{"operation_id":"op-secret","title":"t"}`, `"get_operation_status","arguments":{"operation_id":"op-secret"}`} {
		req, err := http.NewRequest(http.MethodPost, serving, strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{%s,"name":%s}}`, meta, call)))
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(call, `"`), `"`)
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Authorization": {"Bearer abcdefghijklmnopqrst"},
			"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {name}}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", name, res.StatusCode, text)
		}
		res.Body.Close()
	}
	status, text := get(metrics)
	for _, want := range []string{
		`(?m)^mcpreplay_attempts_total\{gen_ai_tool_name="create_guarded_issue",mcpreplay_outcome="asked",.*\} 1$`,
		`(?m)^mcpreplay_statuses_total\{mcpreplay_state="unknown",.*\} 1$`,
		`(?m)^mcpreplay_ledger_duration_seconds_bucket\{mcpreplay_ledger_answer="refused",mcpreplay_ledger_method="get",`,
		`(?m)^go_goroutines `,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the metrics (%d) have no %s:\n%s", status, want, regexp.MustCompile(`(?m)^mcpreplay_[^d]*$`).FindAllString(text, -1))
		}
	}
	if strings.Contains(text, "op-secret") || strings.Contains(text, "alice") {
		t.Error("the metrics tell of an operation or a principal")
	}
	cancel()
	if code := <-ended; code != exitFine {
		t.Errorf("exit code %d", code)
	}
}
