package mcpreplay

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// KeyUse is what a key is for.
type KeyUse string

// The uses of a key. Each has a ring of its own, so that each can be rotated alone.
const (
	UseState       KeyUse = "state"       // seals request state, and mints operation ids
	UseFingerprint KeyUse = "fingerprint" // keys the fingerprints of requests
)

// KeyState is where a key is in its life.
type KeyState string

// The states of a key, in order. A new one only opens, until every process that
// serves the ledger has it; only then may one of them seal with it.
const (
	KeyNext    KeyState = "next"    // opens
	KeyCurrent KeyState = "current" // seals and opens; there is one for each use
	KeyOld     KeyState = "old"     // opens
)

// KeyEntry is one key of a key file.
type KeyEntry struct {
	Use    KeyUse
	State  KeyState
	Since  time.Time // when it came into its state; zero if that is not known
	ID     string    // names it in records and logs, and tells nothing of the secret
	secret []byte
}

// String names the key, so that an entry in a log line does not give its secret away.
func (e KeyEntry) String() string {
	return fmt.Sprintf("%s key %s, %s", e.Use, e.ID, e.State)
}

// GoString is String: %#v would print the secret.
func (e KeyEntry) GoString() string { return e.String() }

// NewKeyEntry makes a key with a fresh random secret.
func NewKeyEntry(use KeyUse, state KeyState, since time.Time) KeyEntry {
	secret := make([]byte, MinSecretLength)
	rand.Read(secret) // never fails: it ends the process instead
	return KeyEntry{Use: use, State: state, Since: since.UTC().Truncate(time.Second), ID: keyID(secret), secret: secret}
}

// KeyFile is the keys of a server, as they are kept in a file: one a line, as
//
//	USE STATE SINCE SECRET
//
// with the secret in hexadecimal and SINCE in RFC 3339, or "-" if it is not known. A
// line that is a secret alone is a key for both uses: the first of them is current,
// unless another is. Blank lines and lines that begin with # are passed over.
type KeyFile []KeyEntry

// ParseKeyFile reads a key file. Errors name the line and never repeat it.
func ParseKeyFile(text []byte) (KeyFile, error) {
	var f KeyFile
	var bare []int // entries of lines that are a secret alone
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		entry, err := parseKeyLine(line)
		if err == nil && entry.Use == "" {
			for _, use := range []KeyUse{UseState, UseFingerprint} {
				entry.Use = use
				bare = append(bare, len(f))
				if err == nil {
					f, err = f.add(entry)
				}
			}
		} else if err == nil {
			f, err = f.add(entry)
		}
		if err != nil {
			return nil, fmt.Errorf("key file line %d: %w", n, err)
		}
	}
	if len(f) == 0 {
		return nil, errors.New("key file: no secret in it; one line of 64 hexadecimal digits is needed")
	}
	for _, i := range bare { // the first of each use is current, unless one is already
		if f.current(f[i].Use) < 0 {
			f[i].State = KeyCurrent
		}
	}
	for _, use := range []KeyUse{UseState, UseFingerprint} {
		if f.current(use) < 0 {
			return nil, fmt.Errorf("key file: no %s key is current", use)
		}
	}
	return f, nil
}

func parseKeyLine(line []byte) (KeyEntry, error) {
	fields := strings.Fields(string(line))
	if len(fields) != 4 || fields[0] != string(UseState) && fields[0] != string(UseFingerprint) {
		secret, err := hex.AppendDecode(nil, line)
		switch first := KeyUse(fields[0]); {
		case first == UseState || first == UseFingerprint:
			return KeyEntry{}, errors.New("a key has four parts: its use, its state, a time or -, and the secret")
		case err != nil:
			return KeyEntry{}, errors.New(notHex(line))
		}
		return KeyEntry{State: KeyOld, secret: secret}, nil
	}
	e := KeyEntry{Use: KeyUse(fields[0]), State: KeyState(fields[1])}
	if e.State != KeyNext && e.State != KeyCurrent && e.State != KeyOld {
		return KeyEntry{}, errors.New("the state of a key is next, current or old")
	}
	var err error
	if fields[2] != "-" {
		if e.Since, err = time.Parse(time.RFC3339, fields[2]); err != nil {
			return KeyEntry{}, errors.New("the time of a key is not one of RFC 3339, or -")
		}
	}
	if e.secret, err = hex.DecodeString(fields[3]); err != nil {
		return KeyEntry{}, errors.New(notHex([]byte(fields[3])))
	}
	return e, nil
}

func (f KeyFile) add(e KeyEntry) (KeyFile, error) {
	if len(e.secret) < MinSecretLength {
		return nil, fmt.Errorf("secret has %d bytes, at least %d are needed", len(e.secret), MinSecretLength)
	}
	e.ID = keyID(e.secret)
	if slices.ContainsFunc(f, func(other KeyEntry) bool { return other.Use == e.Use && other.ID == e.ID }) {
		return nil, errors.New("secret is the same as an earlier one, or shares its id")
	}
	if e.State == KeyCurrent && f.current(e.Use) >= 0 {
		return nil, fmt.Errorf("two %s keys are current", e.Use)
	}
	return append(f, e), nil
}

// current is the index of the current key of a use, or -1.
func (f KeyFile) current(use KeyUse) int {
	return slices.IndexFunc(f, func(e KeyEntry) bool { return e.Use == use && e.State == KeyCurrent })
}

// Keyring makes the rings of a file: what seals and mints by the ring itself, what keys
// fingerprints by its Fingerprints.
func (f KeyFile) Keyring() (*Keyring, error) {
	state, err := f.ring(UseState)
	if err != nil {
		return nil, err
	}
	state.fingerprints, err = f.ring(UseFingerprint)
	return state, err
}

func (f KeyFile) ring(use KeyUse) (*Keyring, error) {
	var secrets [][]byte
	for _, state := range []KeyState{KeyCurrent, KeyNext, KeyOld} {
		for _, e := range f {
			if e.Use == use && e.State == state {
				secrets = append(secrets, e.secret)
			}
		}
	}
	return NewKeyring(secrets...)
}

// Format is the text of a key file.
func (f KeyFile) Format() []byte {
	var b bytes.Buffer
	b.WriteString("# use state since secret; see mcpreplay keys\n")
	for _, e := range f {
		since := "-"
		if !e.Since.IsZero() {
			since = e.Since.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "%s %s %s %s\n", e.Use, e.State, since, hex.EncodeToString(e.secret))
	}
	return b.Bytes()
}

// With is f and one more key.
func (f KeyFile) With(e KeyEntry) (KeyFile, error) { return slices.Clone(f).add(e) }

// Promote makes the next key with that id current, for each use it is for, and the one
// that was current old. An old key may be made current again in the same way. Every
// process must have a key before one of them seals with it.
func (f KeyFile) Promote(id string, now time.Time) (KeyFile, error) {
	return f.change(id, func(g KeyFile, i int) error {
		if g[i].State == KeyCurrent {
			return nil
		}
		now := now.UTC().Truncate(time.Second)
		was := g.current(g[i].Use)
		g[was].State, g[was].Since = KeyOld, now
		g[i].State, g[i].Since = KeyCurrent, now
		return nil
	})
}

// Retire takes the key with that id out, for good. One that is current stays.
func (f KeyFile) Retire(id string) (KeyFile, error) {
	g, err := f.change(id, func(g KeyFile, i int) error {
		if g[i].State == KeyCurrent {
			return fmt.Errorf("the %s key %s is current: promote another one first", g[i].Use, id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(g, func(e KeyEntry) bool { return e.ID == id }), nil
}

func (f KeyFile) change(id string, each func(g KeyFile, i int) error) (KeyFile, error) {
	g, found := slices.Clone(f), false
	for i := range g {
		if g[i].ID == id {
			found = true
			if err := each(g, i); err != nil {
				return nil, err
			}
		}
	}
	if !found {
		return nil, fmt.Errorf("there is no key %q", id)
	}
	return g, nil
}
