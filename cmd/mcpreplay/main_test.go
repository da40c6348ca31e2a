package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "write what the commands print into testdata")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"mcpreplay": main, "implementation": implementation})
}

// TestScripts runs testdata/*.txtar, which read as a manual of the command line.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       *update,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"continuation": continuation, "exits": exits},
	})
}

// exits is a command of the scripts: exec, with the exit code it must end in.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENT...]")
	}
	code := exitFine
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit %d, want %s\n%s", code, args[0], ts.ReadFile("stderr"))
	}
}

var requestState = regexp.MustCompile(`"requestState":"([^"]+)"`)

// continuation is a command of the scripts: it puts the request state of a reply
// in the place of REQUEST_STATE in a file.
func continuation(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: continuation REPLY FILE")
	}
	found := requestState.FindStringSubmatch(ts.ReadFile(args[0]))
	if found == nil {
		ts.Fatalf("there is no request state in %s", args[0])
	}
	text := strings.ReplaceAll(ts.ReadFile(args[1]), "REQUEST_STATE", found[1])
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o666))
}

// ran is what one command line left behind.
type ran struct {
	code           int
	stdout, stderr string
}

// command runs a command line in this process.
func command(stdin string, environment map[string]string, args ...string) ran {
	var stdout, stderr bytes.Buffer
	e := &env{
		stdin:  strings.NewReader(stdin),
		stdout: &stdout,
		stderr: &stderr,
		getenv: func(name string) string { return environment[name] },
	}
	code := run(context.Background(), e, args)
	return ran{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

// golden compares got with a file of testdata/golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/golden/" + name
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is different; go test -update writes it anew. Got:\n%s", file, got)
	}
}
