package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/ncruces/go-sqlite3/driver"
)

// Weak is what no option offers: how a ledger can be made less durable, or to
// live on a disk that fails.
type Weak struct {
	VFS         string
	Synchronous string
	Pragmas     []string
	Patience    time.Duration
}

func OpenWeak(path string, opts *Options, w Weak) (*Store, error) {
	if w.Synchronous == "" {
		w.Synchronous = "FULL"
	}
	if w.Patience == 0 {
		w.Patience = patience
	}
	return open(path, opts, config{vfs: w.VFS, synchronous: w.Synchronous, pragmas: w.Pragmas, patience: w.Patience})
}

// OpenRaw opens the file without a store.
func OpenRaw(path string) (*sql.DB, error) {
	s := &Store{path: path, mode: "rw"}
	return driver.Open(s.dsn())
}

// Waiting is how many wait for the writer.
func (s *Store) Waiting() int { return int(s.writer.waiting.Load()) }

const BatchTime = batchTime

var (
	VersionOK  = versionOK
	RestoreAt  = restore
	Migrations = migrations
)

// Settings reads a pragma on the writing connection and on each reader.
func (s *Store) Settings(name string) (values []string, err error) {
	var tokens []*conn
	defer func() {
		for _, c := range tokens {
			s.readers.tokens <- c
		}
	}()
	err = s.write(context.Background(), func(_ context.Context, c *conn) (bool, error) {
		value, err := c.pragma(name)
		values = append(values, value)
		return false, err
	})
	if err != nil {
		return nil, err
	}
	for range readers {
		c := <-s.readers.tokens
		if c == nil {
			if c, err = s.connect(true); err != nil {
				tokens = append(tokens, nil)
				return nil, err
			}
		}
		tokens = append(tokens, c)
		value, err := c.pragma(name)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, nil
}
