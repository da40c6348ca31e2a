package faults

import "testing"

func TestMemberIsTakenOutAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{`{"p":{"s":1}}`, `{"p":{}}`},
		{`{ "p" : { "s" : "x" , "b" : [1, 2e3] } , "s":1 }`, `{ "p" : { "b" : [1, 2e3] } , "s":1 }`},
		{`{"p":{"b":1,"s":{"s":1}}}`, `{"p":{"b":1}}`},
		{`{"p":{"b":"<&>\u00e9","s":null,"c":{"s":1}}}`, `{"p":{"b":"<&>\u00e9","c":{"s":1}}}`},
		{`{"p":{"s":1,"s":2,"b":1,"s":3},"p":{"\u0073":4}}`, `{"p":{"b":1},"p":{}}`},
		{`{ "q":1, "p":[{"s":1}] }`, `{ "q":1, "p":[{"s":1}] }`},
		{`{"p":"s"}`, `{"p":"s"}`},
		{`{"p":{"s":1}`, `{"p":{"s":1}`},
		{`{"p":{"s"`, `{"p":{"s"`},
		{`[{"p":{"s":1}}]`, `[{"p":{"s":1}}]`},
		{"", ""},
	} {
		if got := string(withoutMember([]byte(tt.text), "p", "s")); got != tt.want {
			t.Errorf("%s became %s, want %s", tt.text, got, tt.want)
		}
	}
}
