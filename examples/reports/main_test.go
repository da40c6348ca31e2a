package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"mcpreplay/internal/exampletest"
)

// Calls that were cut off by a crash, whenever it came, end with their file and
// their result when they are sent again.
func TestAReportIsWrittenWheneverTheProcessDies(t *testing.T) {
	program := exampletest.Build(t)
	const calls = 12
	all := func(s *exampletest.Server) []exampletest.Result {
		results := make([]exampletest.Result, calls)
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				results[i], _ = s.Call("write_report", fmt.Sprintf(`{"operation_id":"report-%02d","text":"text %d"}`, i, i))
			})
		}
		wg.Wait()
		return results
	}
	s := program.Start(nil)
	var killed sync.WaitGroup
	killed.Go(func() {
		time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
		s.Kill()
	})
	all(s)
	killed.Wait() // all may have ended before

	s = program.Start(nil)
	for i, r := range all(s) {
		if r.IsError || r.Structured == "" {
			t.Errorf("report %d: %+v", i, r)
		}
		if state, detail := s.Status(fmt.Sprintf("report-%02d", i)); state != "applied" {
			t.Errorf("report %d is %s: %s", i, state, detail)
		}
	}
	files, err := filepath.Glob(filepath.Join(program.Dir, "report-*.txt"))
	if err != nil || len(files) != calls {
		t.Errorf("%d files, %v; want %d", len(files), err, calls)
	}
}

func TestAReportThatCannotBeWrittenNowMayBeWrittenLater(t *testing.T) {
	program := exampletest.Build(t)
	dir := filepath.Join(program.Dir, "reports")
	s := program.Start(nil, "-dir", dir)
	const call = `{"operation_id":"report-1","text":"text"}`
	if r := s.MustCall("write_report", call); !r.IsError {
		t.Errorf("without a directory: %+v", r)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := s.MustCall("write_report", call); r.IsError || r.Replayed {
		t.Errorf("with one: %+v", r)
	}
}
