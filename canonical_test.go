package mcpreplay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mcpreplay"
)

func TestCanonical(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"literals", " [ true , false , null ] ", `[true,false,null]`},
		{"scalar", " 7\n", `7`},
		{"members sorted", `{"b":1,"a":{"d":1,"c":2}}`, `{"a":{"c":2,"d":1},"b":1}`},
		{"sorted by decoded name", `{"\u0062":1,"a":2,"\"":3,"!":4}`, `{"!":4,"\"":3,"a":2,"b":1}`},
		{"escapes", `"\u0041\/\u001F\u00e9\b\t\n\f\r\"\\\u007f"`, `"A/\u001fé\b\t\n\f\r\"\\` + "\x7f\""},
		{"plain integer", `9007199254740993`, `9007199254740993`},
		{"fraction", `-10.50`, `-105e-1`},
		{"small exponent", `12e20`, `1200000000000000000000`},
		{"large exponent", `12e21`, `12e21`},
		{"zeros of digits become exponent", `1000000000000000000000`, `1e21`},
		{"zero with any exponent", `-0.000e999999999999999999999999`, `0`},
		{"long exponent", `1e0000000000000000000000000000000000000002`, `100`},
		{"exponent and fraction meet", `0.` + strings.Repeat("0", 20000) + `1e20001`, `1`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := mcpreplay.Canonical([]byte(tt.text), nil)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("Canonical() = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestCanonicalRefuses(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`[`, n) + strings.Repeat(`]`, n) }
	tests := []struct {
		name, text string
		limits     *mcpreplay.Limits
		want       string
		limit      bool
	}{
		{name: "empty", text: "", want: "$: unexpected end of text"},
		{name: "cut short", text: `{"a":[1,`, want: "$.a[1]: unexpected end of text at byte 8"},
		{name: "trailing garbage", text: `{} x`, want: "$: unexpected character 'x' at byte 3"},
		{name: "trailing NUL", text: "1\x00", want: `$: unexpected character '\x00' at byte 1`},
		{name: "duplicate after unescaping", text: `{"x":[{"a":1,"\u0061":2}]}`, want: "$.x[0].a: duplicate member at byte 13"},
		{name: "cut literal", text: `[nul]`, want: "$[0]: unexpected character ']' at byte 4"},
		{name: "control character in a name is quoted", text: `{"a\n\u001b[31m":x}`, want: `$["a\n\x1b[31m"]: unexpected character 'x' at byte 17`},
		{name: "format character in a name is quoted", text: `{"\u202e":x}`, want: `$["\u202e"]: unexpected character 'x' at byte 10`},
		{name: "long name is shortened", text: `{"` + strings.Repeat("é", 100) + `":x}`,
			want: `$["` + strings.Repeat(`\u00e9`, 20) + `"...]: unexpected character 'x' at byte 204`},
		{name: "name without end", text: `{"abc`, want: "$.<key>: unexpected end of text at byte 5"},
		{name: "size", text: `[1,2]`, limits: &mcpreplay.Limits{Bytes: 4}, want: "$: text has 5 bytes, more than 4", limit: true},
		{name: "depth", text: deep(3), limits: &mcpreplay.Limits{Depth: 2}, want: "$[0][0]: nested deeper than 2 at byte 2", limit: true},
		{name: "default depth", text: deep(129), want: "$[0][0][0][0][0][0][...][0][0][0][0][0][0]: nested deeper than 128 at byte 128", limit: true},
		{name: "exponent", text: `{"n":1e1000000000}`, want: "$.n: exponent is beyond ±9999 at byte 5", limit: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := mcpreplay.Canonical([]byte(tt.text), tt.limits)
			var e *mcpreplay.JSONError
			if !errors.As(err, &e) {
				t.Fatalf("error = %v, want a *JSONError", err)
			}
			if e.Error() != tt.want || e.Limit != tt.limit {
				t.Errorf("error = %v (limit %v)\nwant    %s (limit %v)", e, e.Limit, tt.want, tt.limit)
			}
		})
	}
	t.Run("not an object", func(t *testing.T) {
		for _, text := range []string{`[]`, `"{}"`, ``, `null`} {
			if got, err := mcpreplay.CanonicalObject([]byte(text), nil); err == nil {
				t.Errorf("CanonicalObject(%q) = %s, want an error", text, got)
			}
		}
	})
	t.Run("deepest that may be asked for", func(t *testing.T) {
		most := &mcpreplay.Limits{Depth: 1 << 40}
		if _, err := mcpreplay.Canonical([]byte(deep(mcpreplay.MaxJSONDepth)), most); err != nil {
			t.Error(err)
		}
		if err := mcpreplay.CheckJSON([]byte(strings.Repeat("[", 1<<20)), most); err == nil {
			t.Error("deeper than MaxJSONDepth accepted")
		}
	})
}

func TestCheckJSONHardlyAllocates(t *testing.T) {
	text := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"title":"a\nb","n":[1,2.5]}}}`)
	if n := testing.AllocsPerRun(100, func() { _ = mcpreplay.CheckJSON(text, nil) }); n > 3 {
		t.Errorf("%v allocations for a small message, want at most 3", n)
	}
}

// anyJSON draws a value as one spelling of it; respell draws others of the same value.
func anyJSON(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := 4
		if depth > 0 {
			kinds = 6
		}
		switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return rapid.SampledFrom([]any{nil, true, false}).Draw(t, "literal")
		case 1:
			return number{rapid.Int64().Draw(t, "digits"), rapid.IntRange(-60, 60).Draw(t, "exponent")}
		case 2, 3:
			return rapid.String().Draw(t, "string")
		case 4:
			return rapid.SliceOfN(anyJSON(depth-1), 0, 5).Draw(t, "array")
		}
		return rapid.MapOfN(rapid.String(), anyJSON(depth-1), 0, 5).Draw(t, "object")
	})
}

// number is digits times ten to the exp.
type number struct {
	digits int64
	exp    int
}

func (n number) rat() *big.Rat {
	r, ok := new(big.Rat).SetString(strconv.FormatInt(n.digits, 10) + "e" + strconv.Itoa(n.exp))
	if !ok {
		panic("not a number")
	}
	return r
}

// respell writes v with random white space, member order, escapes and number forms.
func respell(rng *rand.Rand, v any) string {
	space := func() string { return []string{"", "", " ", "\n\t", "\r "}[rng.IntN(5)] }
	text := ""
	switch v := v.(type) {
	case nil:
		text = "null"
	case bool:
		text = strconv.FormatBool(v)
	case number:
		text = v.spell(rng)
	case string:
		text = spellString(rng, v)
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = respell(rng, v[i])
		}
		text = "[" + strings.Join(parts, ",") + space() + "]"
	case map[string]any:
		var parts []string
		for name, value := range v { // in random order
			parts = append(parts, space()+spellString(rng, name)+space()+":"+respell(rng, value))
		}
		text = "{" + strings.Join(parts, ",") + space() + "}"
	}
	return space() + text + space()
}

func (n number) spell(rng *rand.Rand) string {
	digits, sign := strconv.FormatInt(n.digits, 10), ""
	if digits[0] == '-' {
		digits, sign = digits[1:], "-"
	}
	exp := n.exp
	if digits == "0" && rng.IntN(2) == 0 {
		sign, exp = "-", rng.IntN(1e6)
	}
	zeros := rng.IntN(25)
	digits, exp = digits+strings.Repeat("0", zeros), exp-zeros
	if point := rng.IntN(len(digits)); point > 0 {
		exp += len(digits) - point
		digits = digits[:point] + "." + digits[point:]
		if digits[0] == '0' { // zero itself, or it would be a leading zero
			digits = "0." + strings.TrimLeft(digits, "0.") + "0"
		}
	} else if digits[0] == '0' {
		digits = "0"
	}
	if exp == 0 && rng.IntN(2) == 0 {
		return sign + digits
	}
	text := strconv.Itoa(exp)
	if exp >= 0 {
		text = []string{"", "+"}[rng.IntN(2)] + []string{"", "000"}[rng.IntN(2)] + text
	}
	return sign + digits + []string{"e", "E"}[rng.IntN(2)] + text
}

func spellString(rng *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '/' && rng.IntN(2) == 0:
			b.WriteString(`\/`)
		case r < 0x20 || r == '"' || r == '\\' || r < 0x10000 && rng.IntN(3) == 0:
			hex := strconv.FormatInt(int64(r)|0x10000, 16)[1:]
			if rng.IntN(2) == 0 {
				hex = strings.ToUpper(hex)
			}
			b.WriteString(`\u` + hex)
		case r >= 0x10000 && rng.IntN(2) == 0:
			high, low := utf16.EncodeRune(r)
			b.WriteString(`\u` + strconv.FormatInt(int64(high), 16) + `\u` + strconv.FormatInt(int64(low), 16))
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// plain turns numbers into one comparable text each.
func plain(v any) any {
	switch v := v.(type) {
	case number:
		return "number " + v.rat().RatString()
	case json.Number:
		// Package big refuses exponents that mean nothing.
		if mantissa, _, _ := strings.Cut(strings.ToLower(string(v)), "e"); !strings.ContainsAny(mantissa, "123456789") {
			return "number 0"
		}
		r, ok := new(big.Rat).SetString(string(v))
		if !ok {
			return "not a number"
		}
		return "number " + r.RatString()
	case string:
		return "string " + v
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = plain(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for name, value := range v {
			out[name] = plain(value)
		}
		return out
	}
	return v
}

func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return plain(v), err
}

func TestCanonicalIsTheValueAndNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyJSON(3).Draw(t, "a"), anyJSON(3).Draw(t, "b")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		form := func(v any) string {
			text := respell(rng, v)
			got, err := mcpreplay.Canonical([]byte(text), nil)
			if err != nil {
				t.Fatalf("Canonical(%q): %v", text, err)
			}
			return string(got)
		}
		one, two, other := form(a), form(a), form(b)
		if one != two {
			t.Fatalf("two forms of one value:\n%s\n%s", one, two)
		}
		same := cmp.Equal(plain(a), plain(b))
		if (one == other) != same {
			t.Fatalf("forms equal = %v, values equal = %v:\n%s\n%s", one == other, same, one, other)
		}
		back, err := decode([]byte(one))
		if err != nil {
			t.Fatalf("%s: %v", one, err)
		}
		if diff := cmp.Diff(plain(a), back); diff != "" {
			t.Fatalf("%s means another value:\n%s", one, diff)
		}
	})
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.50,-0,1e21],"a":{"x":null,"\u0061":true}}`, `"\ud83d\ude00\ud800"`, `{"a":1,"\u0061":2}`,
		`1e1000000000`, `0.0000e99999`, `-12.3400E-0007`, "\"\xff\"", `[[[]],{}]`, `{"\ud800":1}`, ` "\/\b\f\n\r\t" `,
		`[1,]`, `01`, `nul`, `{"a":{"b":1,"b":1}}`, `1e-9999`, `100000000000000000000000`, "\ufeff{}",
		`0e10000000000000000000`,
	} {
		f.Add([]byte(seed))
	}
	limits := &mcpreplay.Limits{Bytes: 1 << 12, Depth: 50}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := mcpreplay.Canonical(text, limits)
		check := mcpreplay.CheckJSON(text, limits)
		if diff := cmp.Diff(err, check, cmp.Comparer(func(a, b error) bool {
			return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
		})); diff != "" {
			t.Fatalf("Canonical and CheckJSON disagree:\n%s", diff)
		}
		if err != nil {
			fuzzRefused(t, text, err)
			return
		}
		if !utf8.Valid(text) || !json.Valid(text) {
			t.Fatalf("accepted %q", text)
		}
		again, err := mcpreplay.Canonical(got, &mcpreplay.Limits{Bytes: 1 << 20, Depth: 50})
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("not its own form:\n%s\n%s\n%v", got, again, err)
		}
		was, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		is, err := decode(got)
		if err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if diff := cmp.Diff(was, is); diff != "" {
			t.Fatalf("%q became %s:\n%s", text, got, diff)
		}
	})
}

// fuzzRefused holds a refusal to its reason: what the standard library reads is refused only for
// what the contract adds, and the message is one printable line.
func fuzzRefused(t *testing.T, text []byte, err error) {
	var e *mcpreplay.JSONError
	if !errors.As(err, &e) {
		t.Fatalf("error = %v, want a *JSONError", err)
	}
	if e.Offset < 0 || e.Offset > len(text) {
		t.Fatalf("offset %d of %d bytes", e.Offset, len(text))
	}
	for _, r := range e.Error() {
		if !strconv.IsPrint(r) {
			t.Fatalf("unprintable %U in %q", r, e.Error())
		}
	}
	added := []string{"invalid UTF-8", "unpaired surrogate", "duplicate member"}
	if json.Valid(text) && !e.Limit && !slices.Contains(added, e.Reason) {
		t.Fatalf("refused %q: %v", text, err)
	}
}

func BenchmarkCheckJSON(b *testing.B) {
	text := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create_issue","arguments":{"title":"spec","body":"` +
		strings.Repeat("lorem ipsum ", 100) + `","labels":["a","b"],"n":12.5}}}`)
	b.Run("check", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			_ = mcpreplay.CheckJSON(text, nil)
		}
	})
	b.Run("canonical", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = mcpreplay.Canonical(text, nil)
		}
	})
}
