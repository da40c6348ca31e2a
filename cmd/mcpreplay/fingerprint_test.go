package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

type vectorFile struct {
	KeyHex    string   `json:"key_hex"`
	SecretHex string   `json:"secret_hex"`
	Vectors   []vector `json:"vectors"`
	Generated []vector `json:"generated"`
	Rejects   []vector `json:"rejects"`
}

type vector struct {
	Name        string  `json:"name"`
	KeyHex      *string `json:"key_hex"`
	KeyUnset    bool    `json:"key_unset"`
	SecretHex   string  `json:"secret_hex"`
	Request     string  `json:"request"`
	RequestB64  string  `json:"request_base64"`
	Placeholder string  `json:"placeholder"`
	Repeat      string  `json:"repeat"`
	Count       int     `json:"count"`
	Digest      string  `json:"digest"`
	Fingerprint string  `json:"fingerprint"`
	Path        string  `json:"path"`
}

func (v *vector) line(t *testing.T) string {
	t.Helper()
	if v.RequestB64 != "" {
		raw, err := base64.StdEncoding.DecodeString(v.RequestB64)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	if v.Placeholder != "" {
		return strings.Replace(v.Request, v.Placeholder, strings.Repeat(v.Repeat, v.Count), 1)
	}
	return v.Request
}

func readVectors(t *testing.T, name string) (f vectorFile) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "vectors", name))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func withKey(key string) map[string]string { return map[string]string{fingerprintKeyEnv: key} }

// feed gives the command all vectors that have one key, in one stream.
func feed(t *testing.T, vectors []vector, contract string, key func(*vector) string, want func(*vector) string) {
	t.Helper()
	streams := map[string][]*vector{}
	for i := range vectors {
		k := key(&vectors[i])
		streams[k] = append(streams[k], &vectors[i])
	}
	for k, list := range streams {
		var in strings.Builder
		for _, v := range list {
			in.WriteString(v.line(t) + "\n\n")
		}
		got := command(in.String(), withKey(k), "fingerprint", "--contract", contract)
		if got.code != exitFine || got.stderr != "" {
			t.Fatalf("exit %d: %s", got.code, got.stderr)
		}
		lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
		if len(lines) != len(list) {
			t.Fatalf("%d digests for %d requests", len(lines), len(list))
		}
		for i, v := range list {
			if lines[i] != want(v) {
				t.Errorf("%s: digest %s, want %s", v.Name, lines[i], want(v))
			}
		}
	}
}

func TestFingerprintGivesTheDigestsOfContractV1(t *testing.T) {
	t.Parallel()
	f := readVectors(t, "v1.json")
	key := func(v *vector) string {
		if v.KeyHex != nil {
			return *v.KeyHex
		}
		return f.KeyHex
	}
	feed(t, append(f.Vectors, f.Generated...), "v1", key, func(v *vector) string { return v.Digest })
}

func TestFingerprintGivesTheDigestsOfContractV2(t *testing.T) {
	t.Parallel()
	f := readVectors(t, "v2.json")
	key := func(v *vector) string {
		if v.SecretHex != "" {
			return v.SecretHex
		}
		return f.SecretHex
	}
	feed(t, f.Vectors, "v2", key, func(v *vector) string { return v.Fingerprint })
}

// After a good line a bad one ends the command: the digest before it is printed,
// and the fault is one line of plain text.
func TestFingerprintRefusesWhatTheContractsRefuse(t *testing.T) {
	t.Parallel()
	for _, contract := range []string{"v1", "v2"} {
		f := readVectors(t, contract+".json")
		good, fallback := f.Vectors[0].line(t), f.KeyHex+f.SecretHex
		for _, v := range f.Rejects {
			if contract == "v2" && v.Name == "empty" {
				continue // a blank line is skipped
			}
			t.Run(contract+"/"+v.Name, func(t *testing.T) {
				t.Parallel()
				environment, badKey := withKey(fallback), v.KeyUnset || v.KeyHex != nil
				if v.KeyHex != nil {
					environment = withKey(*v.KeyHex)
				} else if v.KeyUnset {
					environment = nil
				}
				got := command(good+"\n"+v.line(t)+"\n"+good+"\n", environment, "fingerprint", "--contract", contract)
				prefix, digests := "mcpreplay fingerprint: error: line 2: ", 1
				if badKey {
					prefix, digests = "mcpreplay fingerprint: error: ", 0
				}
				if got.code != exitMisused || strings.Count(got.stdout, "\n") != digests {
					t.Errorf("exit %d after %q", got.code, got.stdout)
				}
				if !strings.HasPrefix(got.stderr, prefix) || !strings.Contains(got.stderr, v.Path) {
					t.Errorf("stderr %q, want %q and %q", got.stderr, prefix, v.Path)
				}
				if key := environment[fingerprintKeyEnv]; badKey && len(key) > 1 && strings.Contains(got.stderr, key) {
					t.Errorf("the key is told: %q", got.stderr)
				}
				for _, c := range []byte(strings.TrimSuffix(got.stderr, "\n")) {
					if !badKey && c == '\n' || c < ' ' && c != '\n' || c == 0x7f {
						t.Fatalf("stderr has control characters: %q", got.stderr)
					}
				}
			})
		}
	}
}

func TestFingerprintReadsLines(t *testing.T) {
	t.Parallel()
	f := readVectors(t, "v1.json")
	good, want := f.Vectors[0].line(t), f.Vectors[0].Digest+"\n"
	deep := `{"principal":"a","tool_id":"t","tool_version":"1","arguments":` + strings.Repeat(`{"a":`, 100_000)
	tests := []struct {
		name, in, stdout string
		code             int
		stderr           string
	}{
		{"nothing", "", "", exitFine, ""},
		{"blank lines", "\n  \t\n\r\n" + good + "\n\n", want, exitFine, ""},
		{"no line end at the end", good, want, exitFine, ""},
		{"a lone CR is white space", strings.Replace(good, ",", ",\r", 1) + "\r\n", want, exitFine, ""},
		{"a byte order mark", "\uFEFF" + good, "", exitMisused, "line 1: $: a byte order mark"},
		{"a byte order mark alone", good + "\n\uFEFF\n", want, exitMisused, "line 2: $: a byte order mark"},
		{"not UTF-8", "\xff\xfe", "", exitMisused, "line 1: "},
		{"a very deep text", deep, "", exitMisused, "nested deeper than"},
		{"a text too long for the parser", `{"a":"` + strings.Repeat("x", 2<<20) + `"}`, "", exitMisused, "line 1: $: text has"},
		{"a line too long to read", good + "\n" + strings.Repeat("x", maxRequestLine+1), want, exitMisused, "line 2: it has more than"},
		{"a name that would forge a log line", `{"a\n\u001b[2Jmcpreplay: fine":1,}`, "", exitMisused, "line 1: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := command(tt.in, withKey(f.KeyHex), "fingerprint")
			if got.code != tt.code || got.stdout != tt.stdout || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %.200q", got.code, got.stdout, got.stderr)
			}
			if strings.ContainsRune(got.stderr, 0x1b) || len(got.stderr) > 1000 {
				t.Errorf("stderr is not plain: %.200q", got.stderr)
			}
		})
	}
}

func TestFingerprintTakesItsKeyFromAFile(t *testing.T) {
	t.Parallel()
	v1, v2 := readVectors(t, "v1.json"), readVectors(t, "v2.json")
	keys := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		if err := os.WriteFile(keys, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other := strings.Repeat("ab", 32)
	write("# first line\n\n" + v1.KeyHex + "\n" + other + "\n")
	if got := command(v1.Vectors[0].line(t), withKey(other), "fingerprint", "--key-file", keys); got.stdout != v1.Vectors[0].Digest+"\n" {
		t.Errorf("v1: %+v", got)
	}
	write(v2.SecretHex + "\n")
	if got := command(v2.Vectors[0].line(t), nil, "fingerprint", "--contract", "v2", "--key-file", keys); got.stdout != v2.Vectors[0].Fingerprint+"\n" {
		t.Errorf("v2: %+v", got)
	}
	write(v1.KeyHex[:20])
	if got := command(v1.Vectors[0].line(t), withKey(other), "fingerprint", "--key-file", keys); got.code != exitMisused || got.stdout != "" || strings.Contains(got.stderr, v1.KeyHex[:20]) {
		t.Errorf("short key: %+v", got)
	}
	if got := command("", nil, "fingerprint", "--key-file", keys+"-none"); got.code != exitMisused {
		t.Errorf("no file: %+v", got)
	}
	if _, err := os.Stat(keys + "-none"); err == nil {
		t.Error("a key file was created")
	}
}

// The original decoded each chunk of 64 KiB for itself and spoilt a character that
// lay across two.
func TestFingerprintReadsCharactersAcrossChunks(t *testing.T) {
	t.Parallel()
	f := readVectors(t, "v1.json")
	var out strings.Builder
	for _, v := range f.Generated {
		out.Reset()
		e := &env{
			stdin:  iotest.OneByteReader(strings.NewReader(v.line(t) + "\n")),
			stdout: &out, stderr: io.Discard,
			getenv: func(string) string { return f.KeyHex },
		}
		if code := run(t.Context(), e, []string{"fingerprint"}); code != exitFine || out.String() != v.Digest+"\n" {
			t.Errorf("%s: exit %d, %q", v.Name, code, out.String())
		}
	}
}

func TestFingerprintReportsTroubleWithItsStreams(t *testing.T) {
	t.Parallel()
	key := hex.EncodeToString(make([]byte, 32))
	broken := errors.New("the pipe is broken")
	e := &env{stdin: iotest.ErrReader(broken), stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return key }}
	if code := run(t.Context(), e, []string{"fingerprint"}); code != exitFailed {
		t.Errorf("exit %d", code)
	}
}
