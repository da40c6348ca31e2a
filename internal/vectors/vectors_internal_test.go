package vectors

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func portable(t *testing.T) *Pack {
	t.Helper()
	p, err := PortablePack()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The pack is a contract with other languages: a change here is one of the format.
func TestPortablePackHasTheSevenVectors(t *testing.T) {
	t.Parallel()
	var got []Result
	for _, v := range portable(t).Vectors {
		got = append(got, Result{Name: v.Name, Expected: v.Expected, Kind: v.Kind})
	}
	want := []Result{
		{Name: "identical", Expected: "replay", Kind: "reference_policy"},
		{Name: "changed_accepted_input", Expected: "conflict", Kind: "reference_policy"},
		{Name: "new_issuance_nonce", Expected: "conflict", Kind: "server_single_use"},
		{Name: "different_principal", Expected: "conflict", Kind: "reference_identity_policy"},
		{Name: "stripped_state", Expected: "reject", Kind: "reference_state_policy"},
		{Name: "lost_reply_unknown", Expected: "status_only", Kind: "reference_recovery_policy"},
		{Name: "missing_record_unknown", Expected: "stop_unknown", Kind: "reference_recovery_policy"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestThisImplementationPassesThePortableVectors(t *testing.T) {
	t.Parallel()
	results, err := portable(t).Check(t.Context(), Classify, func(name string, reason error) {
		t.Errorf("%s: %v", name, reason)
	})
	if err != nil || len(results) != 7 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for _, r := range results {
		if !r.OK() {
			t.Errorf("%+v", r)
		}
	}
}

// A status that a consumer does not believe is no classification, and the reason
// is told: it must not pass for an honest unknown.
func TestClassifyBelievesNoForeignObservation(t *testing.T) {
	t.Parallel()
	p := portable(t)
	for _, v := range p.Vectors {
		if v.Transport == "" {
			continue
		}
		q := p.question(v, 1)
		q.Observation.Binding.OperationID = "portable-2"
		if class, err := Classify(t.Context(), q); err == nil {
			t.Errorf("%s: %s of a status about another operation", v.Name, class)
		}
		q.Observation = nil
		if class, err := Classify(t.Context(), q); err == nil {
			t.Errorf("%s: %s without a status", v.Name, class)
		}
	}
}

// An implementation that answers by the name of a vector, or of its transport,
// would pass and decide nothing.
func TestQuestionsDoNotGiveTheAnswerAway(t *testing.T) {
	t.Parallel()
	p := portable(t)
	for _, v := range p.Vectors {
		line, err := oneLine(p.question(v, 7))
		if err != nil {
			t.Fatal(err)
		}
		text := string(line)
		for _, other := range p.Vectors {
			for _, secret := range []string{other.Name, other.Kind, string(other.Expected), transportMissing, `"expected"`, `"kind"`, "\n"} {
				if strings.Contains(text, secret) {
					t.Errorf("%s: the question has %q: %s", v.Name, secret, text)
				}
			}
		}
	}
}

func TestParsePackRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new, want string }{
		{"another version", `"version": 1`, `"version": 2`, `unsupported vector version: "2", known is 1`},
		{"no version", `"version": 1,`, ``, `unsupported vector version: "", known is 1`},
		{"a version in another spelling", `"version": 1`, `"Version": 1`, `unsupported vector version: "", known is 1`},
		{"no JSON", `"version": 1,`, `"version": 1`, `$: `},
		{"two members of one name", `"kind": "server_single_use"`, `"kind": "reference_policy", "kind": "server_single_use"`, `duplicate`},
		{"another member", `"version": 1`, `"version": 1, "note": ""`, `unknown member "note"`},
		{"another member of a vector", `"name": "identical"`, `"name": "identical", "timeout": 1`, `vector 1: unknown member "timeout"`},
		{"a short key", `"keyHex": "70`, `"keyHex": "`, `keyHex: has 31 bytes, at least 32 are needed`},
		{"a key that is no key", `"keyHex": "70`, `"keyHex": "zz`, `keyHex: must be hexadecimal`},
		{"a member the base lacks", `"tool_id": "book_room",`, ``, `base: tool_id is missing`},
		{"a base of nobody", `"principal": "ada"`, `"principal": null`, `base: principal must not be null or empty`},
		{"a base without state", `"question-1:nonce-5f0c2a"`, `null`, `base: continuation_state must not be null`},
		{"a misspelt change", `"changes": {"principal"`, `"changes": {"principle"`, `vector 4: changes: unknown member "principle"`},
		{"a change that makes no request", `{"principal": "grace"}`, `{"principal": 1}`, `vector 4: changes: $.principal: `},
		{"no changes", `"changes": {"principal": "grace"}`, `"changes": null`, `vector 4: changes: must be an object`},
		{"another classification", `"expected": "replay"`, `"expected": "invalid"`, `vector 1: unknown classification "invalid"`},
		{"another kind", `"kind": "server_single_use"`, `"kind": "policy"`, `vector 3: unknown kind "policy"`},
		{"another transport", `"lost_reply"`, `"lost"`, `vector 6: unknown transport "lost"`},
		{"no name", `"name": "identical"`, `"name": ""`, `vector 1: name is empty`},
		{"a name that is no text", `"name": "identical"`, `"name": 1`, `vector 1: name must be a string`},
		{"two of one name", `"name": "new_issuance_nonce"`, `"name": "identical"`, `vector 3: there are two of the name "identical"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(string(portablePack), tt.old, tt.new, 1)
			if text == string(portablePack) {
				t.Fatal("the pack is as it was")
			}
			_, err := ParsePack([]byte(text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ParsePack() = %v, want %q", err, tt.want)
			}
			if version := strings.HasPrefix(tt.want, "unsupported"); errors.Is(err, ErrVectorVersion) != version {
				t.Errorf("ParsePack() = %v, is ErrVectorVersion: %v", err, !version)
			}
		})
	}
	for _, text := range []string{``, `null`, `[]`, `{}`} {
		if _, err := ParsePack([]byte(text)); err == nil {
			t.Errorf("%q is a pack", text)
		}
	}
}

// A pack without vectors would pass and prove nothing.
func TestParsePackRefusesAnEmptyPack(t *testing.T) {
	t.Parallel()
	head, _, _ := bytes.Cut(portablePack, []byte(`"vectors": [`))
	if _, err := ParsePack(append(bytes.Clone(head), `"vectors": []}`...)); err == nil {
		t.Error("a pack without vectors was accepted")
	}
}

// What README.md shows is what is asked.
func TestReadmeShowsTheQuestionThatIsAsked(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Fatalf("README.md has %d blocks of JSON, not 2", len(blocks))
	}
	p := portable(t)
	asked, err := oneLine(p.question(p.Vectors[5], 314159))
	if err != nil {
		t.Fatal(err)
	}
	var shown, question any
	if err := errors.Join(json.Unmarshal(blocks[0][1], &shown), json.Unmarshal(asked, &question)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(question, shown); diff != "" {
		t.Error(diff)
	}
	if class, err := readClassification(blocks[1][1], 314159); err != nil || class != ClassStatusOnly {
		t.Errorf("the answer reads as %q, %v", class, err)
	}
	for _, c := range classifications {
		if !bytes.Contains(text, []byte("`"+c+"`")) {
			t.Errorf("README.md does not mention %s", c)
		}
	}
	for _, k := range append(vectorKinds, transportLost, transportMissing) {
		if !bytes.Contains(text, []byte("`"+k+"`")) {
			t.Errorf("README.md does not mention %s", k)
		}
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	_, err := portable(t).Check(ctx, func(context.Context, Question) (Classification, error) {
		asked++
		cancel()
		return ClassReplay, nil
	}, func(string, error) {})
	if !errors.Is(err, context.Canceled) || asked != 1 {
		t.Errorf("%d questions, %v", asked, err)
	}
}
