package mcpreplay_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"mcpreplay"
)

const markJSON = `{"operationId":"op-1","state":"applied","replayed":true,"recordedAt":"2026-08-01T12:00:00Z","ledger":{"instance":"i","incarnation":0,"position":7}}`

func TestClassifyResult(t *testing.T) {
	tests := []struct {
		name, result string
		want         mcpreplay.VerdictKind
		reason       mcpreplay.Reason
		id           string
	}{
		{"complete", `{"resultType":"complete","content":[]}`, "result", "", ""},
		{"legacy", `{"content":[{"type":"text","text":"ok"}]}`, "result", "", ""},
		{"members that are not known", `{"content":[],"x":{"a":1,"a":2},"_meta":{"vendor/x":1}}`, "result", "", ""},
		{"an error of the tool", `{"content":[],"isError":true}`, "result", "", ""},
		{"an error with structured content that is not ours", `{"content":[],"isError":true,"structuredContent":{"code":"E42"}}`, "result", "", ""},
		{"a tool that talks about our codes", `{"content":[],"structuredContent":{"code":"operation_unknown"}}`, "result", "", ""},
		{"a lone surrogate in the text", `{"content":[{"type":"text","text":"\ud83d"}]}`, "result", "", ""},
		{"marked", `{"content":[],"_meta":{"mcpreplay/operation":` + markJSON + `}}`, "result", "", "op-1"},

		{"a question", `{"resultType":"input_required","inputRequests":{"a":{}},"requestState":"s","content":null}`, "input_required", "", ""},
		{"a question with state alone", `{"resultType":"input_required","requestState":"s"}`, "input_required", "", ""},
		{"shedding load", `{"resultType":"input_required","inputRequests":{}}`, "input_required", "", ""},
		{"a question with a broken state", `{"resultType":"input_required","requestState":5}`, "unknown", "", ""},
		{"a question with broken requests", `{"resultType":"input_required","inputRequests":[]}`, "unknown", "", ""},

		{"our operation_unknown", `{"content":[],"isError":true,"structuredContent":{"code":"operation_unknown","operationId":"op-1","state":"unknown","retryable":false}}`, "unknown", "operation_unknown", "op-1"},
		{"our operation_in_progress", `{"resultType":"complete","content":[],"isError":true,"structuredContent":{"code":"operation_in_progress","operationId":"op-1"}}`, "unknown", "operation_in_progress", "op-1"},
		{"an unknown type", `{"resultType":"task","content":[]}`, "unknown", "", ""},
		{"a null type", `{"resultType":null,"content":[]}`, "unknown", "", ""},
		{"a type of another type", `{"resultType":["complete"],"content":[]}`, "unknown", "", ""},
		{"no content", `{"resultType":"complete"}`, "unknown", "", ""},
		{"a member in the wrong case", `{"Content":[]}`, "unknown", "", ""},
		{"null content", `{"content":null}`, "unknown", "", ""},
		{"empty", `{}`, "unknown", "", ""},
		{"complete and asking", `{"resultType":"complete","content":[],"inputRequests":{"a":{}}}`, "unknown", "", ""},
		{"complete with state", `{"resultType":"complete","content":[],"requestState":"s"}`, "unknown", "", ""},
		{"legacy and asking", `{"content":[],"inputRequests":{"a":{}}}`, "unknown", "", ""},
		{"isError is no boolean", `{"content":[],"isError":1}`, "unknown", "", ""},
		{"two types", `{"resultType":"complete","resultType":"task","content":[]}`, "unknown", "", ""},
		{"two kinds of isError", `{"content":[],"isError":true,"isError":false}`, "unknown", "", ""},
		{"a broken mark", `{"content":[],"_meta":{"mcpreplay/operation":{"operationId":7}}}`, "unknown", "", ""},
		{"a null mark", `{"content":[],"_meta":{"mcpreplay/operation":null}}`, "unknown", "", ""},
		{"broken _meta", `{"content":[],"_meta":[]}`, "unknown", "", ""},
		{"a list", `[]`, "unknown", "", ""},
		{"null", `null`, "unknown", "", ""},
		{"nothing", ``, "unknown", "", ""},
		{"HTML", `<html>please log in</html>`, "unknown", "", ""},
		{"truncated", `{"content":[]`, "unknown", "", ""},
		{"invalid UTF-8", "{\"content\":[],\"x\":\"\xff\"}", "unknown", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := mcpreplay.ClassifyResult([]byte(tt.result))
			if got.Kind != tt.want || got.Reason != tt.reason || got.OperationID != tt.id {
				t.Errorf("ClassifyResult() = %+v, want %q, %q, %q", got, tt.want, tt.reason, tt.id)
			}
		})
	}
}

func TestClassifyError(t *testing.T) {
	refusal := func(reason string) string {
		return `{"reason":"` + reason + `","operationId":"op-1","retryable":true}`
	}
	type test struct {
		name string
		code int64
		data string
		want mcpreplay.VerdictKind
	}
	tests := []test{
		{"parse error", -32700, ``, "not_dispatched"},
		{"invalid request", -32600, ``, "not_dispatched"},
		{"no such method", -32601, ``, "not_dispatched"},
		{"header mismatch", -32020, ``, "not_dispatched"},
		{"missing capability", -32021, `{"requiredCapabilities":{}}`, "not_dispatched"},
		{"unsupported version", -32022, ``, "not_dispatched"},
		{"next to them", -32023, ``, "reply"},
		{"internal error", -32603, ``, "reply"},
		{"no code", 0, ``, "unknown"},
		{"a library's own", -32005, refusal("operation_conflict"), "unknown"},
		{"first of the codes no server uses", -32000, ``, "unknown"},
		{"last of the codes no server uses", -32019, ``, "unknown"},
		{"an application's code", 1001, ``, "reply"},
		{"invalid params without a reason", -32602, ``, "reply"},
		{"invalid params with a strange reason", -32602, refusal("operation_whatever"), "reply"},
		{"a reason in the wrong case", -32602, `{"Reason":"operation_conflict"}`, "reply"},
		{"two reasons", -32602, `{"reason":"operation_conflict","reason":"x"}`, "reply"},
		{"a reason that is no string", -32602, `{"reason":["operation_conflict"]}`, "reply"},
		{"data that is no object", -32602, `"operation_conflict"`, "reply"},
		{"our reason under another code", -32603, refusal("operation_conflict"), "reply"},
		{"in progress", -32602, refusal("operation_in_progress"), "unknown"},
		{"unknown", -32602, refusal("operation_unknown"), "unknown"},
	}
	for _, reason := range []string{
		"operation_conflict", "operation_authority_expired", "operation_retention_expired", "operation_id_required",
		"operation_fenced", "unsupported_continuation", "invalid_request_state", "key_retired", "limit_exceeded",
		"ledger_unavailable", "invalid_arguments", "invalid_operation_id", "invalid_input_response", "cancelled", "principal_required",
	} {
		tests = append(tests, test{reason, -32602, refusal(reason), "refused"})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := mcpreplay.ClassifyError(tt.code, "words", []byte(tt.data))
			if got.Kind != tt.want || got.Code != tt.code || got.Detail != "words" {
				t.Errorf("ClassifyError() = %+v, want %q", got, tt.want)
			}
			if tt.want == "refused" && (string(got.Reason) != tt.name || got.OperationID != "op-1" || !got.Retryable) {
				t.Errorf("ClassifyError() = %+v, want the reason, id and retryable of the data", got)
			}
			if got.Kind == "reply" && got.Reason != "" {
				t.Errorf("a reply has the reason %q", got.Reason)
			}
			if got.Settles() {
				t.Error("an error settles an earlier unknown")
			}
		})
	}
}

// Each reason is a row of the table that servers answer by, and what a client makes
// of it is what the row says: the attempt that a refusal answers did nothing, and
// of operation_in_progress another attempt may still do it. operation_unknown is
// told in a result.
func TestServersAndClientsHaveTheSameReasons(t *testing.T) {
	names := map[string]string{} // of the constants, by their values
	ast.Inspect(parseFile(t, "verdict.go"), func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Reason" {
				names[spec.Names[0].Name] = spec.Values[0].(*ast.BasicLit).Value
			}
		}
		return true
	})
	rows := map[string]bool{}
	ast.Inspect(parseFile(t, "guard/errors.go"), func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && spec.Names[0].Name == "refusals" {
			for _, row := range spec.Values[0].(*ast.CompositeLit).Elts {
				rows[row.(*ast.KeyValueExpr).Key.(*ast.SelectorExpr).Sel.Name] = true
			}
		}
		return true
	})
	if len(names) < 2 || len(rows) != len(names)-1 {
		t.Errorf("%d reasons and %d rows, want a row for all but operation_unknown", len(names), len(rows))
	}
	for name, quoted := range names {
		reason := mcpreplay.Reason(strings.Trim(quoted, `"`))
		want := mcpreplay.VerdictRefused
		if reason == mcpreplay.ReasonInProgress || reason == mcpreplay.ReasonUnknown {
			want = mcpreplay.VerdictUnknown
		}
		v := mcpreplay.ClassifyError(mcpreplay.CodeRefused, "words", fmt.Appendf(nil, `{"reason":%q,"retryable":true}`, reason))
		if v.Kind != want || v.Reason != reason || !v.Retryable || v.Settles() {
			t.Errorf("%s = %+v, want %q", name, v, want)
		}
		if rows[name] != (reason != mcpreplay.ReasonUnknown) {
			t.Errorf("%s is a row of the table of servers: %t", name, rows[name])
		}
	}
}

func parseFile(t *testing.T, name string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestClassifyResponse(t *testing.T) {
	tests := []struct {
		name, text, id string
		want           mcpreplay.VerdictKind
	}{
		{"a result", `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`, `7`, "result"},
		{"a string id", `{"jsonrpc":"2.0","id":"a\u0037","result":{"content":[]}}`, `"a7"`, "result"},
		{"a null error beside a result", `{"jsonrpc":"2.0","id":7,"result":{"content":[]},"error":null}`, `7`, "result"},
		{"a refusal", `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"operation_conflict","data":{"reason":"operation_conflict"}}}`, `7`, "refused"},
		{"a parse error", `{"jsonrpc":"2.0","id":7,"error":{"code":-32700,"message":"parse error"}}`, `7`, "not_dispatched"},

		{"another id", `{"jsonrpc":"2.0","id":8,"result":{"content":[]}}`, `7`, "unknown"},
		{"a string for a number", `{"jsonrpc":"2.0","id":"7","result":{"content":[]}}`, `7`, "unknown"},
		{"a number for a string", `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`, `"7"`, "unknown"},
		{"a null id", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}`, `7`, "unknown"},
		{"no id", `{"jsonrpc":"2.0","result":{"content":[]}}`, `7`, "unknown"},
		{"two ids", `{"jsonrpc":"2.0","id":8,"id":7,"result":{"content":[]}}`, `7`, "unknown"},
		{"a request", `{"jsonrpc":"2.0","id":7,"method":"ping","result":{"content":[]}}`, `7`, "unknown"},
		{"a batch", `[{"jsonrpc":"2.0","id":7,"result":{"content":[]}}]`, `7`, "unknown"},
		{"no version", `{"id":7,"result":{"content":[]}}`, `7`, "unknown"},
		{"neither result nor error", `{"jsonrpc":"2.0","id":7}`, `7`, "unknown"},
		{"both", `{"jsonrpc":"2.0","id":7,"result":{"content":[]},"error":{"code":-32602,"message":""}}`, `7`, "unknown"},
		{"an error that is no object", `{"jsonrpc":"2.0","id":7,"error":"bad gateway"}`, `7`, "unknown"},
		{"an error without a code", `{"jsonrpc":"2.0","id":7,"error":{"message":"x"}}`, `7`, "unknown"},
		{"an error with a fraction for a code", `{"jsonrpc":"2.0","id":7,"error":{"code":-32700.0,"message":"x"}}`, `7`, "unknown"},
		{"an error without a message", `{"jsonrpc":"2.0","id":7,"error":{"code":-32700}}`, `7`, "unknown"},
		{"a made-up error", `{"jsonrpc":"2.0","id":7,"error":{"code":-32005,"message":"rejected by transport"}}`, `7`, "unknown"},
		{"two responses", `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}{}`, `7`, "unknown"},
		{"HTML", `<!DOCTYPE html>`, `7`, "unknown"},
		{"truncated", `{"jsonrpc":"2.0","id":7,"resu`, `7`, "unknown"},
		{"nothing", ``, `7`, "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := mcpreplay.ClassifyResponse([]byte(tt.text), tt.id); got.Kind != tt.want {
				t.Errorf("ClassifyResponse() = %+v, want %q", got, tt.want)
			}
		})
	}
}

func TestVerdictUnknownIsEndedByAResultAlone(t *testing.T) {
	for kind, want := range map[mcpreplay.VerdictKind]struct{ settles, definite bool }{
		"result": {true, true}, "refused": {false, true}, "not_dispatched": {false, true},
		"input_required": {}, "reply": {}, "unknown": {}, "": {},
	} {
		v := mcpreplay.Verdict{Kind: kind}
		if v.Settles() != want.settles || v.Definite() != want.definite {
			t.Errorf("%q: Settles() = %t, Definite() = %t, want %+v", kind, v.Settles(), v.Definite(), want)
		}
	}
}

// Of a marked result only a final one: a failed effect that was rolled back is a
// complete result too, and leaves no record.
func TestVerdictUnknownIsNotEndedByAResultThatLeftNoRecord(t *testing.T) {
	for state, want := range map[mcpreplay.State]bool{"applied": true, "partial": true, "not_applied": true, "unknown": false} {
		mark := strings.Replace(markJSON, `"applied"`, `"`+string(state)+`"`, 1)
		v := mcpreplay.ClassifyResult(fmt.Appendf(nil, `{"content":[],"isError":true,"_meta":{"mcpreplay/operation":%s}}`, mark))
		if v.Kind != mcpreplay.VerdictResult || v.State != state || v.Settles() != want {
			t.Errorf("%s: verdict = %+v, Settles() = %t, want %t", state, v, v.Settles(), want)
		}
	}
}

func TestReadMark(t *testing.T) {
	result := `{"content":[],"_meta":{"mcpreplay/operation":%s}}`
	m, found, err := mcpreplay.ReadMark(fmt.Appendf(nil, result, markJSON))
	if err != nil || !found {
		t.Fatalf("ReadMark() = %t, %v", found, err)
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != markJSON {
		t.Errorf("mark = %s, want %s", text, markJSON)
	}
	if _, found, err := mcpreplay.ReadMark([]byte(`{"content":[]}`)); found || err != nil {
		t.Errorf("ReadMark() of a result without one = %t, %v", found, err)
	}
	for _, state := range []string{"unknown", "partial", "not_applied"} {
		if m, _, err := mcpreplay.ReadMark(fmt.Appendf(nil, result, strings.Replace(markJSON, "applied", state, 1))); err != nil || string(m.State) != state {
			t.Errorf("ReadMark() = %q, %v, want %q", m.State, err, state)
		}
	}
	for _, bad := range []struct{ from, to string }{
		{`"op-1"`, `""`}, {`true`, `"yes"`}, {`"i"`, `""`}, {`"incarnation":0`, `"incarnation":-1`}, {`"position":7`, `"Position":7`},
		{`"applied"`, `1`}, {`"applied"`, `""`}, {`"applied"`, `"Applied"`}, {`"applied"`, `"bogus"`},
		{`"applied"`, `"in_progress"`}, {`"applied"`, `"awaiting_input"`}, // told as unknown
	} {
		if _, _, err := mcpreplay.ReadMark(fmt.Appendf(nil, result, strings.Replace(markJSON, bad.from, bad.to, 1))); err == nil {
			t.Errorf("ReadMark() believes a mark with %s instead of %s", bad.to, bad.from)
		}
	}
}

func FuzzClassifyResponse(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"m","data":{"reason":"cancelled"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		v := mcpreplay.ClassifyResponse(text, "7")
		if v.Kind == "" {
			t.Fatal("no verdict")
		}
		if v.Kind != mcpreplay.VerdictUnknown && !json.Valid(text) {
			t.Fatalf("%q for a text that is not JSON: %q", v.Kind, text)
		}
	})
}
