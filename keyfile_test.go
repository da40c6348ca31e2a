package mcpreplay_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"mcpreplay"
)

func parseKeys(t *testing.T, text string) mcpreplay.KeyFile {
	t.Helper()
	f, err := mcpreplay.ParseKeyFile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func describe(f mcpreplay.KeyFile) string {
	var parts []string
	for _, e := range f {
		parts = append(parts, fmt.Sprintf("%s %s", e.Use, e.State))
	}
	return strings.Join(parts, ", ")
}

func TestKeyFilesSayWhatEachKeyIsFor(t *testing.T) {
	a, b, c := mcpreplay.FormatKey(secret(1)), mcpreplay.FormatKey(secret(2)), mcpreplay.FormatKey(secret(3))
	for text, want := range map[string]string{
		a:            "state current, fingerprint current",
		a + "\n" + b: "state current, fingerprint current, state old, fingerprint old",
		a + "\nstate next 2026-12-01T00:00:00Z " + b:                                                 "state current, fingerprint current, state next",
		a + "\nstate current - " + b:                                                                 "state old, fingerprint current, state current",
		"state current - " + a + "\nfingerprint current - " + b + "\nfingerprint old - " + c:         "state current, fingerprint current, fingerprint old",
		"# x\n\n  state  current  - " + strings.ToUpper(a) + "\r\nfingerprint current - " + a + "\n": "state current, fingerprint current",
	} {
		f := parseKeys(t, text)
		if got := describe(f); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
		again := parseKeys(t, string(f.Format()))
		if describe(again) != describe(f) || !bytes.Equal(again.Format(), f.Format()) {
			t.Errorf("written and read again, %q is %s", text, describe(again))
		}
	}
}

func TestKeyFilesThatCannotBeMeantAreRefused(t *testing.T) {
	a, b := mcpreplay.FormatKey(secret(0xAB)), mcpreplay.FormatKey(secret(0xCD))
	for text, want := range map[string]string{
		"state current - " + a:                                                         "no fingerprint key is current",
		"state next - " + a + "\nfingerprint next - " + a:                              "no state key is current",
		a + "\nstate current - " + b + "\nstate current - " + strings.Repeat("ee", 32): "line 3: two state keys are current",
		a + "\nstate next - " + a:                                                      "line 2: secret is the same as an earlier one",
		a + "\nstate later - " + b:                                                     "line 2: the state of a key is next, current or old",
		a + "\nstate next yesterday " + b:                                              "line 2: the time of a key",
		a + "\nstate next " + b:                                                        "line 2: a key has four parts",
		a + "\nstate next - " + b + " x":                                               "line 2: a key has four parts",
		a + "\nstate next - " + b[:10]:                                                 "line 2: secret has 5 bytes",
		a + "\nstate next - " + b[:62] + "zz":                                          "line 2: secret is not hexadecimal digits only",
		a + "\nspare next - " + b:                                                      "line 2: secret is not hexadecimal digits only",
		"\ufeff" + a:                                                                   "line 1: secret is not hexadecimal digits only",
	} {
		_, err := mcpreplay.ParseKeyFile([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		} else if text := strings.ToLower(err.Error()); strings.Contains(text, "abab") || strings.Contains(text, "cdcd") {
			t.Errorf("the error repeats a secret: %v", err)
		}
	}
}

func TestKeysAreRotatedInSteps(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	f := parseKeys(t, mcpreplay.FormatKey(secret(1)))
	next := mcpreplay.NewKeyEntry(mcpreplay.UseState, mcpreplay.KeyNext, now)
	f, err := f.With(next)
	if err != nil {
		t.Fatal(err)
	}
	ring := func() *mcpreplay.Keyring {
		k, err := f.Keyring()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := f[0].ID
	if ids := ring().IDs(); ids[0] != first || len(ids) != 2 || len(ring().Fingerprints().IDs()) != 1 {
		t.Errorf("with a next key the rings are %v and %v", ids, ring().Fingerprints().IDs())
	}
	if _, err := f.Retire(first); err == nil || !strings.Contains(err.Error(), "promote another one first") {
		t.Errorf("the current key was retired: %v", err)
	}
	if f, err = f.Promote(next.ID, now); err != nil {
		t.Fatal(err)
	}
	if ids := ring().IDs(); ids[0] != next.ID || len(ids) != 2 {
		t.Errorf("promoted, the ring is %v", ids)
	}
	if again, err := f.Promote(next.ID, now.Add(time.Hour)); err != nil || !bytes.Equal(again.Format(), f.Format()) {
		t.Errorf("promoted again: %v", err)
	}
	// The first key is still current for fingerprints.
	if _, err := f.Retire(first); err == nil {
		t.Error("a key that is current for another use was retired")
	}
	if _, err := f.Promote("nonsense", now); err == nil {
		t.Error("a key that there is not was promoted")
	}
	for _, text := range []string{fmt.Sprint(f), fmt.Sprintf("%#v", f), fmt.Sprintf("%+v", f)} {
		if strings.Contains(text, "0101") || strings.Contains(text, "secret:") {
			t.Errorf("a key file prints %s", text)
		}
	}
}

func FuzzKeyFile(f *testing.F) {
	f.Add([]byte(mcpreplay.FormatKey(secret(1))))
	f.Add([]byte("state current - " + mcpreplay.FormatKey(secret(1)) + "\nfingerprint current 2026-12-01T00:00:00Z " + mcpreplay.FormatKey(secret(2))))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := mcpreplay.ParseKeyFile(text)
		if err != nil {
			return
		}
		again, err := mcpreplay.ParseKeyFile(keys.Format())
		if err != nil || !bytes.Equal(again.Format(), keys.Format()) {
			t.Errorf("written and read again: %v", err)
		}
		if _, err := keys.Keyring(); err != nil {
			t.Errorf("what was read makes no ring: %v", err)
		}
	})
}
