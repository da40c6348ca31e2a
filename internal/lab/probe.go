package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	"mcpreplay/faults"
)

// A probe is how a server process says that it is at a point of the write path, and
// is told to go on: one line of JSON each way over a loopback connection.
type reached struct {
	Point     string `json:"point"`
	Operation string `json:"operation"`
}

// probeLine is the server's end.
type probeLine struct {
	mu   sync.Mutex
	conn net.Conn
}

func dialProbe(addr string) (*probeLine, error) {
	if addr == "" {
		return nil, errors.New("a fault that holds needs a probe to ask")
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("reach the probe: %w", err)
	}
	return &probeLine{conn: conn}, nil
}

// The words that let a write go on. After the second it goes on once its context is
// cancelled, if it can be: that a cancellation was read does not say that it was
// carried out.
const (
	goOn          = "go on\n"
	goOnCancelled = "go on when cancelled\n"
)

// hold waits. A probe that is gone ends the process: to go on would be to pretend
// that the lab had agreed.
func (p *probeLine) hold(ctx context.Context, f faults.Fault, operation string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := json.NewEncoder(p.conn).Encode(reached{strings.TrimPrefix(f.String(), string(faults.Hold)+"-"), operation})
	word := ""
	if err == nil {
		word, err = bufio.NewReader(p.conn).ReadString('\n')
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "mcpreplay lab serve: error: the probe is gone: %v\n", err)
		os.Exit(1)
	}
	if word == goOnCancelled && ctx.Done() != nil {
		<-ctx.Done()
	}
}

// probe is the lab's end, for one server.
type probe struct {
	listener net.Listener

	mu   sync.Mutex
	conn net.Conn
}

func listenProbe() (*probe, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &probe{listener: l}, nil
}

func (p *probe) address() string { return p.listener.Addr().String() }

// wait returns when the server is at its point.
func (p *probe) wait(ctx context.Context) (at reached, err error) {
	defer context.AfterFunc(ctx, p.close)()
	conn, err := p.listener.Accept()
	if err != nil {
		return at, fmt.Errorf("wait for the server to reach its point: %w", errors.Join(ctx.Err(), err))
	}
	p.mu.Lock()
	p.conn = conn
	p.mu.Unlock()
	if err := json.NewDecoder(conn).Decode(&at); err != nil {
		return at, fmt.Errorf("the server did not reach its point: %w", err)
	}
	return at, nil
}

// release lets the server go on.
func (p *probe) release(word string) error {
	_, err := p.conn.Write([]byte(word))
	return err
}

func (p *probe) close() {
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.conn.Close()
	}
}
