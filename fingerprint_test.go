package mcpreplay_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mcpreplay"

	"github.com/google/go-cmp/cmp"
)

func binding() mcpreplay.Binding {
	return mcpreplay.Binding{
		Principal: "alice", Tool: "create_issue", Version: "1",
		Arguments: json.RawMessage(`{"title":"spec"}`),
		State:     "sealed",
		Answers:   json.RawMessage(`{"body":{"action":"accept"}}`),
	}
}

func digest(t *testing.T, k *mcpreplay.Keyring, b mcpreplay.Binding) mcpreplay.Digests {
	t.Helper()
	d, err := k.Digest(b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDigestsSayWhichPartDiffers(t *testing.T) {
	k := newKeyring(t, secret(1))
	base := digest(t, k, binding())
	type parts struct{ Whole, Arguments, Answers, State bool } // what differs
	tests := []struct {
		name   string
		change func(*mcpreplay.Binding)
		want   parts
	}{
		{"nothing", func(b *mcpreplay.Binding) {}, parts{}},
		{"spelling", func(b *mcpreplay.Binding) { b.Arguments = json.RawMessage(` { "\u0074itle" : "spec" } `) }, parts{}},
		{"arguments", func(b *mcpreplay.Binding) { b.Arguments = json.RawMessage(`{}`) }, parts{Whole: true, Arguments: true}},
		{"answers", func(b *mcpreplay.Binding) { b.Answers = json.RawMessage(`{}`) }, parts{Whole: true, Answers: true}},
		{"no answers", func(b *mcpreplay.Binding) { b.Answers = nil }, parts{Whole: true, Answers: true}},
		{"state", func(b *mcpreplay.Binding) { b.State = "other" }, parts{Whole: true, State: true}},
		{"first round", func(b *mcpreplay.Binding) { b.State, b.Answers = "", nil }, parts{Whole: true, Answers: true, State: true}},
		{"tool version", func(b *mcpreplay.Binding) { b.Version = "2" }, parts{Whole: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := binding()
			tt.change(&b)
			d := digest(t, k, b)
			got := parts{
				!d.Equal(base), !bytes.Equal(d.Arguments, base.Arguments),
				!bytes.Equal(d.Answers, base.Answers), !bytes.Equal(d.State, base.State),
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("parts that differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDigestSeparatesParts(t *testing.T) {
	b := binding()
	b.State, b.Answers = "", nil
	d := digest(t, newKeyring(t, secret(1)), b)
	if bytes.Equal(d.State, d.Answers) || len(d.State) != 32 || len(d.Answers) != 32 {
		t.Errorf("digests of null are %x and %x, want two of 32 bytes", d.State, d.Answers)
	}
}

func TestDigestUnderAnOlderKey(t *testing.T) {
	old, rotated := newKeyring(t, secret(1)), newKeyring(t, secret(2), secret(1))
	was := digest(t, old, binding())
	if now := digest(t, rotated, binding()); now.Equal(was) || now.KeyID != rotated.IDs()[0] {
		t.Errorf("Digest() is under key %s, want the newest", now.KeyID)
	}
	again, err := rotated.DigestUnder(was.KeyID, binding())
	if err != nil || !again.Equal(was) {
		t.Errorf("DigestUnder() = %+v, %v, want what the old ring gave", again, err)
	}
	if _, err := newKeyring(t, secret(2)).DigestUnder(was.KeyID, binding()); !errors.Is(err, mcpreplay.ErrKeyRetired) {
		t.Errorf("DigestUnder() error = %v, want ErrKeyRetired", err)
	}
}

func TestDigestsThatAreNotThereEqualNothing(t *testing.T) {
	if (mcpreplay.Digests{}).Equal(mcpreplay.Digests{}) {
		t.Error("two empty digests are equal")
	}
	d := digest(t, newKeyring(t, secret(1)), binding())
	other := d
	other.KeyID = "00000000"
	if d.Equal(other) {
		t.Error("digests under different keys are equal")
	}
}

func TestDigestRefuses(t *testing.T) {
	k := newKeyring(t, secret(1))
	tests := []struct {
		path   string
		change func(*mcpreplay.Binding)
	}{
		{"$.principal", func(b *mcpreplay.Binding) { b.Principal = "\xff" }},
		{"$.tool", func(b *mcpreplay.Binding) { b.Tool = "\xff" }},
		{"$.toolVersion", func(b *mcpreplay.Binding) { b.Version = "\xff" }},
		{"$.state", func(b *mcpreplay.Binding) { b.State = "\xed\xa0\x80" }},
		{"$.arguments", func(b *mcpreplay.Binding) { b.Arguments = nil }},
		{"$.arguments", func(b *mcpreplay.Binding) { b.Arguments = json.RawMessage("null") }},
		{"$.arguments.a", func(b *mcpreplay.Binding) { b.Arguments = json.RawMessage(`{"a":1,"a":1}`) }},
		{"$.answers", func(b *mcpreplay.Binding) { b.Answers = json.RawMessage("null") }},
		{"$.answers.n", func(b *mcpreplay.Binding) { b.Answers = json.RawMessage(`{"n":1e99999}`) }},
	}
	for _, tt := range tests {
		b := binding()
		tt.change(&b)
		_, err := k.Digest(b)
		var e *mcpreplay.JSONError
		if !errors.As(err, &e) || e.Path != tt.path {
			t.Errorf("Digest() error = %v, want one at %s", err, tt.path)
		}
	}
}

// A size limit is the caller's: a guard may allow more than the default.
func TestDigestTakesWhatTheCallerAllowed(t *testing.T) {
	b := binding()
	b.Arguments = json.RawMessage(`{"s":"` + strings.Repeat("x", 2<<20) + `","a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`)
	digest(t, newKeyring(t, secret(1)), b)
}

func TestParsedRequestsOutliveTheLine(t *testing.T) {
	line := []byte(`{"principal":"a","tool":"t","toolVersion":"1","arguments":{"a":1},"answers":{"b":2}}`)
	v2, err := mcpreplay.ParseRequestV2(line)
	if err != nil {
		t.Fatal(err)
	}
	clear(line)
	if string(v2.Arguments) != `{"a":1}` || string(v2.Answers) != `{"b":2}` {
		t.Errorf("arguments %q, answers %q after the buffer was used again", v2.Arguments, v2.Answers)
	}
}

const lineV1 = `{"principal":"alice","tool_id":"t","tool_version":"1","arguments":%s,"continuation_state":null,"input_responses":%s}`

func fingerprintV1(arguments, responses string) (string, error) {
	r, err := mcpreplay.ParseRequestV1(fmt.Appendf(nil, lineV1, arguments, responses))
	if err != nil {
		return "", err
	}
	return mcpreplay.FingerprintV1(secret(1), r)
}

// What a later member of the same name replaces is not there, faults included.
func TestFingerprintV1ForgivesWhatIsReplaced(t *testing.T) {
	tests := []struct{ name, text, same string }{
		{"fraction", `{"a":0.5,"a":1}`, `{"a":1}`},
		{"surrogate", `{"a":["\ud800"],"b":2,"a":1}`, `{"a":1,"b":2}`},
		{"inside", `{"x":{"a":[0.5,{"b":1e999}],"a":0.25,"a":3}}`, `{"x":{"a":3}}`},
		{"outside", `{"x":{"a":0.5},"x":{"a":1}}`, `{"x":{"a":1}}`},
		{"by escape", `{"a":0.5,"\u0061":1}`, `{"a":1}`},
		{"bad name inside", `{"x":{"\ud800":1},"x":1}`, `{"x":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := fingerprintV1(tt.text, "null")
			if err != nil {
				t.Fatal(err)
			}
			if want, _ := fingerprintV1(tt.same, "null"); got != want {
				t.Errorf("digest of %s = %s, want that of %s", tt.text, got, tt.same)
			}
		})
	}
}

func TestFingerprintV1Faults(t *testing.T) {
	tests := []struct{ name, arguments, responses, path string }{
		{"last is wrong", `{"a":1,"a":0.5}`, "null", "$.arguments.a"},
		{"first that is left", `{"a":0.5,"b":[1,0.5],"c":0.5,"a":1}`, "null", "$.arguments.b[1]"},
		{"bad name is not another", `{"\ud800":1,"\ufffd":1}`, "null", "$.arguments.<key>"},
		{"bad name twice", `{"\ud800":1,"\ud800":1}`, "null", "$.arguments.<key>"},
		{"responses", `{}`, `{"body":{"n":[0.5]}}`, "$.body.n[0]"},
		{"depth", `{}`, strings.Repeat("[", 200) + strings.Repeat("]", 200), "$.input_responses[0][0][0][0][0][...][0][0][0][0][0][0]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := fingerprintV1(tt.arguments, tt.responses)
			var e *mcpreplay.JSONError
			if !errors.As(err, &e) || e.Path != tt.path {
				t.Errorf("error = %v, want one at %s", err, tt.path)
			}
		})
	}
}

func TestFingerprintV1IgnoresOtherMembers(t *testing.T) {
	want, err := fingerprintV1(`{}`, "null")
	if err != nil {
		t.Fatal(err)
	}
	line := `{"trace":0.5,"tool_id":1,"Principal":"x","principal":"alice","tool_id":"t","tool_version":"1","arguments":{},"x":"\ud800"}`
	r, err := mcpreplay.ParseRequestV1([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := mcpreplay.FingerprintV1(secret(1), r); err != nil || got != want {
		t.Errorf("FingerprintV1() = %s, %v, want %s", got, err, want)
	}
}

func TestFingerprintV1RefusesBadText(t *testing.T) {
	bad, fine := "\xff", "x"
	for path, r := range map[string]mcpreplay.RequestV1{
		"$.principal":    {Principal: &bad, Arguments: json.RawMessage(`{}`)},
		"$.tool_id":      {ToolID: bad, Arguments: json.RawMessage(`{}`)},
		"$.tool_version": {ToolVersion: bad, Arguments: json.RawMessage(`{}`)},
		"$":              {Principal: &fine, ContinuationState: &bad, Arguments: json.RawMessage(`{}`)},
		"$.arguments":    {Principal: &fine},
	} {
		_, err := mcpreplay.FingerprintV1(secret(1), r)
		var e *mcpreplay.JSONError
		if !errors.As(err, &e) || e.Path != path {
			t.Errorf("error = %v, want one at %s", err, path)
		}
	}
}

// oracleV1 is contract v1 by way of encoding/json, which is right where nothing is wrong with a text.
func oracleV1(key, line []byte) string {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var r map[string]any
	if err := d.Decode(&r); err != nil {
		return err.Error()
	}
	payload := map[string]any{}
	for _, name := range []string{"principal", "tool_id", "tool_version", "arguments"} {
		payload[name] = r[name]
	}
	for _, name := range []string{"continuation_state", "input_responses"} {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(name + "\x00" + oracleText(r[name])))
		payload[name] = hex.EncodeToString(h.Sum(nil))
	}
	sum := sha256.Sum256([]byte(oracleText(payload)))
	return hex.EncodeToString(sum[:])
}

func oracleText(v any) string {
	var parts []string
	switch v := v.(type) {
	case json.Number:
		f, _ := strconv.ParseFloat(string(v), 64)
		return strconv.FormatInt(int64(f), 10)
	case string:
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		_ = e.Encode(v)
		return strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029").Replace(strings.TrimSuffix(b.String(), "\n"))
	case []any:
		for _, e := range v {
			parts = append(parts, oracleText(e))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, oracleText(name)+":"+oracleText(v[name]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case bool:
		return strconv.FormatBool(v)
	}
	return "null"
}

func FuzzRequestV1(f *testing.F) {
	for _, seed := range []string{
		`{"principal":"alice","tool_id":"t","tool_version":"1","arguments":{"a":[1,2.0,-0]},"continuation_state":"s","input_responses":{"b":"\u2028"}}`,
		`{"principal":null,"tool_id":"t","tool_version":"1","arguments":{"a":0.5,"a":1e2}}`,
		`{"principal":"\ud83d\ude00","tool_id":"<&>","tool_version":"","arguments":{},"x":"\ud800"}`,
		`{"principal":"a","tool_id":"t","tool_version":"1","arguments":{"\ud800":1,"b":{"c":"\u0000\u007f"}},"input_responses":"x"}`,
		`{"principal":"a","tool_id":5,"tool_version":"1","arguments":[]}`, `[]`, `{`, ``,
	} {
		f.Add([]byte(seed))
	}
	key := secret(7)
	f.Fuzz(func(t *testing.T, line []byte) {
		// The other contract shares the reader: neither may panic.
		if b, err := mcpreplay.ParseRequestV2(line); err == nil {
			if _, err := newKeyring(t, key).Digest(b); err != nil {
				t.Fatalf("parsed but not digested: %v", err)
			}
		}
		r, err := mcpreplay.ParseRequestV1(line)
		if err != nil {
			fuzzRefusedV1(t, err)
			return
		}
		got, err := mcpreplay.FingerprintV1(key, r)
		if err != nil {
			fuzzRefusedV1(t, err)
			return
		}
		if want := oracleV1(key, line); got != want {
			t.Fatalf("digest of %q = %s, want %s", line, got, want)
		}
	})
}

func fuzzRefusedV1(t *testing.T, err error) {
	var e *mcpreplay.JSONError
	if !errors.As(err, &e) {
		t.Fatalf("error = %v, want a *JSONError", err)
	}
	for _, r := range err.Error() {
		if !strconv.IsPrint(r) {
			t.Fatalf("unprintable %U in %q", r, err.Error())
		}
	}
}
