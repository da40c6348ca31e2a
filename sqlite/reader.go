package sqlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"mcpreplay"
)

// readers is how many reads run at once. They never wait for the writer.
const readers = 4

// pool holds the reading connections: a token for each, with its connection once
// that has been opened.
type pool struct {
	tokens chan *conn
	quit   chan struct{}
}

func newPool() *pool {
	p := &pool{tokens: make(chan *conn, readers), quit: make(chan struct{})}
	for range readers {
		p.tokens <- nil
	}
	return p
}

// close waits for the reads that are running.
func (p *pool) close() (err error) {
	close(p.quit)
	for range readers {
		if e := (<-p.tokens).close(); err == nil {
			err = e
		}
	}
	return err
}

// read runs fn in one snapshot of the ledger. info is the ledger in that same
// snapshot, with its time as of now.
func (s *Store) read(ctx context.Context, fn func(c *conn, info mcpreplay.Info) error) error {
	if err := s.nested(ctx); err != nil {
		return err
	}
	var c *conn
	select {
	case c = <-s.readers.tokens:
	case <-ctx.Done():
		return s.unavailable(ctx.Err())
	case <-s.readers.quit:
		return s.unavailable(errClosed)
	}
	keep := false
	defer func() {
		if !keep { // an error that spoils it, or the end of this goroutine
			c.close()
			c = nil
		}
		s.readers.tokens <- c
	}()
	if err := ctx.Err(); err != nil {
		keep = true
		return s.unavailable(err)
	}
	err := s.snapshot(ctx, &c, fn)
	keep = c != nil && !c.broken && (err == nil || translated(err) || busy(err))
	if err != nil && ctx.Err() != nil && !translated(err) {
		err = ctx.Err()
	}
	return s.unavailable(err)
}

func (s *Store) snapshot(ctx context.Context, at **conn, fn func(*conn, mcpreplay.Info) error) error {
	if *at == nil {
		c, err := s.connect(true)
		if err != nil {
			return err
		}
		*at = c
	}
	c := *at
	if err := c.attached(); err != nil {
		return err
	}
	// A read may be interrupted: there is nothing to lose.
	c.raw.SetInterrupt(ctx)
	defer func() {
		c.raw.SetInterrupt(context.Background())
		c.rollback.run(nil)
	}()
	if err := c.beginRead.run(nil); err != nil {
		return err
	}
	info, err := c.read()
	if err != nil {
		return err
	}
	info.Time = s.readTime(info)
	return fn(c, info)
}

// look reads a record of this key, or fails with ErrNotFound. The record has its
// key and its ledger either way.
func (s *Store) look(c *conn, key mcpreplay.Key, info mcpreplay.Info) (*row, error) {
	absent := &row{}
	absent.Key, absent.Ledger = key, info
	r, err := s.find(c, key)
	switch {
	case err != nil:
		return absent, err
	case r == nil || r.Principal != key.Principal:
		return absent, mcpreplay.ErrNotFound
	}
	r.Ledger = info
	return r, nil
}

// find returns nil if the key's id is not known: to anybody, where ids are shared,
// or to its principal.
func (s *Store) find(c *conn, key mcpreplay.Key) (*row, error) {
	return c.find(s.scope(key.Principal), key.ID)
}

// add inserts a record and sets its Seq.
func (s *Store) add(c *conn, r *row) error { return c.add(s.scope(r.Principal), r) }

// scope is what stands before an id in its column: nothing, or a digest of the
// principal that the id is one of.
func (s *Store) scope(principal string) string {
	if s.ids != IDsPrincipal {
		return ""
	}
	sum := sha256.Sum256([]byte(principal))
	return hex.EncodeToString(sum[:16]) + ":"
}
