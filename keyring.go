package mcpreplay

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// MinSecretLength is the least number of bytes a secret may have.
const MinSecretLength = 32

// Labels under which a secret is turned into one subkey for each use, so that no use can be played
// against another. Changing one is a new contract.
const (
	labelKeyID       = "mcpreplay/key-id/v1"
	labelFingerprint = "mcpreplay/fingerprint/v2"
	labelOperationID = "mcpreplay/operation-id/v1"
)

// ErrKeyRetired means that the key something was made with is no longer in the ring. Nothing can be
// said about it any more, neither that it is equal nor that it differs.
var ErrKeyRetired = errors.New("key retired: add its secret to the key file again, after the first line")

// Keyring holds the secrets of a server. The first seals, all open: a secret is retired by moving it
// down first, and removing it once nothing it sealed is needed. A ring does not change, and is safe
// for concurrent use. The zero Keyring has no key and cannot seal: it panics.
type Keyring struct {
	keys         []ringKey
	fingerprints *Keyring // nil if it is this ring itself
}

// Fingerprints is the ring that keys fingerprints: this one, unless it was made of a
// file that has keys of their own for them.
func (k *Keyring) Fingerprints() *Keyring {
	if k.fingerprints != nil {
		return k.fingerprints
	}
	return k
}

// keyID names a secret, and tells nothing of it.
func keyID(secret []byte) string {
	sum := sha256.Sum256(append([]byte(labelKeyID+"\x00"), secret...))
	return hex.EncodeToString(sum[:4])
}

type ringKey struct {
	id          string
	secret      []byte
	fingerprint []byte
	operationID []byte
}

// NewKeyring makes a ring of at least one secret, each of at least [MinSecretLength] bytes, and no
// two the same. The secrets are copied.
func NewKeyring(secrets ...[]byte) (*Keyring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("keyring: no secret given")
	}
	k := &Keyring{}
	for i, secret := range secrets {
		if err := k.add(secret); err != nil {
			return nil, fmt.Errorf("keyring: secret %d: %w", i+1, err)
		}
	}
	return k, nil
}

func (k *Keyring) add(secret []byte) error {
	if len(secret) < MinSecretLength {
		return fmt.Errorf("has %d bytes, at least %d are needed", len(secret), MinSecretLength)
	}
	key := ringKey{id: keyID(secret), secret: bytes.Clone(secret)}
	for _, other := range k.keys {
		if other.id == key.id {
			return errors.New("is the same as an earlier one, or shares its id")
		}
	}
	key.fingerprint, _ = key.derive(labelFingerprint, sha256.Size)
	key.operationID, _ = key.derive(labelOperationID, sha256.Size)
	k.keys = append(k.keys, key)
	return nil
}

func (r *ringKey) derive(label string, n int) ([]byte, bool) {
	if n < 1 || n > 255*sha256.Size {
		return nil, false
	}
	key, err := hkdf.Key(sha256.New, r.secret, nil, label, n)
	return key, err == nil
}

func (k *Keyring) find(id string) (*ringKey, bool) {
	for i := range k.keys {
		if k.keys[i].id == id {
			return &k.keys[i], true
		}
	}
	return nil, false
}

// IDs returns the key ids, the sealing one first. An id is 8 hexadecimal characters of a digest of
// the secret: it names the key in records and logs and tells nothing about it.
func (k *Keyring) IDs() []string {
	ids := make([]string, len(k.keys))
	for i := range k.keys {
		ids[i] = k.keys[i].id
	}
	return ids
}

// Derive returns the subkey of n bytes (1 to 8160) that HKDF-SHA-256, without salt and with label as
// info, gives for the secret with that id. It returns false if the ring lacks the id or n is out of
// bounds. Labels that begin with "mcpreplay/" belong to this module.
func (k *Keyring) Derive(id, label string, n int) ([]byte, bool) {
	key, ok := k.find(id)
	if !ok {
		return nil, false
	}
	return key.derive(label, n)
}

// String names the keys, so that a ring in a log line does not give its secrets away.
func (k *Keyring) String() string {
	return "keyring[" + strings.Join(k.IDs(), " ") + "]"
}

// GoString is String: %#v would print the secrets.
func (k *Keyring) GoString() string { return k.String() }

// ParseKeyring reads a key file; see KeyFile for its form. Errors name the line and never repeat it.
func ParseKeyring(text []byte) (*Keyring, error) {
	f, err := ParseKeyFile(text)
	if err != nil {
		return nil, err
	}
	return f.Keyring()
}

// notHex says what is wrong with a line; the error of package hex would repeat a character of it.
func notHex(line []byte) string {
	for _, c := range line {
		if _, ok := hexDigit(c); !ok {
			return "secret is not hexadecimal digits only"
		}
	}
	return "secret has an odd number of hexadecimal digits"
}

// FormatKey returns a secret as a line of a key file, without the line's end.
func FormatKey(secret []byte) string { return hex.EncodeToString(secret) }
