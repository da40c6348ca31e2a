package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"mcpreplay"

	"github.com/spf13/cobra"
)

// fingerprintKeyEnv names the variable that other implementations of contract v1
// take their key from.
const fingerprintKeyEnv = "CONTINUATION_REPLAY_FINGERPRINT_KEY_HEX"

// maxRequestLine bounds what is read of one line. It is above the parser's own
// limit, so that the parser is the one to say how long a text may be.
const maxRequestLine = 8 << 20

func newFingerprint(e *env) *cobra.Command {
	var contract, keyFile string
	cmd := &cobra.Command{
		Use:   "fingerprint",
		Short: "Print the fingerprint of each request on stdin",
		Long: `Reads one request a line, as JSON, and prints one digest a line. Blank lines are
skipped. The first line that is no request ends it.

v1: {"principal", "tool_id", "tool_version", "arguments",
     "continuation_state", "input_responses"}: the last two are optional.
v2: {"principal", "tool", "toolVersion", "arguments", "state", "answers"}: the
     last two are optional.

The key comes from the environment variable ` + fingerprintKeyEnv + `
(hexadecimal, at least 32 bytes) or from the first line of a key file. There is
no default.`,
		Example: `  mcpreplay fingerprint --contract v2 --key-file keys < requests.jsonl`,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			secret, ring, err := fingerprintKey(e, keyFile)
			if err != nil {
				return err
			}
			switch contract {
			case "v1":
				return fingerprintLines(e, func(line []byte) (string, error) { return digestV1(secret, line) })
			case "v2":
				return fingerprintLines(e, func(line []byte) (string, error) { return digestV2(ring, line) })
			}
			return misused("the contracts are v1 and v2", "there is no contract %q", contract)
		},
	}
	cmd.Flags().StringVar(&contract, "contract", "v1", "contract of the digest: v1 or v2")
	cmd.Flags().StringVar(&keyFile, "key-file", "", "take the key from the first line of `FILE`, not from the environment")
	return cmd
}

// fingerprintKey is the one secret a digest is made with: as it is for v1, which
// uses it directly, and as a ring for v2, which derives its key.
func fingerprintKey(e *env, keyFile string) ([]byte, *mcpreplay.Keyring, error) {
	text, from := []byte(e.getenv(fingerprintKeyEnv)), fingerprintKeyEnv
	if keyFile != "" {
		var err error
		if text, err = os.ReadFile(keyFile); err != nil {
			return nil, nil, misused("a key file holds one secret a line, in hexadecimal", "key file: %w", err)
		}
		if _, err := mcpreplay.ParseKeyring(text); err != nil {
			return nil, nil, misused("a key file holds one secret a line, in hexadecimal", "%s: %w", keyFile, err)
		}
		text, from = firstKey(text), keyFile
	}
	hint := "set " + fingerprintKeyEnv + " to at least 64 hexadecimal digits, or name a --key-file"
	if len(text) == 0 {
		return nil, nil, misused(hint, "there is no key, and no default")
	}
	secret := make([]byte, hex.DecodedLen(len(text)))
	if _, err := hex.Decode(secret, text); err != nil { // err would repeat a character of the key
		return nil, nil, misused(hint, "%s: the key is not hexadecimal digits only, two for each byte", from)
	}
	ring, err := mcpreplay.NewKeyring(secret)
	if err != nil {
		return nil, nil, misused(hint, "%s: the key has %d bytes, at least %d are needed", from, len(secret), mcpreplay.MinSecretLength)
	}
	return secret, ring, nil
}

// firstKey is the text of the first secret of a key file that was parsed.
func firstKey(text []byte) []byte {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return line
		}
	}
	return nil
}

func digestV1(secret, line []byte) (string, error) {
	r, err := mcpreplay.ParseRequestV1(line)
	if err != nil {
		return "", err
	}
	return mcpreplay.FingerprintV1(secret, r)
}

func digestV2(ring *mcpreplay.Keyring, line []byte) (string, error) {
	b, err := mcpreplay.ParseRequestV2(line)
	if err != nil {
		return "", err
	}
	d, err := ring.Digest(b)
	return hex.EncodeToString(d.Fingerprint), err
}

// fingerprintLines prints each digest as it is known, so that what came before a
// fault is not lost. Only LF ends a line: a lone CR is white space of JSON.
func fingerprintLines(e *env, digest func(line []byte) (string, error)) error {
	lines := bufio.NewScanner(e.stdin)
	lines.Buffer(make([]byte, 0, 64<<10), maxRequestLine)
	n := 1
	for ; lines.Scan(); n++ {
		line := lines.Bytes()
		if len(bytes.Trim(line, " \t\r")) == 0 {
			continue
		}
		if bytes.HasPrefix(line, []byte("\uFEFF")) {
			return misused("", "line %d: $: a byte order mark: save the text without one", n)
		}
		sum, err := digest(line)
		if err != nil {
			return misused("", "line %d: %w", n, err)
		}
		if _, err := io.WriteString(e.stdout, sum+"\n"); err != nil {
			return failed(fmt.Errorf("line %d: write the digest: %w", n, err), "")
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return misused("", "line %d: it has more than %d bytes", n, maxRequestLine)
	} else if err != nil {
		return failed(fmt.Errorf("line %d: read: %w", n, err), "")
	}
	return nil
}
