package mcpreplay_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mcpreplay"
)

func TestValidateID(t *testing.T) {
	tests := []struct {
		name, id string
		ok       bool
	}{
		{"shortest", "op-1", true},
		{"longest", strings.Repeat("x", 256), true},
		{"every character", "!\"#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~", true},
		{"empty", "", false},
		{"too short", "abc", false},
		{"too long", strings.Repeat("x", 257), false},
		{"space", "op 1", false},
		{"trailing newline", "op-1\n", false},
		{"delete", "op-1\x7f", false},
		{"not ASCII", "opér", false},
		{"NUL", "op\x001", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := mcpreplay.ValidateID(tt.id)
			if (err == nil) != tt.ok {
				t.Fatalf("ValidateID() = %v, want ok %v", err, tt.ok)
			}
			var e *mcpreplay.IDError
			if err != nil && !errors.As(err, &e) {
				t.Errorf("error is a %T, want an *IDError", err)
			}
			if err != nil && len(tt.id) > 4 && strings.Contains(err.Error(), tt.id) {
				t.Errorf("error repeats the id: %v", err)
			}
		})
	}
}

func TestIDsSortByTime(t *testing.T) {
	k := newKeyring(t, secret(1))
	mint := map[string]func(time.Time) string{"new": mcpreplay.NewID, "minted": k.MintID}
	for name, id := range mint {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				ms := rapid.Int64Range(0, 1<<48-1)
				a, b := ms.Draw(t, "a"), ms.Draw(t, "b")
				first, second := id(time.UnixMilli(a)), id(time.UnixMilli(b))
				if a != b && (a < b) != (first < second) {
					t.Fatalf("%d is %s, %d is %s", a, first, b, second)
				}
			})
		})
	}
}

func TestNewIDIsValidAndNew(t *testing.T) {
	now := time.Now()
	var ids []string
	for range 1000 {
		id := mcpreplay.NewID(now)
		if err := mcpreplay.ValidateID(id); err != nil || !strings.HasPrefix(id, "op_") || len(id) != 39 {
			t.Fatalf("NewID() = %s: %v", id, err)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 1000 {
		t.Error("an id came twice")
	}
	if early, late := mcpreplay.NewID(time.Time{}), mcpreplay.NewID(time.UnixMilli(1<<60)); early >= ids[0] || late <= ids[999] {
		t.Errorf("times out of range do not sort to the ends: %s, %s", early, late)
	}
}

func TestMintedID(t *testing.T) {
	old, other := newKeyring(t, secret(1)), newKeyring(t, secret(2))
	rotated := newKeyring(t, secret(3), secret(1))
	now := time.UnixMilli(1790035200123)
	id := old.MintID(now)
	if err := mcpreplay.ValidateID(id); err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]*mcpreplay.Keyring{"its ring": old, "a rotated ring": rotated} {
		if at, ok := k.MintedID(id); !ok || !at.Equal(now) {
			t.Errorf("%s: MintedID() = %v, %v, want %v", name, at, ok, now)
		}
	}
	if at, ok := mcpreplay.MintTime(id); !ok || !at.Equal(now) {
		t.Errorf("MintTime() = %v, %v, want %v of whatever ring", at, ok, now)
	}
	if at, ok := other.MintedID(id); ok || !at.IsZero() {
		t.Errorf("a ring without the key: MintedID() = %v, %v", at, ok)
	}
	for _, no := range []string{"", "op_", mcpreplay.NewID(now), strings.ToUpper(id), id + "0", id[:len(id)-1],
		id + "\n", id[:20] + "\n" + id[20:], id[:20] + "\n" + id[21:], strings.TrimPrefix(id, "op_")} {
		if _, ok := old.MintedID(no); ok {
			t.Errorf("MintedID(%q) is true", no)
		}
		if at, ok := mcpreplay.MintTime(no); ok || !at.IsZero() {
			t.Errorf("MintTime(%q) = %v, %v", no, at, ok)
		}
	}
	for i := len("op_"); i < len(id); i++ {
		changed := []byte(id)
		changed[i] ^= 1
		if _, ok := old.MintedID(string(changed)); ok {
			t.Errorf("MintedID() is true after a change of character %d", i)
		}
	}
}
