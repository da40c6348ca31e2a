package guard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"

	"mcpreplay"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	segmentio "github.com/segmentio/encoding/json"
)

// argOperationID is the tool argument that names the operation.
const argOperationID = "operation_id"

// operationIDDescription tells a model what the argument is for. What it must
// not say is that the id be unique for every call: then a retry is a new one.
const operationIDDescription = "Names this operation. Use one id per intended effect and reuse the same id on every retry: " +
	"a repeat then returns the recorded result and nothing is done twice. 4 to 256 printable ASCII characters without spaces. " +
	"May be left out by clients that continue input_required results by themselves."

// input is what a guarded tool takes: the author's schema, and whether
// operation_id is part of it.
type input struct {
	schema *jsonschema.Resolved // the author's
	ownsID bool
}

// newInput resolves the tool's input schema, inferred from In unless given, and
// publishes it with an operation_id.
func newInput[In any](t *mcp.Tool) (*input, error) {
	if t.InputSchema == nil {
		in := reflect.TypeFor[In]()
		if in.Kind() == reflect.Pointer {
			in = in.Elem()
		}
		schema := &jsonschema.Schema{Type: "object"}
		if in != reflect.TypeFor[any]() && in != reflect.TypeFor[json.RawMessage]() {
			var err error
			if schema, err = jsonschema.ForType(in, nil); err != nil {
				return nil, err
			}
		}
		t.InputSchema = schema
	}
	schema, err := asSchema(t.InputSchema)
	if err != nil {
		return nil, err
	}
	if schema.Type != "object" {
		return nil, fmt.Errorf(`its type must be "object"`)
	}
	if schema.Ref != "" || schema.DynamicRef != "" {
		return nil, fmt.Errorf("it is a reference at its root; write it out, so that operation_id can be part of it")
	}
	if err := exactDefaults(schema); err != nil {
		return nil, err
	}
	_, owns := schema.Properties[argOperationID]
	resolved, err := schema.CloneSchemas().Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		return nil, err
	}
	t.InputSchema = withOperationID(schema)
	return &input{schema: resolved, ownsID: owns}, nil
}

// exactDefaults refuses defaults with numbers that filling in would round: the call
// that writes such a default out would be another request.
func exactDefaults(schema *jsonschema.Schema) error {
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return err
	}
	return walkDefaults(tree, false)
}

func walkDefaults(v any, inDefault bool) error {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			if err := walkDefaults(member, inDefault || name == "default"); err != nil {
				return err
			}
		}
	case []any:
		for _, item := range v {
			if err := walkDefaults(item, inDefault); err != nil {
				return err
			}
		}
	case json.Number:
		rounded, err := v.Float64()
		if !inDefault || err == nil && sameNumber(v.String(), rounded) {
			return nil
		}
		return fmt.Errorf("the default %s cannot be filled in exactly", v)
	}
	return nil
}

func sameNumber(text string, f float64) bool {
	written, err := json.Marshal(f)
	if err != nil {
		return false
	}
	a, errA := mcpreplay.Canonical([]byte(text), nil)
	b, errB := mcpreplay.Canonical(written, nil)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// withOperationID adds operation_id to a schema, or says what it is for where the
// author did not.
func withOperationID(schema *jsonschema.Schema) *jsonschema.Schema {
	out := schema.CloneSchemas()
	if out.Properties == nil {
		out.Properties = make(map[string]*jsonschema.Schema)
	}
	id := out.Properties[argOperationID]
	if id == nil {
		lo, hi := mcpreplay.MinIDLength, mcpreplay.MaxIDLength
		id = &jsonschema.Schema{Type: "string", MinLength: &lo, MaxLength: &hi, Pattern: "^[!-~]+$"}
		out.Properties[argOperationID] = id
		if len(out.PropertyOrder) > 0 && !slices.Contains(out.PropertyOrder, argOperationID) {
			out.PropertyOrder = append(slices.Clone(out.PropertyOrder), argOperationID)
		}
	}
	if id.Description == "" {
		id.Description = operationIDDescription
	}
	return out
}

// asSchema reads a schema in whatever form a tool may carry one.
func asSchema(v any) (*jsonschema.Schema, error) {
	if s, ok := v.(*jsonschema.Schema); ok {
		if s == nil {
			return nil, fmt.Errorf("it is nil")
		}
		return s, nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// arguments are the arguments of a call in the forms the guard needs.
type arguments struct {
	id        string // operation_id, or ""
	normal    []byte // without operation_id, defaults filled in, numbers as sent
	canonical []byte // canonical form of normal
	asSent    []byte // canonical form before defaults were filled in
}

// read takes the raw arguments apart. They are one JSON object within the limits;
// whether they fit the schema is not asked yet, so that a later schema does not
// lose an earlier result. It returns a *mcpreplay.JSONError, or an error about
// the id.
func (in *input) read(raw []byte, limits *mcpreplay.Limits) (arguments, error) {
	if len(raw) == 0 { // arguments are optional (server/tools)
		raw = []byte("{}")
	}
	if _, err := mcpreplay.CanonicalObject(raw, limits); err != nil {
		return arguments{}, err
	}
	var members map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&members); err != nil {
		return arguments{}, err
	}
	var args arguments
	var err error
	if v, ok := members[argOperationID]; ok {
		id, isString := v.(string)
		if !isString {
			return arguments{}, &mcpreplay.IDError{Reason: "must be a string"}
		}
		if err := mcpreplay.ValidateID(id); err != nil {
			return arguments{}, err
		}
		args.id = id
		delete(members, argOperationID)
	}
	if _, args.asSent, err = textAndForm(members); err != nil {
		return arguments{}, err
	}
	if err := in.schema.ApplyDefaults(&members); err != nil {
		return arguments{}, err
	}
	args.normal, args.canonical, err = textAndForm(members)
	return args, err
}

// textAndForm is the JSON of what was within the limits when it was sent, and its
// canonical form. Written anew it may be longer, which is no fault of the caller.
func textAndForm(members map[string]any) (text, canonical []byte, err error) {
	if text, err = marshal(members); err != nil {
		return nil, nil, err
	}
	canonical, err = mcpreplay.CanonicalObject(text, &mcpreplay.Limits{Bytes: math.MaxInt32, Depth: mcpreplay.MaxJSONDepth})
	return text, canonical, err
}

// forEffect returns the arguments the effect decodes: normal, with the id put
// back if the author's own schema asks for it.
func (in *input) forEffect(normal []byte, id string) ([]byte, error) {
	if !in.ownsID {
		return normal, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(normal, &members); err != nil {
		return nil, err
	}
	quoted, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	members[argOperationID] = quoted
	return marshal(members)
}

// validate checks a JSON text against a schema; a nil schema takes everything.
func validate(schema *jsonschema.Resolved, text []byte) error {
	if schema == nil {
		return nil
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	return schema.Validate(v)
}

// decodeInput decodes arguments into In, with integers as they were sent and
// member names matched exactly, as the SDK does.
func decodeInput[In any](args []byte) (In, error) {
	var in In
	if raw, ok := any(&in).(*json.RawMessage); ok {
		*raw = bytes.Clone(args)
		return in, nil
	}
	rest, err := segmentio.Parse(args, &in, segmentio.DontMatchCaseInsensitiveStructFields)
	if err == nil && len(bytes.TrimSpace(rest)) > 0 {
		err = fmt.Errorf("more than one value")
	}
	return in, err
}

// marshal is json.Marshal without its escaping for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
