package vectors_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"mcpreplay"
	"mcpreplay/internal/vectors"
)

// portablePack is the pack of the program, or its first vector alone.
func portablePack(t *testing.T, all bool) *vectors.Pack {
	t.Helper()
	p, err := vectors.PortablePack()
	if err != nil {
		t.Fatal(err)
	}
	if !all {
		p.Vectors = p.Vectors[:1]
	}
	return p
}

// foreign is this test binary as an implementation.
func foreign(t *testing.T, how ...string) *vectors.Foreign {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &vectors.Foreign{Command: append([]string{exe, "implementation"}, how...), Limit: time.Minute, Stderr: io.Discard}
}

// wrong are the names of the vectors that are not as expected.
func wrong(t *testing.T, p *vectors.Pack, f *vectors.Foreign) (names []string) {
	t.Helper()
	results, err := p.Check(t.Context(), f.Classify, func(name string, reason error) { t.Errorf("%s: %v", name, reason) })
	if err != nil || len(results) != len(p.Vectors) {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for _, r := range results {
		if !r.OK() {
			names = append(names, r.Name)
		}
	}
	return names
}

func TestARightForeignImplementationPasses(t *testing.T) {
	t.Parallel()
	if names := wrong(t, portablePack(t, true), foreign(t, "right")); names != nil {
		t.Errorf("wrong: %v", names)
	}
}

// Every vector is there for a mistake, and every mistake is found by its vector
// alone.
func TestEachPlantedMistakeIsCaughtByItsVector(t *testing.T) {
	t.Parallel()
	plants := map[string]string{
		"never-replays":      "identical",
		"ignores-responses":  "changed_accepted_input",
		"ignores-state":      "new_issuance_nonce",
		"ignores-principal":  "different_principal",
		"accepts-no-state":   "stripped_state",
		"repeats-lost-calls": "lost_reply_unknown",
		"guesses":            "missing_record_unknown",
	}
	p := portablePack(t, true)
	for _, v := range p.Vectors {
		if !slices.Contains(slices.Collect(maps.Values(plants)), v.Name) {
			t.Errorf("no mistake is planted for %s", v.Name)
		}
	}
	for mistake, want := range plants {
		t.Run(mistake, func(t *testing.T) {
			t.Parallel()
			if names := wrong(t, p, foreign(t, mistake)); !slices.Equal(names, []string{want}) {
				t.Errorf("caught by %v, want %s", names, want)
			}
		})
	}
}

// The foreign implementation computes contract v1 by itself, so that passing is
// no agreement of this program with itself.
func TestTheForeignImplementationComputesContractV1(t *testing.T) {
	t.Parallel()
	var pack struct {
		KeyHex string
		Base   json.RawMessage
	}
	text, err := os.ReadFile("portable-v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var base map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(text, &pack), json.Unmarshal(pack.Base, &base)); err != nil {
		t.Fatal(err)
	}
	got, err := digest(pack.KeyHex, base)
	if err != nil {
		t.Fatal(err)
	}
	r, err := mcpreplay.ParseRequestV1(pack.Base)
	if err != nil {
		t.Fatal(err)
	}
	key, err := hex.DecodeString(pack.KeyHex)
	if err != nil {
		t.Fatal(err)
	}
	want, err := mcpreplay.FingerprintV1(key, r)
	if err != nil || got != want {
		t.Errorf("digest %s, want %s, %v", got, want, err)
	}
}

func TestWhatIsNoAnswerIsInvalid(t *testing.T) {
	t.Parallel()
	const right = `{"vector":VECTOR,"classification":"replay"}`
	tests := []struct {
		name string
		how  []string
		want string // part of the reason; "" for an answer
	}{
		{"right", []string{"prints", right + `\n`}, ""},
		{"no line end", []string{"prints", right}, ""},
		{"a line end of Windows", []string{"prints", right + `\r\n`}, ""},
		{"more than was asked", []string{"prints", `{"vector":VECTOR,"classification":"replay","why":[1]}`}, ""},
		{"complaints", []string{"complains"}, ""},
		{"dies", []string{"dies"}, "it failed: exit status 3"},
		{"dies after its answer", []string{"dies-after-its-answer"}, "it failed: exit status 3"},
		{"floods", []string{"floods"}, "it printed more than 65536 bytes"},
		{"nothing", []string{"prints", ""}, "it printed no answer"},
		{"a blank line", []string{"prints", ` \n`}, "it printed no answer"},
		{"two answers", []string{"prints", right + `\n` + right + `\n`}, "it printed more than one line"},
		{"a blank line after it", []string{"prints", right + `\n\n`}, "it printed more than one line"},
		{"a greeting before it", []string{"prints", `hello\n` + right + `\n`}, "it printed more than one line"},
		{"rubbish", []string{"prints", "replay"}, "its answer is no JSON: "},
		{"two values", []string{"prints", right + right}, "its answer is no JSON: "},
		{"two of one member", []string{"prints", `{"vector":VECTOR,"classification":"conflict","classification":"replay"}`}, "its answer is no JSON: "},
		{"null", []string{"prints", "null"}, "its answer is no JSON object: "},
		{"a list", []string{"prints", "[" + right + "]"}, "its answer is no JSON object: "},
		{"another vector", []string{"prints", `{"vector":0,"classification":"replay"}`}, `it answered vector "0"`},
		{"no vector", []string{"prints", `{"classification":"replay"}`}, `it answered vector ""`},
		{"a vector in quotes", []string{"prints", `{"vector":"VECTOR","classification":"replay"}`}, "it answered vector "},
		{"a member of another case", []string{"prints", `{"vector":VECTOR,"Classification":"replay"}`}, "its answer has no text as classification"},
		{"no text", []string{"prints", `{"vector":VECTOR,"classification":null}`}, "its answer has no text as classification"},
		{"another word", []string{"prints", `{"vector":VECTOR,"classification":"yes\u001b[2J"}`}, `there is no classification "yes\x1b[2J"`},
		{"invalid itself", []string{"prints", `{"vector":VECTOR,"classification":"invalid"}`}, `there is no classification "invalid"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			result, reason := first(t, foreign(t, tt.how...))
			if reason == nil && tt.want == "" && result.Actual == vectors.ClassReplay {
				return
			}
			if reason == nil || tt.want == "" || !strings.Contains(reason.Error(), tt.want) || result.Actual != vectors.ClassInvalid {
				t.Errorf("%s, %v; want %q", result.Actual, reason, tt.want)
			}
		})
	}
}

// first is what becomes of the first vector.
func first(t *testing.T, f *vectors.Foreign) (result vectors.Result, reason error) {
	t.Helper()
	results, err := portablePack(t, false).Check(t.Context(), f.Classify, func(_ string, r error) { reason = r })
	if err != nil || len(results) != 1 {
		t.Fatalf("%v, %v", results, err)
	}
	return results[0], reason
}

func TestComplaintsAreShownUpToABound(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	f := foreign(t, "complains")
	f.Stderr = &said
	if result, reason := first(t, f); result.Actual != vectors.ClassReplay {
		t.Errorf("%s, %v", result.Actual, reason)
	}
	if text := said.String(); len(text) != 64<<10+1 || !strings.HasPrefix(text, "oh no oh no ") || !strings.HasSuffix(text, "\n") {
		t.Errorf("%d bytes of stderr", len(text))
	}
}

func TestAnImplementationThatDoesNotEndIsInvalid(t *testing.T) {
	t.Parallel()
	f := foreign(t, "hangs")
	f.Limit = 200 * time.Millisecond
	result, reason := first(t, f)
	if result.Actual != vectors.ClassInvalid || reason == nil || reason.Error() != "it did not end in time (200ms)" {
		t.Errorf("%s, %v", result.Actual, reason)
	}
}

// descendant is an address that a descendant connects to, to show that it lives,
// and what waits for that and then for its end.
func descendant(t *testing.T) (address string, alive func() (gone func())) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("descendants are left alone here")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
	return l.Addr().String(), func() func() {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(time.Minute))
			if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the descendant lives: %v", err)
			}
		}
	}
}

func TestWhatAHangingImplementationStartedEndsWithIt(t *testing.T) {
	t.Parallel()
	address, alive := descendant(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, f := portablePack(t, false), foreign(t, "hangs-below", address)
	f.Limit = time.Hour
	ended := make(chan error)
	go func() {
		_, err := p.Check(ctx, f.Classify, func(string, error) {})
		ended <- err
	}()
	gone := alive()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Check() = %v", err)
	}
	gone()
}

func TestAnImplementationThatLeavesItsOutputOpenIsInvalid(t *testing.T) {
	t.Parallel()
	address, alive := descendant(t)
	result, reason := first(t, foreign(t, "leaves-a-child", address))
	if result.Actual != vectors.ClassInvalid || reason == nil || reason.Error() != "it ended and left its output open" {
		t.Errorf("%s, %v", result.Actual, reason)
	}
	alive()()
}

func TestACommandThatIsNoneIsInvalid(t *testing.T) {
	t.Parallel()
	f := &vectors.Foreign{Command: []string{"./there-is-no-such-program"}, Limit: time.Minute, Stderr: io.Discard}
	if result, reason := first(t, f); result.Actual != vectors.ClassInvalid || reason == nil {
		t.Errorf("%s, %v", result.Actual, reason)
	}
}

// The whole way, as a person takes it: the program, two dashes, a command.
func TestTheCommandFindsAnImplementationThatIgnoresResponses(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "mcpreplay")
	if out, err := exec.Command("go", "build", "-o", binary, "mcpreplay/cmd/mcpreplay").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for how, want := range map[string]int{"right": 0, "ignores-responses": 1} {
		cmd := exec.Command(binary, "lab", "vectors", "--json", "--", exe, "implementation", how)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != want {
			t.Fatalf("%s: %v, want exit code %d: %s", how, err, want, stderr.String())
		}
		var results []vectors.Result
		if err := json.Unmarshal(out, &results); err != nil || len(results) != 7 {
			t.Fatalf("%s: %v: %s", how, err, out)
		}
		for i, r := range results {
			if r.OK() != (want == 0 || i != 1) {
				t.Errorf("%s: %+v", how, r)
			}
		}
	}
}
