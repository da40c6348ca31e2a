package mcpreplay_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mcpreplay"
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
