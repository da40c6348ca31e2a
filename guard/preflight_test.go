package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"mcpreplay"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// callText is a tools/call of the tool "t" with more members in its params.
func callText(id, more string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"t"` + more + `}}`
}

func TestPreflightRefuses(t *testing.T) {
	const message, arguments, limit, state = "invalid_message", "invalid_arguments", "limit_exceeded", "invalid_request_state"
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	tests := []struct {
		name   string
		text   string
		code   int64
		reason mcpreplay.Reason
		id     string
		silent bool
	}{
		{"empty", "", -32700, message, "null", false},
		{"not json", "hello", -32700, message, "null", false},
		{"cut off", `{"jsonrpc":"2.0","id":1,"method":"x"`, -32700, message, "null", false},
		{"text after the value", callText("1", "") + " x", -32700, message, "null", false},
		{"two messages", callText("1", "") + callText("2", ""), -32700, message, "null", false},
		{"batch", "[" + callText("1", "") + "]", -32600, message, "null", false},
		{"empty batch", "[]", -32600, message, "null", false},
		{"null", "null", -32600, message, "null", false},
		{"string", `"x"`, -32600, message, "null", false},

		{"no version", `{"id":1,"method":"x"}`, -32600, message, "1", false},
		{"old version", `{"jsonrpc":"1.0","id":1,"method":"x"}`, -32600, message, "1", false},
		{"version is a number", `{"jsonrpc":2.0,"id":1,"method":"x"}`, -32600, message, "1", false},
		{"id null", `{"jsonrpc":"2.0","id":null,"method":"x"}`, -32600, message, "null", false},
		{"id is a fraction", `{"jsonrpc":"2.0","id":1.5,"method":"x"}`, -32600, message, "null", false},
		{"id is written as a fraction", `{"jsonrpc":"2.0","id":1.0,"method":"x"}`, -32600, message, "null", false},
		{"id has an exponent", `{"jsonrpc":"2.0","id":1e2,"method":"x"}`, -32600, message, "null", false},
		{"id is minus zero", `{"jsonrpc":"2.0","id":-0,"method":"x"}`, -32600, message, "null", false},
		{"id is 2^53", `{"jsonrpc":"2.0","id":9007199254740992,"method":"x"}`, -32600, message, "null", false},
		{"id is 2^53+1", `{"jsonrpc":"2.0","id":9007199254740993,"method":"x"}`, -32600, message, "null", false},
		{"id is huge", `{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"x"}`, -32600, message, "null", false},
		{"id is a boolean", `{"jsonrpc":"2.0","id":true,"method":"x"}`, -32600, message, "null", false},
		{"id is an array", `{"jsonrpc":"2.0","id":[1],"method":"x"}`, -32600, message, "null", false},
		{"id is long", `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 2000) + `","method":"x"}`, -32600, message, "null", false},
		{"no method", `{"jsonrpc":"2.0","id":1}`, -32600, message, "1", false},
		{"method null", `{"jsonrpc":"2.0","id":1,"method":null}`, -32600, message, "1", false},
		{"method empty", `{"jsonrpc":"2.0","id":5,"method":"","params":{}}`, -32600, message, "5", false},
		{"method is a number", `{"jsonrpc":"2.0","id":1,"method":7}`, -32600, message, "1", false},
		{"call and result", `{"jsonrpc":"2.0","id":1,"method":"x","result":{}}`, -32600, message, "1", false},
		{"params is an array", `{"jsonrpc":"2.0","id":1,"method":"x","params":[1]}`, -32602, arguments, "1", false},
		{"params is a string", `{"jsonrpc":"2.0","id":1,"method":"x","params":"p"}`, -32602, arguments, "1", false},
		{"call without params", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, -32602, arguments, "1", false},
		{"call with params null", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}`, -32602, arguments, "1", false},

		{"id twice", `{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}`, -32600, message, "null", false},
		{"method twice", `{"jsonrpc":"2.0","id":1,"method":"x","method":"tools/call"}`, -32600, message, "1", false},
		{"params twice", `{"jsonrpc":"2.0","id":1,"method":"x","params":{},"params":{"a":1}}`, -32600, message, "1", false},
		{"name twice", callText("1", `,"name":"u"`), -32602, arguments, "1", false},
		{"name twice, once escaped", callText("1", `,"n\u0061me":"u"`), -32602, arguments, "1", false},
		{"argument twice", callText("1", `,"arguments":{"a":1,"a":2}`), -32602, arguments, "1", false},
		{"argument twice, nested", callText("1", `,"arguments":{"a":[{"b":1,"b":2}]}`), -32602, arguments, "1", false},
		{"answer twice", callText("1", `,"inputResponses":{"q":{"action":"accept","action":"decline"}}`), -32602, arguments, "1", false},
		{"invalid utf-8 in arguments", callText("1", `,"arguments":{"a":"`+"\xff"+`"}`), -32602, arguments, "1", false},
		{"invalid utf-8 in method", `{"jsonrpc":"2.0","id":1,"method":"` + "\xc3\x28" + `"}`, -32600, message, "1", false},
		{"invalid utf-8 in id", `{"jsonrpc":"2.0","id":"` + "\xff" + `","method":"x"}`, -32600, message, "null", false},
		{"lone surrogate", callText("1", `,"arguments":{"a":"\ud800"}`), -32602, arguments, "1", false},
		{"too deep in arguments", callText("1", `,"arguments":{"a":`+deep+`}`), -32602, limit, "1", false},
		{"too deep elsewhere", `{"jsonrpc":"2.0","id":1,"method":"x","y":` + deep + `}`, -32600, limit, "1", false},
		{"too large", callText("1", `,"arguments":{"a":"`+strings.Repeat("x", 9000)+`"}`), -32600, limit, "1", false},

		{"Id", `{"jsonrpc":"2.0","Id":1,"method":"x"}`, -32602, arguments, "null", false},
		{"METHOD", `{"jsonrpc":"2.0","id":1,"METHOD":"x"}`, -32602, arguments, "1", false},
		{"Params", `{"jsonrpc":"2.0","id":1,"method":"x","Params":{}}`, -32602, arguments, "1", false},
		{"JSONRPC beside jsonrpc", `{"jsonrpc":"2.0","JSONRPC":"1.0","id":1,"method":"x"}`, -32602, arguments, "1", false},
		{"Name", callText("1", `,"Name":"u"`), -32602, arguments, "1", false},
		{"Arguments", callText("1", `,"Arguments":{}`), -32602, arguments, "1", false},
		{"InputResponses", callText("1", `,"InputResponses":{}`), -32602, arguments, "1", false},
		{"requeststate", callText("1", `,"requeststate":"x"`), -32602, arguments, "1", false},
		{"requestState with a long s", callText("1", `,"requeſtState":"x"`), -32602, arguments, "1", false},
		{"_Meta", callText("1", `,"_Meta":{}`), -32602, arguments, "1", false},
		{"ACTION", callText("1", `,"inputResponses":{"q":{"ACTION":"accept"}}`), -32602, arguments, "1", false},
		{"Action beside action", callText("1", `,"inputResponses":{"q":{"action":"accept","Action":"decline"}}`), -32602, arguments, "1", false},
		{"Content", callText("1", `,"inputResponses":{"q":{"action":"accept","Content":{}}}`), -32602, arguments, "1", false},

		{"no name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, -32602, arguments, "1", false},
		{"name is a number", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}`, -32602, arguments, "1", false},
		{"arguments is an array", callText("1", `,"arguments":[1]`), -32602, arguments, "1", false},
		{"arguments is a string", callText("1", `,"arguments":"{}"`), -32602, arguments, "1", false},
		{"_meta is a string", callText("1", `,"_meta":"x"`), -32602, arguments, "1", false},
		{"_meta has a number beyond float64", callText("1", `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","x":1e999}`), -32602, arguments, "1", false},
		{"progress token is 2^53+1", callText("1", `,"_meta":{"progressToken":9007199254740993}`), -32602, arguments, "1", false},
		{"progress token is an object", callText("1", `,"_meta":{"progressToken":{}}`), -32602, arguments, "1", false},

		{"state empty", callText("1", `,"requestState":""`), -32602, state, "1", false},
		{"state is a number", callText("1", `,"requestState":7`), -32602, state, "1", false},
		{"state is an object", callText("1", `,"requestState":{"a":1}`), -32602, state, "1", false},
		{"state with a newline", callText("1", `,"requestState":"v1.a\nb"`), -32602, state, "1", false},
		{"state with a control", callText("1", `,"requestState":"v1.a\u0085b"`), -32602, state, "1", false},
		{"state with a separator", callText("1", `,"requestState":"v1.a\u2028b"`), -32602, state, "1", false},

		{"responses is an array", callText("1", `,"inputResponses":[]`), -32602, arguments, "1", false},
		{"response is a string", callText("1", `,"inputResponses":{"q":"accept"}`), -32602, arguments, "1", false},
		{"response is null", callText("1", `,"inputResponses":{"q":null}`), -32602, arguments, "1", false},
		{"response without a kind", callText("1", `,"inputResponses":{"q":{"content":{}}}`), -32602, arguments, "1", false},
		{"response of two kinds", callText("1", `,"inputResponses":{"q":{"action":"accept","roots":[]}}`), -32602, arguments, "1", false},
		{"action is a boolean", callText("1", `,"inputResponses":{"q":{"action":true}}`), -32602, arguments, "1", false},
		{"content is an array", callText("1", `,"inputResponses":{"q":{"action":"accept","content":[]}}`), -32602, arguments, "1", false},
		{"answer is 2^53+1", callText("1", `,"inputResponses":{"q":{"action":"accept","content":{"n":9007199254740993}}}`), -32602, arguments, "1", false},
		{"answer beyond float64", callText("1", `,"inputResponses":{"q":{"action":"accept","content":{"n":1e400}}}`), -32602, arguments, "1", false},

		{"notification with broken params", `{"jsonrpc":"2.0","method":"notifications/x","params":[]}`, -32602, arguments, "null", true},
		{"notification with a duplicate", `{"jsonrpc":"2.0","method":"notifications/x","params":{"a":1,"a":2}}`, -32602, arguments, "null", true},
		{"call that forgot its id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"t"}}`, -32600, message, "null", true},
		{"cancelled with a fraction", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1.5}}`, -32602, arguments, "null", true},
		{"answer with result and error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"x"}}`, -32600, message, "1", true},
		{"answer without an id", `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`, -32600, message, "null", true},
		{"answer with a strange error", `{"jsonrpc":"2.0","id":1,"error":"no"}`, -32600, message, "1", true},
		{"answer with a duplicate", `{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}`, -32600, message, "1", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, bad := checkMessage([]byte(tt.text), &mcpreplay.Limits{Bytes: 8 << 10})
			if bad == nil {
				t.Fatal("passed")
			}
			var got struct {
				ID    json.RawMessage
				Error struct {
					Code    int64
					Message string
					Data    map[string]any
				}
			}
			if err := json.Unmarshal(bad.encode(), &got); err != nil {
				t.Fatal(err)
			}
			if got.Error.Code != tt.code || got.Error.Data["reason"] != string(tt.reason) || string(got.ID) != tt.id || bad.silent != tt.silent {
				t.Errorf("refused with %s, silent %v", bad.encode(), bad.silent)
			}
			if tt.reason == mcpreplay.ReasonRequestState {
				if got.Error.Message != "Invalid or expired requestState" || len(got.Error.Data) != 1 {
					t.Errorf("not what the other SDKs say: %s", bad.encode())
				}
			} else if retry, ok := got.Error.Data["retryable"].(bool); !ok || retry {
				t.Errorf("retryable is not false: %s", bad.encode())
			}
			data, err := json.Marshal(got.Error.Data)
			if err != nil {
				t.Fatal(err)
			}
			if v := mcpreplay.ClassifyError(got.Error.Code, got.Error.Message, data); !v.Definite() {
				t.Errorf("a client would not know that nothing was dispatched: %+v", v)
			}
		})
	}
}

func TestPreflightRepeatsNothingOfTheInput(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		secret,
		`{"jsonrpc":"2.0","id":1,"method":"` + secret + `","params":["` + secret + `"]}`,
		callText("1", `,"requestState":{"a":"`+secret+`"}`),
		callText("1", `,"requestState":"`+secret+`\n"`),
		callText("1", `,"arguments":{"`+secret+`":"`+secret+`","`+secret+`":1}`),
		callText("1", `,"_meta":"`+secret+`"`),
		callText("1", `,"inputResponses":{"`+secret+`":{"action":["`+secret+`"]}}`),
	} {
		_, bad := checkMessage([]byte(text), nil)
		if bad == nil {
			t.Errorf("%s passed", text)
		} else if reply := string(bad.encode()); strings.Contains(reply, secret) {
			t.Errorf("%s was answered with %s", text, reply)
		}
	}
}

func TestPreflightPasses(t *testing.T) {
	tests := []struct {
		name, text string
		want       inbound
	}{
		{"call", callText("1", `,"arguments":{"a":9007199254740993,"b":1.10}`), inbound{"tools/call", true, false}},
		{"string id", callText(`"a b"`, ""), inbound{"tools/call", true, false}},
		{"empty string id", callText(`""`, ""), inbound{"tools/call", true, false}},
		{"largest id", callText("9007199254740991", ""), inbound{"tools/call", true, false}},
		{"negative id", callText("-7", ""), inbound{"tools/call", true, false}},
		{"white space", " \t" + callText("1", "") + "\r\n", inbound{"tools/call", true, false}},
		{"unknown members", `{"jsonrpc":"2.0","id":1,"method":"tools/call","x":1,"params":{"name":"t","task":{}}}`, inbound{"tools/call", true, false}},
		{"nulls", callText("1", `,"arguments":null,"_meta":null,"requestState":null,"inputResponses":null`), inbound{"tools/call", true, false}},
		{"continuation", callText("1", `,"requestState":"v1.abc","inputResponses":{"q":{"action":"accept","content":{"approve":true,"n":0.1}},"r":{"action":"decline"}}`), inbound{"tools/call", true, false}},
		{"progress", callText("1", `,"_meta":{"progressToken":"p"}`), inbound{"tools/call", true, true}},
		{"logs", callText("1", `,"_meta":{"io.modelcontextprotocol/logLevel":"info"}`), inbound{"tools/call", true, true}},
		{"other method", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, inbound{"tools/list", true, false}},
		{"other method, params null", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}`, inbound{"tools/list", true, false}},
		{"other method, looked at less", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"Name":1,"requestState":""}}`, inbound{"x", true, false}},
		{"notification", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, inbound{"notifications/initialized", false, false}},
		{"cancelled", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, inbound{"notifications/cancelled", false, false}},
		{"answer", `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`, inbound{}},
		{"answer with an error", `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":null}}`, inbound{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in, bad := checkMessage([]byte(tt.text), nil)
			if bad != nil {
				t.Fatalf("refused: %v", bad)
			}
			if in != tt.want {
				t.Errorf("got %+v, want %+v", in, tt.want)
			}
			if _, err := jsonrpc.DecodeMessage([]byte(tt.text)); err != nil {
				t.Errorf("the SDK does not decode it: %v", err)
			}
		})
	}
}

// FuzzPreflight checks that the SDK and a reader that knows nothing of it
// understand every message that passes in the same way.
func FuzzPreflight(f *testing.F) {
	for _, more := range []string{
		"", `,"arguments":{"a":9007199254740993,"b":[1.10,"é\u00e9\ud83d\ude00"]}`, `,"arguments":null`,
		`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`,
		`,"_meta":{"progressToken":7,"x":1e308}`, `,"requestState":"v1.abc"`, `,"name\u0000":"u"`, `,"n\u0061me2":1`,
		`,"inputResponses":{"q":{"action":"accept","content":{"n":0.1,"b":true}}}`, `,"inputResponses":null`,
		`,"inputResponses":{"q":{"roots":[{"uri":"file:///x"}]},"s":{"role":"user","content":{"type":"text","text":"x"},"model":"m"}}`,
	} {
		f.Add([]byte(callText("1", more)))
	}
	f.Add([]byte(`{"jsonrpc":"2.0","id":"\u0061","m\u0065thod":"tools/call","params":{"n\u0061me":"t","arguments":{}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`))
	reader := newSDKReader(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		in, bad := checkMessage(text, nil)
		if bad != nil {
			if !json.Valid(bad.encode()) {
				t.Fatalf("the refusal is not JSON: %s", bad.encode())
			}
			return
		}
		if err := sameEnvelope(text, in); err != nil {
			t.Fatal(err)
		}
		if in.method == methodCall {
			if err := reader.sameCall(text); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func sameEnvelope(text []byte, in inbound) error {
	var strict map[string]json.RawMessage
	if err := json.Unmarshal(text, &strict); err != nil {
		return err
	}
	m, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return fmt.Errorf("the SDK does not decode it: %w", err)
	}
	if _, isCall := m.(*jsonrpc.Request); isCall != (in.method != "") {
		return errors.New("a request to one, a response to the other")
	}
	encoded, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	var seen map[string]json.RawMessage
	if err := json.Unmarshal(encoded, &seen); err != nil {
		return err
	}
	if e, ok := strict["error"]; ok { // members of it that nobody knows are dropped
		strict["error"], seen["error"] = errorMembers(e), errorMembers(seen["error"])
	}
	known := []string{"jsonrpc", "id", "method", "params", "result", "error"}
	for _, set := range []map[string]json.RawMessage{strict, seen} {
		maps.DeleteFunc(set, func(name string, v json.RawMessage) bool {
			return !slices.Contains(known, name) || name != "result" && string(v) == "null"
		})
	}
	if len(strict) != len(seen) {
		return fmt.Errorf("the SDK sees other members: %s", encoded)
	}
	for name, v := range strict {
		if !sameJSON(v, seen[name]) {
			return fmt.Errorf("%s: the SDK sees %s, not %s", name, seen[name], v)
		}
	}
	return nil
}

func errorMembers(text []byte) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(text, &m) != nil {
		return nil
	}
	return json.RawMessage(fmt.Sprintf(`[%s,%s]`, m["code"], m["message"]))
}

func sameJSON(a, b []byte) bool {
	limits := &mcpreplay.Limits{Bytes: 8 << 20}
	ca, err1 := mcpreplay.Canonical(a, limits)
	cb, err2 := mcpreplay.Canonical(b, limits)
	return err1 == nil && err2 == nil && string(ca) == string(cb)
}

// sdkReader shows how the SDK understands a tools/call.
type sdkReader struct {
	in    chan jsonrpc.Message
	out   chan jsonrpc.Message
	heard chan *mcp.CallToolParamsRaw
}

func newSDKReader(tb testing.TB) *sdkReader {
	tb.Helper()
	r := &sdkReader{make(chan jsonrpc.Message), make(chan jsonrpc.Message, 4), make(chan *mcp.CallToolParamsRaw, 4)}
	server := mcp.NewServer(&mcp.Implementation{Name: "r", Version: "1"}, nil)
	server.AddReceivingMiddleware(func(mcp.MethodHandler) mcp.MethodHandler {
		return func(_ context.Context, _ string, req mcp.Request) (mcp.Result, error) {
			if p, ok := req.GetParams().(*mcp.CallToolParamsRaw); ok {
				r.heard <- p
			}
			return nil, errors.New("heard")
		}
	})
	session, err := server.Connect(context.Background(), r, &mcp.ServerSessionOptions{State: &mcp.ServerSessionState{
		InitializeParams: &mcp.InitializeParams{ProtocolVersion: "2025-11-25"},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		close(r.in)
		session.Wait()
	})
	return r
}

func (r *sdkReader) Connect(context.Context) (mcp.Connection, error) { return r, nil }
func (r *sdkReader) SessionID() string                               { return "" }
func (r *sdkReader) Close() error                                    { return nil }

func (r *sdkReader) Write(_ context.Context, m jsonrpc.Message) error {
	r.out <- m
	return nil
}

func (r *sdkReader) Read(context.Context) (jsonrpc.Message, error) {
	if m, ok := <-r.in; ok {
		return m, nil
	}
	return nil, io.EOF
}

// sameCall lets the SDK dispatch a call and compares what arrives.
func (r *sdkReader) sameCall(text []byte) error {
	m, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return err
	}
	r.in <- m
	reply := (<-r.out).(*jsonrpc.Response)
	var heard *mcp.CallToolParamsRaw
	select {
	case heard = <-r.heard:
	default:
		if strings.Contains(reply.Error.Error(), "unmarshaling") {
			return fmt.Errorf("refused by the SDK's decoder: %w", reply.Error)
		}
		return nil // about the protocol's own part of _meta, which the SDK checks
	}
	var strict struct {
		Params map[string]json.RawMessage `json:"params"`
	}
	if err := json.Unmarshal(text, &strict); err != nil {
		return err
	}
	var name, state string
	if json.Unmarshal(strict.Params["name"], &name); heard.Name != name {
		return fmt.Errorf("the SDK sees name %q", heard.Name)
	}
	if json.Unmarshal(strict.Params["requestState"], &state); heard.RequestState != state {
		return fmt.Errorf("the SDK sees state %q", heard.RequestState)
	}
	if args := strict.Params["arguments"]; !isNull(args) && !sameJSON(args, heard.Arguments) {
		return fmt.Errorf("the SDK sees arguments %s", heard.Arguments)
	}
	var meta map[string]any
	if json.Unmarshal(strict.Params["_meta"], &meta); len(meta) != len(heard.Meta) {
		return fmt.Errorf("the SDK sees _meta %v", heard.Meta)
	}
	return sameResponses(strict.Params["inputResponses"], heard.InputResponses)
}

func sameResponses(raw json.RawMessage, heard mcp.InputResponseMap) error {
	var strict map[string]map[string]json.RawMessage
	if !isNull(raw) {
		if err := json.Unmarshal(raw, &strict); err != nil {
			return err
		}
	}
	if len(strict) != len(heard) {
		return fmt.Errorf("the SDK sees %d input responses", len(heard))
	}
	for key, want := range strict {
		got, ok := heard[key].(*mcp.ElicitResult)
		if _, elicited := want["action"]; elicited != ok {
			return fmt.Errorf("the SDK sees another kind of response: %T", heard[key])
		} else if !ok {
			continue
		}
		var action string
		if json.Unmarshal(want["action"], &action); got.Action != action {
			return fmt.Errorf("the SDK sees action %q", got.Action)
		}
		content, err := json.Marshal(got.Content)
		if err != nil {
			return err
		}
		if !isNull(want["content"]) && !sameJSON(want["content"], content) {
			return fmt.Errorf("the SDK sees content %s", content)
		}
	}
	return nil
}
