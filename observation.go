package mcpreplay

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"time"
)

// ObservationError says why a status result is not believed. Rule is a stable
// name of the rule that it breaks.
type ObservationError struct{ Rule, Detail string }

func (e *ObservationError) Error() string {
	return fmt.Sprintf("the observation is not believed (%s): %s", e.Rule, e.Detail)
}

func reject(rule, format string, args ...any) error {
	return &ObservationError{Rule: rule, Detail: fmt.Sprintf(format, args...)}
}

// ParseObservation reads the structured content of a status result and checks
// it against the identity of the attempt. Nothing of a rejected observation may
// be used; every rejection is an *ObservationError. Members it does not know are
// ignored.
//
// NextAction is derived from the checked members. What the server wrote there
// is heard in one case only, where either answer is safe: it may ask to stop
// where a new operation could be started.
//
// Whether the ledger is the one the attempt went to is for the caller to check.
func ParseObservation(raw []byte, want Scope) (Observation, error) {
	o, err := readObject(raw)
	if err != nil {
		return Observation{}, reject("json", "%v", err)
	}
	var obs Observation
	for _, check := range []func(object, Scope, *Observation) error{
		checkIdentity, checkAuthority, checkState, checkEffects, checkResult, checkDropped,
		checkResultState, checkNewOperation, checkMetadata, checkLedger,
	} {
		if err := check(o, want, &obs); err != nil {
			return Observation{}, err
		}
	}
	said, _ := o.text("nextAction")
	obs.NextAction = obs.action(Action(said))
	return obs, nil
}

// ParseStatus is ParseObservation for the whole result of get_operation_status.
func ParseStatus(result []byte, want Scope) (Observation, error) {
	if v := ClassifyResult(result); v.Kind != VerdictResult {
		return Observation{}, reject("status", "not a complete result (%s)", v.Detail)
	}
	o, err := readObject(result)
	if err != nil {
		return Observation{}, reject("status", "%v", err)
	}
	if isError, _ := o.boolean("isError"); isError {
		return Observation{}, reject("status", "the status tool reports an error")
	}
	return ParseObservation(o["structuredContent"], want)
}

// action is what the checked observation o allows.
func (o *Observation) action(said Action) Action {
	switch {
	case o.State == StateUnknown:
		return ActionReconcile
	case o.State == StateApplied && o.ResultDropped == nil:
		return ActionReturnResult
	case o.State == StateNotApplied && o.NewOperationSafe && said == ActionStartNewOperation:
		return ActionStartNewOperation
	}
	return ActionStop
}

func checkIdentity(o object, want Scope, obs *Observation) error {
	s, ok := o.scope()
	if !ok {
		return reject("identity", "operationId, principal and backend must be strings that are not empty")
	}
	if s != want {
		return reject("identity_mismatch", "it is about another operation, principal or backend than the attempt")
	}
	binding, ok := o.object("scopeBinding")
	if !ok || len(binding) != 3 {
		return reject("scope_binding", "scopeBinding must have exactly operationId, principal and backend")
	}
	if b, ok := binding.scope(); !ok || b != want {
		return reject("scope_binding", "scopeBinding names another operation, principal or backend than the attempt")
	}
	obs.Scope, obs.Binding = s, s
	return nil
}

func (o object) scope() (s Scope, ok bool) {
	for name, to := range map[string]*string{"operationId": &s.OperationID, "principal": &s.Principal, "backend": &s.Backend} {
		text, ok := o.text(name)
		if !ok || text == "" {
			return Scope{}, false
		}
		*to = text
	}
	return s, true
}

func checkAuthority(o object, _ Scope, obs *Observation) error {
	if yes, _ := o.boolean("authoritative"); !yes {
		return reject("authoritative", "authoritative must be true: a diagnostic look settles nothing")
	}
	if yes, ok := o.boolean("freshWriteAuthorized"); yes || !ok {
		return reject("fresh_write", "freshWriteAuthorized must be there and false")
	}
	obs.Authoritative = true
	return nil
}

func checkState(o object, _ Scope, obs *Observation) error {
	text, ok := o.text("state")
	if state := State(text); !ok || state != StateUnknown && !state.Final() {
		return reject("state", "state must be unknown, applied, partial or not_applied, not %s", clip(o["state"]))
	}
	obs.State = State(text)
	return nil
}

func checkEffects(o object, _ Scope, obs *Observation) error {
	list, ok := o.list("matchingIds")
	if !ok {
		return reject("effect_ids", "matchingIds must be a list")
	}
	obs.MatchingIDs = []string{}
	seen := map[string]bool{}
	for _, raw := range list {
		id, ok := asText(raw)
		if !ok || id == "" {
			return reject("effect_ids", "matchingIds must hold strings that are not empty, not %s", clip(raw))
		}
		if seen[id] {
			return reject("effect_ids_unique", "matchingIds names %q twice", clip(raw))
		}
		seen[id] = true
		obs.MatchingIDs = append(obs.MatchingIDs, id)
	}
	if len(list) > 0 && !obs.happened() {
		return reject("effect_ids_state", "an operation that is %s cannot name effects", obs.State)
	}
	return nil
}

// happened: the state says that there is an effect.
func (o *Observation) happened() bool {
	return o.State == StateApplied || o.State == StatePartial
}

// checkResult checks the stored result by itself.
func checkResult(o object, _ Scope, obs *Observation) error {
	var ok bool
	if _, present := o["resultIsError"]; present {
		if obs.ResultIsError, ok = o.boolean("resultIsError"); !ok {
			return reject("result_is_error", "resultIsError must be a boolean")
		}
	}
	if !o.has("storedResult") {
		return nil
	}
	if !obs.happened() {
		return reject("stored_result_unsettled", "an operation that is %s cannot have a stored result", obs.State)
	}
	if err := checkToolResult(o["storedResult"], obs.ResultIsError); err != nil {
		return reject("stored_result", "storedResult: %v", err)
	}
	obs.StoredResult = o["storedResult"]
	return nil
}

func checkDropped(o object, _ Scope, obs *Observation) error {
	if !o.has("resultDropped") {
		return nil
	}
	raw, _ := o.object("resultDropped")
	digest, _ := raw.text("digest")
	size, ok := raw.integer("size")
	if sum, err := hex.DecodeString(digest); err != nil || len(sum) != 32 || hex.EncodeToString(sum) != digest || !ok || size < 0 {
		return reject("result_dropped", "resultDropped must have a SHA-256 digest in lower-case hex and a size")
	}
	obs.ResultDropped = &DroppedResult{Digest: digest, Size: size}
	return nil
}

// checkResultState checks that state and result tell the same story.
func checkResultState(_ object, _ Scope, obs *Observation) error {
	stored, dropped := obs.StoredResult != nil, obs.ResultDropped != nil
	switch {
	case stored && dropped:
		return reject("result_dropped", "a result cannot be stored and dropped")
	case dropped && !obs.happened():
		return reject("result_dropped", "an operation that is %s cannot have dropped a result", obs.State)
	case obs.State == StateApplied && !stored && !dropped:
		return reject("stored_result_missing", "an applied operation has a stored result")
	case obs.ResultIsError && !stored && !dropped:
		return reject("result_is_error", "resultIsError is true and there is no result")
	}
	return nil
}

func checkNewOperation(o object, _ Scope, obs *Observation) error {
	if _, present := o["newOperationSafe"]; !present {
		return nil
	}
	safe, ok := o.boolean("newOperationSafe")
	if !ok || safe && obs.State != StateNotApplied {
		return reject("new_operation", "newOperationSafe must be a boolean, and true only with not_applied")
	}
	obs.NewOperationSafe = safe
	return nil
}

var rfc3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

func checkMetadata(o object, _ Scope, obs *Observation) error {
	var ok bool
	if obs.ScopeText, ok = o.text("scope"); !ok || obs.ScopeText == "" {
		return reject("metadata", "scope must be a string that is not empty")
	}
	if _, present := o["detail"]; present {
		if obs.Detail, ok = o.text("detail"); !ok {
			return reject("metadata", "detail must be a string")
		}
	}
	obs.ObservedAt, _ = o.text("observedAt")
	// The pattern is for the form, the parser for days and hours that exist:
	// alone it takes a comma, and an hour of one digit.
	if _, err := time.Parse(time.RFC3339, obs.ObservedAt); err != nil || !rfc3339.MatchString(obs.ObservedAt) {
		return reject("observed_at", "observedAt must be a string: an RFC 3339 time with an offset")
	}
	return nil
}

func checkLedger(o object, _ Scope, obs *Observation) error {
	var ok bool
	if obs.Ledger, ok = o.ledger(); !ok {
		return reject("ledger", "ledger must have an instance, an incarnation and a position")
	}
	return nil
}
