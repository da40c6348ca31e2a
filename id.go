package mcpreplay

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of an operation id's length.
const MinIDLength, MaxIDLength = 4, 256

// IDError says why a text cannot name an operation. It never repeats the text, which may be anything.
type IDError struct {
	Reason string
}

func (e *IDError) Error() string { return "operation id " + e.Reason }

// ValidateID reports whether id may name an operation: 4 to 256 printable ASCII characters, no
// spaces. The error is an *[IDError].
func ValidateID(id string) error {
	if n := len(id); n < MinIDLength || n > MaxIDLength {
		return &IDError{fmt.Sprintf("must have %d to %d characters (has %d bytes)", MinIDLength, MaxIDLength, n)}
	}
	for i := range len(id) {
		if id[i] <= 0x20 || id[i] >= 0x7F {
			return &IDError{fmt.Sprintf("must be printable ASCII without spaces (byte %d is not)", i)}
		}
	}
	return nil
}

const (
	idPrefix = "op_"
	idTime   = 6           // bytes of milliseconds since 1970
	idBody   = idTime + 16 // then random
	idMAC    = 8
)

// idText has its digits in ASCII order, so ids sort as their bytes do: by time.
var idText = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// NewID makes an operation id that nobody can guess and no two callers will share. Ids sort by their
// time, to the millisecond. Times before 1970 count as 1970.
func NewID(now time.Time) string {
	return idPrefix + idText.EncodeToString(newIDBody(now))
}

// MintID is [NewID] for a server: the id carries proof that this ring made it and when, so its record
// may be forgotten once ids of its time are refused. See [Keyring.MintedID].
func (k *Keyring) MintID(now time.Time) string {
	body := newIDBody(now)
	return idPrefix + idText.EncodeToString(append(body, k.keys[0].mac(body)...))
}

// MintedID reports whether a key of this ring minted the id and, if so, at what time. The time is
// proven, whoever sends the id.
func (k *Keyring) MintedID(id string) (at time.Time, ok bool) {
	body, mac, ok := cutMinted(id)
	if !ok {
		return time.Time{}, false
	}
	for i := range k.keys {
		if hmac.Equal(mac, k.keys[i].mac(body)) {
			return idBodyTime(body), true
		}
	}
	return time.Time{}, false
}

// MintTime is the time in an id that looks as if a server had minted it. It is not proven: whoever
// chooses such an id for himself chooses how long its record is kept.
func MintTime(id string) (at time.Time, ok bool) {
	body, _, ok := cutMinted(id)
	if !ok {
		return time.Time{}, false
	}
	return idBodyTime(body), true
}

func cutMinted(id string) (body, mac []byte, ok bool) {
	text, ok := strings.CutPrefix(id, idPrefix)
	if !ok || len(text) != idText.EncodedLen(idBody+idMAC) {
		return nil, nil, false
	}
	raw, err := idText.DecodeString(text)
	// The decoder skips line ends: an id has one spelling only.
	if err != nil || len(raw) != idBody+idMAC {
		return nil, nil, false
	}
	return raw[:idBody], raw[idBody:], true
}

func idBodyTime(body []byte) time.Time {
	var ms int64
	for _, b := range body[:idTime] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms)
}

func (r *ringKey) mac(body []byte) []byte {
	h := hmac.New(sha256.New, r.operationID)
	h.Write(body)
	return h.Sum(nil)[:idMAC]
}

func newIDBody(now time.Time) []byte {
	ms := min(max(now.UnixMilli(), 0), 1<<48-1)
	body := make([]byte, idBody, idBody+idMAC)
	for i := range idTime {
		body[i] = byte(ms >> (8 * (idTime - 1 - i)))
	}
	rand.Read(body[idTime:]) // never fails: it ends the process instead
	return body
}

// ValidatePrincipal reports whether name can stand for somebody in a ledger: 1 to 1024 bytes of UTF-8
// without control characters. The error never repeats the name.
func ValidatePrincipal(name string) error {
	switch {
	case name == "":
		return errors.New("it names nobody")
	case len(name) > 1024:
		return fmt.Errorf("it has %d bytes, more than 1024", len(name))
	case !utf8.ValidString(name), strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("it must be UTF-8 without control characters")
	}
	return nil
}
