package mcpreplay_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mcpreplay"
)

func secret(fill byte) []byte { return bytes.Repeat([]byte{fill}, 32) }

func newKeyring(t testing.TB, secrets ...[]byte) *mcpreplay.Keyring {
	t.Helper()
	k, err := mcpreplay.NewKeyring(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestNewKeyringRefuses(t *testing.T) {
	tests := []struct {
		name    string
		secrets [][]byte
		want    string
	}{
		{"no secret", nil, "keyring: no secret given"},
		{"short", [][]byte{secret(1), secret(2)[:31]}, "keyring: secret 2: has 31 bytes, at least 32 are needed"},
		{"the same twice", [][]byte{secret(1), secret(2), secret(1)}, "keyring: secret 3: is the same as an earlier one, or shares its id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := mcpreplay.NewKeyring(tt.secrets...); err == nil || err.Error() != tt.want {
				t.Errorf("NewKeyring() error = %v, want %s", err, tt.want)
			}
		})
	}
}

func TestKeyringNamesKeysNewestFirst(t *testing.T) {
	a, b := newKeyring(t, secret(1)), newKeyring(t, secret(2))
	both := newKeyring(t, secret(2), secret(1))
	want := append(b.IDs(), a.IDs()...)
	if diff := cmp.Diff(want, both.IDs()); diff != "" {
		t.Errorf("IDs() differ (-want +got):\n%s", diff)
	}
	for _, id := range both.IDs() {
		if _, err := hex.DecodeString(id); err != nil || len(id) != 8 {
			t.Errorf("id %q, want 8 hexadecimal characters", id)
		}
	}
}

func TestKeyringKeepsItsOwnCopy(t *testing.T) {
	s := secret(1)
	k := newKeyring(t, s)
	before, _ := k.Derive(k.IDs()[0], "x", 16)
	clear(s)
	after, _ := k.Derive(k.IDs()[0], "x", 16)
	if !bytes.Equal(before, after) {
		t.Error("changing the caller's secret changed the ring")
	}
}

func TestDeriveSeparatesKeysAndLabels(t *testing.T) {
	k := newKeyring(t, secret(1), secret(2))
	seen := map[string]string{}
	for _, id := range k.IDs() {
		for _, label := range []string{"", "a", "b"} {
			key, ok := k.Derive(id, label, 32)
			if !ok || len(key) != 32 {
				t.Fatalf("Derive(%s, %q) = %d bytes, %v", id, label, len(key), ok)
			}
			if other, ok := seen[string(key)]; ok {
				t.Errorf("%s/%s has the subkey of %s", id, label, other)
			}
			seen[string(key)] = id + "/" + label
		}
	}
	for _, n := range []int{-1, 0, 8161} {
		if _, ok := k.Derive(k.IDs()[0], "a", n); ok {
			t.Errorf("Derive(%d bytes) succeeded", n)
		}
	}
	if _, ok := k.Derive("00000000", "a", 32); ok {
		t.Error("Derive() of an unknown id succeeded")
	}
}

func TestParseKeyring(t *testing.T) {
	one, two := mcpreplay.FormatKey(secret(1)), mcpreplay.FormatKey(secret(2))
	text := "# newest first\r\n\r\n  " + strings.ToUpper(two) + "\t\r\n# old\n" + one
	k, err := mcpreplay.ParseKeyring([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(newKeyring(t, secret(2), secret(1)).IDs(), k.IDs()); diff != "" {
		t.Errorf("IDs() differ (-want +got):\n%s", diff)
	}
}

func TestParseKeyringErrorsNameTheLineOnly(t *testing.T) {
	good := mcpreplay.FormatKey(secret(0xAB))
	tests := []struct{ name, text, want string }{
		{"empty", "# nothing\n\n", "key file: no secret in it"},
		{"not hexadecimal", good + "\n\n" + good[:62] + "zz\n", "key file line 3: secret is not hexadecimal digits only"},
		{"space inside", good[:32] + " " + good[32:], "key file line 1: secret is not hexadecimal digits only"},
		{"comment after", good + " # mine", "key file line 1: secret is not hexadecimal digits only"},
		{"odd", "\n" + good + "a", "key file line 2: secret has an odd number of hexadecimal digits"},
		{"short", good[:62], "key file line 1: secret has 31 bytes, at least 32 are needed"},
		{"duplicate", good + "\n" + strings.ToUpper(good), "key file line 2: secret is the same as an earlier one"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := mcpreplay.ParseKeyring([]byte(tt.text))
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("error = %v, want %s", err, tt.want)
			}
			if strings.Contains(strings.ToLower(err.Error()), "abab") {
				t.Errorf("error repeats the secret: %v", err)
			}
		})
	}
}

func TestKeyringDoesNotPrintSecrets(t *testing.T) {
	k := newKeyring(t, secret(0xAB))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got, want := fmt.Sprintf(verb, k), "keyring["+k.IDs()[0]+"]"; got != want {
			t.Errorf("%s prints %s, want %s", verb, got, want)
		}
	}
}
