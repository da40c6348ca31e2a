package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxDepth is how deep the values of a manifest may be nested; it needs three.
const maxDepth = 8

// parseJSON reads one JSON value with one meaning: duplicate members and bytes
// that are not UTF-8, which encoding/json resolves in silence, are errors. Objects
// are map[string]any and numbers json.Number.
func parseJSON(data []byte) (any, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("invalid JSON: it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	var whole json.RawMessage
	if err := d.Decode(&whole); err != nil {
		return nil, fmt.Errorf("invalid JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("trailing data after the manifest")
	}
	d = json.NewDecoder(bytes.NewReader(whole))
	d.UseNumber()
	return parseValue(d, 0)
}

// parseValue reads the next value of a text that is known to be well formed.
func parseValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("invalid JSON: it is nested too deeply")
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := parseValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('{'):
		members := map[string]any{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			key, _ := name.(string)
			if _, twice := members[key]; twice {
				return nil, fmt.Errorf("duplicate JSON member %q", key)
			}
			if members[key], err = parseValue(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return members, err
	}
	return token, nil
}

// object is v as an object with exactly the members named.
func object(v any, what string, names ...string) (map[string]any, error) {
	o, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is no object", what)
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%s: unknown member %q", what, name)
		}
	}
	for _, name := range names {
		if _, ok := o[name]; !ok {
			return nil, fmt.Errorf("%s: missing member %q", what, name)
		}
	}
	return o, nil
}

var plainInteger = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// integer is v as a number that is written as a natural number: 1.0 and 1e0 are not.
func integer(v any) (int64, bool) {
	n, ok := v.(json.Number)
	if !ok || !plainInteger.MatchString(n.String()) {
		return 0, false
	}
	i, err := strconv.ParseInt(n.String(), 10, 64)
	return i, err == nil
}
