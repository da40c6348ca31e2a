package mcpreplay

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type vectorFile struct {
	Contract  string
	KeyHex    string `json:"key_hex"`
	SecretHex string `json:"secret_hex"`
	Vectors   []struct {
		Name, Request, Canonical string

		// v1
		KeyHex        string `json:"key_hex"`
		StateHMAC     string `json:"continuation_state_hmac"`
		ResponsesHMAC string `json:"input_responses_hmac"`
		Digest        string

		// v2
		SecretHex                              string `json:"secret_hex"`
		KeyID                                  string `json:"key_id"`
		Fingerprint, Arguments, Answers, State string
	}
	Generated []struct {
		Name, Request, Placeholder, Repeat, Digest string
		Count                                      int
	}
	Equal, Different [][2]string
	Rejects          []struct {
		Name, Reason string
		Request      string
		RequestBytes []byte  `json:"request_base64"`
		KeyHex       *string `json:"key_hex"`
		KeyUnset     bool    `json:"key_unset"`
		Path         string
		Limit        bool
	}
}

func readVectors(t *testing.T, contract string) vectorFile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "vectors", contract+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var f vectorFile
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	if f.Contract != contract {
		t.Fatalf("contract = %q, want %q", f.Contract, contract)
	}
	return f
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkPairs holds the digests that were computed, not the ones the file lists, against the file.
func checkPairs(t *testing.T, f vectorFile, digests map[string]string) {
	t.Helper()
	for _, pair := range f.Equal {
		a, b := digests[pair[0]], digests[pair[1]]
		if a == "" || b == "" || a != b {
			t.Errorf("%s = %q, %s = %q, want equal", pair[0], a, pair[1], b)
		}
	}
	for _, pair := range f.Different {
		a, b := digests[pair[0]], digests[pair[1]]
		if a == "" || b == "" || a == b {
			t.Errorf("%s = %q, %s = %q, want different", pair[0], a, pair[1], b)
		}
	}
}

func TestVectorsV1(t *testing.T) {
	f := readVectors(t, "v1")
	if len(f.Vectors) != 94 || len(f.Generated) != 3 || len(f.Rejects) != 44 {
		t.Fatalf("%d vectors, %d generated, %d rejects; want 94, 3, 44", len(f.Vectors), len(f.Generated), len(f.Rejects))
	}
	digests := map[string]string{}
	for _, v := range f.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			key := unhex(t, f.KeyHex)
			if v.KeyHex != "" {
				key = unhex(t, v.KeyHex)
			}
			r, err := ParseRequestV1([]byte(v.Request))
			if err != nil {
				t.Fatal(err)
			}
			text, err := r.canonical(key)
			if err != nil {
				t.Fatal(err)
			}
			if string(text) != v.Canonical {
				t.Errorf("canonical = %s\nwant        %s", text, v.Canonical)
			}
			got, err := FingerprintV1(key, r)
			if err != nil || got != v.Digest {
				t.Errorf("FingerprintV1() = %s, %v, want %s", got, err, v.Digest)
			}
			digests[v.Name] = got
		})
	}
	checkPairs(t, f, digests)
	for _, g := range f.Generated {
		line := strings.Replace(g.Request, g.Placeholder, strings.Repeat(g.Repeat, g.Count), 1)
		r, err := ParseRequestV1([]byte(line))
		if err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		if got, err := FingerprintV1(unhex(t, f.KeyHex), r); err != nil || got != g.Digest {
			t.Errorf("%s: FingerprintV1() = %s, %v, want %s", g.Name, got, err, g.Digest)
		}
	}
}

func TestVectorsV1Rejects(t *testing.T) {
	f := readVectors(t, "v1")
	valid := f.Vectors[0].Request
	for _, r := range f.Rejects {
		t.Run(r.Name, func(t *testing.T) {
			keyText, line := f.KeyHex, []byte(r.Request)
			switch {
			case r.KeyUnset:
				keyText, line = "", []byte(valid)
			case r.KeyHex != nil:
				keyText, line = *r.KeyHex, []byte(valid)
			case r.RequestBytes != nil:
				line = r.RequestBytes
			}
			digest := ""
			key, err := hex.DecodeString(keyText)
			if err == nil {
				var req RequestV1
				if req, err = ParseRequestV1(line); err == nil {
					digest, err = FingerprintV1(key, req)
				}
			}
			if err == nil || digest != "" {
				t.Fatalf("accepted with digest %q, want refused: %s", digest, r.Reason)
			}
			checkPath(t, err, r.Path)
		})
	}
}

func checkPath(t *testing.T, err error, want string) {
	t.Helper()
	var e *JSONError
	if want != "" && (!errors.As(err, &e) || e.Path != want) {
		t.Errorf("error = %v, want one at path %s", err, want)
	}
}

func TestVectorsV2(t *testing.T) {
	f := readVectors(t, "v2")
	digests := map[string]string{}
	for _, v := range f.Vectors {
		t.Run(v.Name, func(t *testing.T) {
			secret := unhex(t, f.SecretHex)
			if v.SecretHex != "" {
				secret = unhex(t, v.SecretHex)
			}
			k, err := NewKeyring(secret)
			if err != nil {
				t.Fatal(err)
			}
			b, err := ParseRequestV2([]byte(v.Request))
			if err != nil {
				t.Fatal(err)
			}
			c, err := b.canonical()
			if err != nil {
				t.Fatal(err)
			}
			if string(c.whole) != v.Canonical {
				t.Errorf("canonical = %s\nwant        %s", c.whole, v.Canonical)
			}
			if again, err := Canonical(c.whole, nil); err != nil || !bytes.Equal(again, c.whole) {
				t.Errorf("canonical text is not its own form: %s, %v", again, err)
			}
			d, err := k.Digest(b)
			if err != nil {
				t.Fatal(err)
			}
			if d.KeyID != v.KeyID {
				t.Errorf("key id = %s, want %s", d.KeyID, v.KeyID)
			}
			for _, part := range []struct {
				name string
				got  []byte
				want string
			}{
				{"fingerprint", d.Fingerprint, v.Fingerprint},
				{"arguments", d.Arguments, v.Arguments},
				{"answers", d.Answers, v.Answers},
				{"state", d.State, v.State},
			} {
				if hex.EncodeToString(part.got) != part.want {
					t.Errorf("%s = %x, want %s", part.name, part.got, part.want)
				}
			}
			digests[v.Name] = hex.EncodeToString(d.Fingerprint)
		})
	}
	checkPairs(t, f, digests)
}

func TestVectorsV2Rejects(t *testing.T) {
	f := readVectors(t, "v2")
	k, err := NewKeyring(unhex(t, f.SecretHex))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range f.Rejects {
		t.Run(r.Name, func(t *testing.T) {
			line := []byte(r.Request)
			if r.RequestBytes != nil {
				line = r.RequestBytes
			}
			b, err := ParseRequestV2(line)
			if err == nil {
				_, err = k.Digest(b)
			}
			var e *JSONError
			if !errors.As(err, &e) {
				t.Fatalf("error = %v, want a *JSONError: %s", err, r.Reason)
			}
			if e.Limit != r.Limit {
				t.Errorf("error %v: limit = %v, want %v", e, e.Limit, r.Limit)
			}
			checkPath(t, err, r.Path)
		})
	}
}
