package guard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mcpreplay"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"pgregory.net/rapid"
)

func testRing(t testing.TB, secrets ...string) *mcpreplay.Keyring {
	t.Helper()
	var raw [][]byte
	for _, s := range secrets {
		raw = append(raw, bytes.Repeat([]byte(s), 32))
	}
	keys, err := mcpreplay.NewKeyring(raw...)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func testClaims() claims {
	return claims{
		Version: sealVersion, IssuedAt: 1_000_000, ExpiresAt: 2_000_000, Server: "srv", Backend: "b", Instance: "i", Incarnation: 1,
		Method: methodCall, Tool: "pay", ToolVersion: "1", Arguments: argumentsDigest([]byte("{}")), Sent: argumentsDigest([]byte("{}")), Principal: "alice",
		Operation: "op-1", Round: 1, Questions: map[string]json.RawMessage{"q": json.RawMessage(`{"type":"object"}`)},
		Answers: json.RawMessage("null"), Authority: 3_000_000, Retention: 4_000_000, Nonce: "n",
	}
}

func TestSealedStateOpensAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys, err := mcpreplay.NewKeyring(rapid.SliceOfN(rapid.Byte(), 32, 64).Draw(t, "secret"))
		if err != nil {
			t.Fatal(err)
		}
		c := testClaims()
		c.Operation = rapid.StringMatching(`[!-~]{4,40}`).Draw(t, "operation")
		c.Principal = rapid.String().Draw(t, "principal")
		c.Round = rapid.IntRange(0, 10).Draw(t, "round")
		token, err := seal(keys, c)
		if err != nil {
			t.Fatal(err)
		}
		got, plain, err := open(keys, token)
		if err != nil {
			if strings.ContainsRune(c.Principal, 0xFFFD) || !json.Valid([]byte(`"`+c.Principal+`"`)) {
				return // not valid UTF-8: such a principal is never authenticated
			}
			t.Fatalf("open: %v", err)
		}
		if diff := cmp.Diff(c, got); diff != "" || plain == "" {
			t.Fatalf("claims (-sealed +opened):\n%s", diff)
		}
		if strings.Contains(token, c.Operation) && len(c.Operation) > 8 {
			t.Fatalf("the token shows its claims: %s", token)
		}
	})
}

// Every single character matters, and so does nothing being added.
func TestNoOtherTextOpens(t *testing.T) {
	keys := testRing(t, "a")
	token, err := seal(keys, testClaims())
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(token) {
		for _, c := range []byte("A_-9\n=") {
			if token[i] == c {
				continue
			}
			if _, _, err := open(keys, token[:i]+string(c)+token[i+1:]); err == nil {
				t.Errorf("changed at %d to %q it still opens", i, c)
			}
		}
		for _, changed := range []string{token[:i], token[:i] + token[i+1:], token[:i] + "\n" + token[i:], token[:i] + "A" + token[i:]} {
			if _, _, err := open(keys, changed); err == nil {
				t.Errorf("cut, shortened or lengthened at %d it still opens", i)
			}
		}
	}
	for _, changed := range []string{token + "=", token + "\n", " " + token, "v2." + token[3:], strings.Repeat("A", maxStateSize+1), "v1.", ""} {
		if _, _, err := open(keys, changed); err == nil {
			t.Errorf("%.20q opens", changed)
		}
	}
}

func TestKeysRotate(t *testing.T) {
	before, after, gone := testRing(t, "a"), testRing(t, "b", "a"), testRing(t, "b")
	old, err := seal(before, testClaims())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := open(after, old); err != nil {
		t.Errorf("a ring that still holds the key: %v", err)
	}
	if _, _, err := open(gone, old); err == nil {
		t.Error("a ring without the key opens what it sealed")
	}
	fresh, err := seal(after, testClaims())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := open(before, fresh); err == nil {
		t.Error("a new ring seals with its old key")
	}
}

// admit holds every claim against the attempt: change one, and it is refused.
func TestStateIsForOneAttempt(t *testing.T) {
	g := &Guard{opts: Options{Name: "srv"}}
	a := &attempt{g: g, tool: &tool{name: "pay", version: "1"}, op: &Op{Principal: "alice"}, canonical: []byte("{}"), asSent: []byte("{}")}
	ledger := mcpreplay.Info{Backend: "b", Instance: "i", Incarnation: 1, Time: time.UnixMicro(1_500_000)}
	if err := g.admit(testClaims(), a, ledger); err != nil {
		t.Fatal(err)
	}
	tests := map[string]func(*claims){
		"server":      func(c *claims) { c.Server = "other" },
		"backend":     func(c *claims) { c.Backend = "other" },
		"instance":    func(c *claims) { c.Instance = "other" },
		"incarnation": func(c *claims) { c.Incarnation++ },
		"method":      func(c *claims) { c.Method = "prompts/get" },
		"tool":        func(c *claims) { c.Tool = "refund" },
		"version":     func(c *claims) { c.ToolVersion = "2" },
		"principal":   func(c *claims) { c.Principal = "bob" },
		"arguments": func(c *claims) {
			c.Arguments = argumentsDigest([]byte("{ }"))
			c.Sent = c.Arguments
		},
		"expired": func(c *claims) { c.ExpiresAt = 1_500_000 },
		"future":  func(c *claims) { c.IssuedAt = 1_500_001 + maxSkew.Microseconds() },
	}
	for name, change := range tests {
		c := testClaims()
		change(&c)
		if err := g.admit(c, a, ledger); err == nil {
			t.Errorf("%s: admitted", name)
		}
	}
}

func FuzzRequestState(f *testing.F) {
	keys := testRing(f, "a", "b")
	token, err := seal(keys, testClaims())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add(token[:40])
	f.Add("v1." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)))
	f.Add("v1.AAAA\nBBBB")
	f.Fuzz(func(t *testing.T, text string) {
		c, plain, err := open(keys, text)
		if err != nil {
			return
		}
		// Nobody can seal other claims than those of the seeds, and each token has
		// one spelling.
		if diff := cmp.Diff(testClaims(), c); diff != "" {
			t.Fatalf("%q opens as other claims (%s):\n%s", text, plain, diff)
		}
		raw, err := base64.RawURLEncoding.DecodeString(text[len(sealPrefix):])
		if err != nil || sealPrefix+base64.RawURLEncoding.EncodeToString(raw) != text {
			t.Fatalf("%q opens and is not the one spelling of its token", text)
		}
	})
}

// FuzzArguments looks for arguments that are read in two ways: what the
// fingerprint is made of and what the effect gets must be the same.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{`{"operation_id":"op-1","n":9007199254740993}`, `{"a":{"b":[1,2.50,"x"]}}`, `{"n":1e400}`, `{"n":-0.0}`, `{"":""}`, `{"a":1,"a":2}`, `[]`, `null`, `{"operation_id":7}`} {
		f.Add([]byte(s))
	}
	in := &input{schema: mustResolve(f, `{"type":"object","properties":{"mode":{"type":"string","default":"atomic"},"o":{"type":"object","properties":{"d":{"default":1.50}}}}}`)}
	f.Fuzz(func(t *testing.T, raw []byte) {
		args, err := in.read(raw, &mcpreplay.Limits{Bytes: 1 << 16, Depth: 64})
		if err != nil {
			return
		}
		again, err := mcpreplay.CanonicalObject(args.normal, nil)
		if err != nil || !bytes.Equal(again, args.canonical) {
			t.Fatalf("%q: the effect would get %s, fingerprinted is %s (%v)", raw, args.normal, args.canonical, err)
		}
		// Reading what the effect gets changes nothing: defaults are filled once.
		twice, err := in.read(args.normal, nil)
		if err != nil || !bytes.Equal(twice.canonical, args.canonical) {
			t.Fatalf("%q: read twice it is %s, not %s (%v)", raw, twice.canonical, args.canonical, err)
		}
		decoded, err := decodeInput[map[string]json.RawMessage](args.normal)
		if err != nil {
			t.Fatalf("%q: the effect cannot decode %s: %v", raw, args.normal, err)
		}
		if _, leaked := decoded[argOperationID]; leaked {
			t.Fatalf("%q: the id is among the arguments: %s", raw, args.normal)
		}
	})
}

func mustResolve(t testing.TB, schema string) *jsonschema.Resolved {
	t.Helper()
	s, err := asSchema(json.RawMessage(schema))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
