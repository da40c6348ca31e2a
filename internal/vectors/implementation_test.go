package vectors_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

// The test binary is a foreign implementation, too, if it is asked to be one. It
// shares no code with the program: what it knows is what README.md says.
func init() {
	if len(os.Args) < 3 || os.Args[1] != "implementation" {
		return
	}
	code, err := implementation(os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// asked is a question as a foreign implementation reads it.
type asked struct {
	Vector          json.Number
	KeyHex          string
	Base, Candidate map[string]json.RawMessage
	Transport       string
	Scope           map[string]string
	Observation     struct {
		State         string
		Authoritative bool
		ScopeBinding  map[string]string
		StoredResult  json.RawMessage
	}
}

func implementation(how string, args []string) (code int, err error) {
	if how == "waits" { // is a descendant, and shows by a connection that it lives
		if _, err := net.Dial("tcp", args[0]); err != nil {
			return 0, err
		}
		os.Stderr.Close()
		time.Sleep(time.Hour)
	}
	line, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 0, err
	}
	if bytes.Count(line, []byte("\n")) != 1 || !bytes.HasSuffix(line, []byte("\n")) {
		return 0, fmt.Errorf("the question is not one line: %q", line)
	}
	var q asked
	if err := json.Unmarshal(line, &q); err != nil {
		return 0, err
	}
	class, err := decide(q, how)
	if err != nil {
		return 0, err
	}
	return misbehave(how, args, q, fmt.Sprintf(`{"vector":%s,"classification":%q}`, q.Vector, class))
}

// decide answers as it should, but for the mistake that is planted.
func decide(q asked, mistake string) (string, error) {
	if string(q.Candidate["continuation_state"]) == "null" && mistake != "accepts-no-state" {
		return "reject", nil
	}
	if q.Transport == "lost_reply" {
		o := q.Observation
		settled := o.State == "applied" && o.Authoritative && fmt.Sprint(o.ScopeBinding) == fmt.Sprint(q.Scope) && string(o.StoredResult) != "null"
		switch {
		case settled && mistake == "repeats-lost-calls", !settled && mistake == "guesses":
			return "replay", nil
		case settled:
			return "status_only", nil
		}
		return "stop_unknown", nil
	}
	if ignored, ok := strings.CutPrefix(mistake, "ignores-"); ok {
		name := map[string]string{"responses": "input_responses", "principal": "principal", "state": "continuation_state"}[ignored]
		if string(q.Candidate[name]) != "null" { // absent and null are the same
			q.Base[name], q.Candidate[name] = []byte(`"ignored"`), []byte(`"ignored"`)
		}
	}
	base, err := digest(q.KeyHex, q.Base)
	if err != nil {
		return "", err
	}
	candidate, err := digest(q.KeyHex, q.Candidate)
	if err != nil {
		return "", err
	}
	if base == candidate && mistake != "never-replays" {
		return "replay", nil
	}
	return "conflict", nil
}

// digest is contract v1 for requests whose numbers are small integers.
func digest(keyHex string, request map[string]json.RawMessage) (string, error) {
	key, err := hex.DecodeString(keyHex)
	if err != nil {
		return "", err
	}
	payload := map[string]any{}
	for _, name := range []string{"principal", "tool_id", "tool_version", "arguments", "continuation_state", "input_responses"} {
		var value any
		d := json.NewDecoder(bytes.NewReader(request[name]))
		d.UseNumber()
		if err := d.Decode(&value); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		payload[name] = value
		if name == "continuation_state" || name == "input_responses" {
			mac := hmac.New(sha256.New, key)
			mac.Write(append([]byte(name+"\x00"), sorted(value)...))
			payload[name] = hex.EncodeToString(mac.Sum(nil))
		}
	}
	sum := sha256.Sum256(sorted(payload))
	return hex.EncodeToString(sum[:]), nil
}

// sorted is v with its members in order, without white space.
func sorted(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSpace(b.Bytes())
}

// misbehave prints the answer, which is right, in a way that may not be.
func misbehave(how string, args []string, q asked, answer string) (code int, err error) {
	switch how {
	case "hangs":
		fmt.Println(answer)
		time.Sleep(time.Hour)
	case "hangs-below": // in a process of its own
		return 0, again("waits", args).Run()
	case "leaves-a-child": // once that lives, which is when it closes its stderr
		fmt.Println(answer)
		child := again("waits", args)
		child.Stderr = nil
		words, err := child.StderrPipe()
		if err == nil {
			err = child.Start()
		}
		if err == nil {
			_, err = io.Copy(os.Stderr, words)
		}
		return 0, err
	case "dies":
		return 3, nil
	case "dies-after-its-answer":
		fmt.Println(answer)
		return 3, nil
	case "floods":
		for {
			if _, err := fmt.Println(answer); err != nil {
				return 0, err
			}
		}
	case "complains":
		io.WriteString(os.Stderr, strings.Repeat("oh no ", 1<<20))
	case "prints":
		answer = strings.NewReplacer("VECTOR", q.Vector.String(), `\n`, "\n", `\r`, "\r").Replace(args[0])
		_, err := io.WriteString(os.Stdout, answer)
		return 0, err
	}
	fmt.Println(answer)
	return 0, nil
}

// again is this program once more, with the outputs of this one.
func again(how string, args []string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"implementation", how}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}
