package mcpreplay_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// mayImport is the whole layering rule: for each package, which packages of this
// module its code, tests aside, may import. A package that is not listed fails.
var mayImport = map[string][]string{
	".":                         {},
	"internal/rules":            {"."},
	"sqlite":                    {".", "internal/rules"},
	"postgres":                  {".", "internal/rules"},
	"storetest":                 {"."},
	"internal/pgtest":           {},
	"faults":                    {"."},
	"guard":                     {"."},
	"consumer":                  {"."},
	"jwt":                       {"."},
	"internal/issues":           {".", "guard", "sqlite"},
	"internal/evidence":         {".", "sqlite"},
	"internal/lab":              {".", "consumer", "faults", "guard", "internal/evidence", "internal/issues", "sqlite"},
	"internal/exampletest":      {},
	"internal/chaos":            {}, // tests alone
	"examples/notes":            {".", "guard", "sqlite"},
	"examples/payments":         {"guard", "sqlite"},
	"examples/email":            {"guard", "sqlite"},
	"examples/reports":          {"guard", "sqlite"},
	"examples/order":            {".", "guard", "sqlite"},
	"examples/confirm":          {"guard", "sqlite"},
	"examples/tasks":            {".", "examples/tasks/tasksdb", "guard", "sqlite"},
	"examples/tasks/tasksdb":    {}, // generated
	"examples/hosts":            {".", "examples/hosts/hotel", "guard", "postgres"},
	"examples/hosts/hotel":      {}, // generated
	"internal/vectors":          {".", "consumer"},
	"internal/mutants":          {},
	"internal/archive":          {"internal/archive/manifest"},
	"internal/archive/manifest": {},
	"cmd/verifyarchive":         {"internal/archive/manifest"},
	"cmd/mcpreplay":             {".", "consumer", "faults", "guard", "internal/archive", "internal/evidence", "internal/issues", "internal/lab", "internal/vectors", "jwt", "postgres", "sqlite"},
}

// mayBeIn says in which packages what is not of this module may appear, tests
// aside. Of the standard library only testing is restricted.
var mayBeIn = map[string][]string{
	"github.com/modelcontextprotocol/go-sdk": {"guard", "consumer", "jwt", "internal/issues", "internal/lab", "internal/vectors", "internal/exampletest", "examples/notes",
		"examples/payments", "examples/email", "examples/reports", "examples/order", "examples/confirm", "examples/tasks", "examples/hosts", "cmd/mcpreplay"},
	"github.com/google/jsonschema-go":     {"guard"},
	"github.com/segmentio/encoding":       {"guard"},
	"github.com/ncruces/go-sqlite3":       {"sqlite", "internal/evidence"}, // which reads rows as a stranger does
	"go.opentelemetry.io/otel":            {"guard", "cmd/mcpreplay"},      // guard: its interfaces only
	"github.com/prometheus/client_golang": {"cmd/mcpreplay"},
	"github.com/go-jose/go-jose/v4":       {"jwt"},
	"github.com/jackc/pgx":                {"postgres", "internal/pgtest", "examples/hosts/hotel"},
	"github.com/spf13/cobra":              {"cmd/mcpreplay"},
	"github.com/google/go-cmp":            {"storetest"},
	"github.com/anishathalye/porcupine":   {"storetest"},
	"testing":                             {"storetest", "internal/exampletest", "internal/pgtest"},
}

// Sizes at which a file or a function has to be split.
const (
	maxSource   = 600
	maxTest     = 900
	maxFunction = 90
	maxRoot     = 50 // entries of the root directory
)

// refused are words that would make a second name for a thing that has one, with
// the one to write instead. An issue is where work to do has its name.
var refused = map[string]string{
	`(?i)\b(idempotency|deduplication|dedup) keys?\b`:  "operation id",
	`(?i)\b(resume|continuation|resumption) tokens?\b`: "request state",
	`(?i)\bcached (results?|responses?|repl(y|ies))\b`: "stored result",
	`(?i)\b(user|client|account) ids?\b`:               "principal",
	`(?i)\b(operation|audit) log\b`:                    "ledger",
	`\b(TODO|FIXME|XXX)\b`:                             "an issue",
}

// allowed are the uses of a refused word that mean something else: the key an
// upstream API has of its own.
var allowed = regexp.MustCompile(`(?i)(\b(own|its|their|upstream|as an)|API's) (idempotency|deduplication) keys?`)

type listed struct {
	ImportPath   string
	Dir          string
	Imports      []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string

	name string // the path inside the module; "." is the root
}

var packages = sync.OnceValues(func() ([]listed, error) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles,TestGoFiles,XTestGoFiles", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var list []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		p.name = inside(p.ImportPath)
		list = append(list, p)
	}
	return list, nil
})

// inside is where a package lies in this module, or "".
func inside(path string) string {
	if path == "mcpreplay" {
		return "."
	}
	name, ok := strings.CutPrefix(path, "mcpreplay/")
	if !ok {
		return ""
	}
	return name
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	list, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestLayoutImportsPointDown(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	for _, p := range listPackages(t) {
		there[p.name] = true
		may, known := mayImport[p.name]
		if !known {
			t.Errorf("%s is not in mayImport: what may it import?", p.name)
		}
		for _, path := range p.Imports {
			if name := inside(path); name != "" && !slices.Contains(may, name) {
				t.Errorf("%s must not import %s", p.name, path)
			}
		}
	}
	for name := range mayImport {
		if !there[name] {
			t.Errorf("%s is in mayImport and does not exist", name)
		}
	}
}

func TestLayoutThirdPartiesStayWhereTheyBelong(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		for _, path := range p.Imports {
			first, _, _ := strings.Cut(path, "/")
			if inside(path) != "" || !strings.Contains(first, ".") && first != "testing" {
				continue
			}
			module := ""
			for m := range mayBeIn {
				if path == m || strings.HasPrefix(path, m+"/") {
					module = m
				}
			}
			if !slices.Contains(mayBeIn[module], p.name) {
				t.Errorf("%s must not import %s", p.name, path)
			}
		}
	}
}

// An unpacked archive is verified offline and without a module cache: the standard
// library must do for the verifier and for what it imports.
func TestLayoutVerifierNeedsNothingToDownload(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/verifyarchive").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	if want := []string{"mcpreplay/cmd/verifyarchive", "mcpreplay/internal/archive/manifest"}; !slices.Equal(got, want) {
		t.Errorf("cmd/verifyarchive consists of %v, want %v", got, want)
	}
}

// A new dependency needs an argument, and CONTRIBUTING.md is where it stands.
func TestLayoutDependenciesAreArguedFor(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\t?(\S+\.\S+/\S+) v\S+$`).FindAllSubmatch(mod, -1) {
		if !bytes.Contains(text, m[1]) {
			t.Errorf("CONTRIBUTING.md does not say why %s is needed", m[1])
		}
	}
}

// file is one parsed Go file.
type file struct {
	path  string // from the root
	test  bool
	lines int
	ast   *ast.File
}

var fileSet = token.NewFileSet()

var files = sync.OnceValues(func() ([]file, error) {
	list, err := packages()
	if err != nil {
		return nil, err
	}
	var all []file
	for _, p := range list {
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			path := filepath.Join(p.Dir, name)
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			tree, err := parser.ParseFile(fileSet, path, text, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			all = append(all, file{
				path:  filepath.Join(p.name, name),
				test:  strings.HasSuffix(name, "_test.go"),
				lines: bytes.Count(text, []byte("\n")),
				ast:   tree,
			})
		}
	}
	return all, nil
})

func parseFiles(t *testing.T) []file {
	t.Helper()
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLayoutFilesAndFunctionsAreSmall(t *testing.T) {
	t.Parallel()
	type size struct {
		lines int
		what  string
	}
	var sources, functions []size
	for _, f := range parseFiles(t) {
		most := maxSource
		if f.test {
			most = maxTest
		} else {
			sources = append(sources, size{f.lines, f.path})
		}
		if f.lines > most {
			t.Errorf("%s has %d lines, more than %d", f.path, f.lines, most)
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				lines := fileSet.Position(fn.End()).Line - fileSet.Position(fn.Pos()).Line + 1
				if f.test { // a table of cases may be long
					continue
				}
				functions = append(functions, size{lines, f.path + " " + fn.Name.Name})
				if lines > maxFunction {
					t.Errorf("%s: %s has %d lines, more than %d", f.path, fn.Name.Name, lines, maxFunction)
				}
			}
		}
	}
	for what, list := range map[string][]size{"files": sources, "functions": functions} {
		slices.SortFunc(list, func(a, b size) int { return cmp.Compare(b.lines, a.lines) })
		t.Logf("longest %s of %d: %v", what, len(list), list[:min(5, len(list))])
	}
}

func TestLayoutSurfaceIsSmall(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	if len(entries) > maxRoot {
		t.Errorf("the root has %d entries, more than %d", len(entries), maxRoot)
	}
	for _, p := range listPackages(t) {
		if strings.HasPrefix(p.name, "internal/") || strings.HasPrefix(p.name, "cmd/") {
			continue
		}
		out, err := exec.Command("go", "doc", "-short", p.ImportPath).Output()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d lines of go doc -short", p.name, bytes.Count(out, []byte("\n")))
	}
}

// An error is declared once: where two packages have the same text, errors.Is is
// false for one of them.
func TestLayoutErrorsAreDeclaredOnce(t *testing.T) {
	t.Parallel()
	where := map[string]map[string]bool{}
	for _, f := range parseFiles(t) {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if text := errorText(n); text != "" {
				if where[text] == nil {
					where[text] = map[string]bool{}
				}
				where[text][filepath.Dir(f.path)] = true
				if strings.HasPrefix(text, "failed to ") {
					t.Errorf("%s: %q: say what was being done", f.path, text)
				}
			}
			return true
		})
	}
	for text, in := range where {
		if len(in) > 1 {
			t.Errorf("errors.New(%q) is in %v", text, slices.Sorted(maps.Keys(in)))
		}
	}
}

// errorText is the text of a call of errors.New.
func errorText(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return ""
	}
	fn, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || fn.Sel.Name != "New" {
		return ""
	}
	if from, ok := fn.X.(*ast.Ident); !ok || from.Name != "errors" {
		return ""
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return ""
	}
	text, _ := strconv.Unquote(literal.Value)
	return text
}

func TestLayoutWordsAreTheVocabulary(t *testing.T) {
	t.Parallel()
	texts := map[string]string{} // by place
	for _, f := range parseFiles(t) {
		for _, c := range f.ast.Comments {
			texts[fmt.Sprintf("%s:%d", f.path, fileSet.Position(c.Pos()).Line)] = c.Text()
		}
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "*/*/*/README.md", "testdata/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	for word, instead := range refused {
		re := regexp.MustCompile(word)
		for place, text := range texts {
			text = allowed.ReplaceAllString(strings.Join(strings.Fields(text), " "), "")
			if hit := re.FindString(text); hit != "" {
				t.Errorf("%s: %q: write %s instead", place, hit, instead)
			}
		}
	}
}
