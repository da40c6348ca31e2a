package mcpreplay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// object is a JSON object from outside with its members by their exact names.
// encoding/json alone matches names in any case and lets the last duplicate
// win, so one text could say one thing here and another thing elsewhere.
//
// It is strict about the members that are looked at and leaves what is inside
// the others alone: a lone surrogate in the text of a tool is not for a reader
// of replies to judge, and must not turn a complete result into an unknown.
type object map[string]json.RawMessage

func readObject(text []byte) (object, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("invalid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err == io.EOF {
		return nil, errors.New("empty")
	} else if err != nil {
		return nil, err
	} else if t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	o := object{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string) // a decoder returns nothing else here
		if _, twice := o[name]; twice {
			return nil, fmt.Errorf("the member %q is there twice", clip([]byte(name)))
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		o[name] = v
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("text after the JSON object")
	}
	return o, nil
}

// has reports whether a member is there and not null.
func (o object) has(name string) bool {
	v, ok := o[name]
	return ok && string(v) != "null"
}

// text is the string value of a member; ok is false if it is absent or of
// another type.
func (o object) text(name string) (s string, ok bool) {
	return asText(o[name])
}

func asText(v json.RawMessage) (s string, ok bool) {
	if len(v) == 0 || v[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(v, &s) == nil
}

func (o object) boolean(name string) (value, ok bool) {
	v := string(o[name])
	return v == "true", v == "true" || v == "false"
}

// integer is the value of a member written as a plain decimal integer.
func (o object) integer(name string) (int64, bool) {
	n, err := strconv.ParseInt(string(o[name]), 10, 64)
	return n, err == nil
}

func (o object) object(name string) (object, bool) {
	v, err := readObject(o[name])
	return v, err == nil
}

func (o object) list(name string) ([]json.RawMessage, bool) {
	var v []json.RawMessage
	if raw := o[name]; len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &v) != nil {
		return nil, false
	}
	return v, true
}

// clip keeps text from outside short enough for a message.
func clip(text []byte) string {
	const most = 80
	if len(text) > most {
		return string(bytes.ToValidUTF8(text[:most], nil)) + "..."
	}
	return string(text)
}
