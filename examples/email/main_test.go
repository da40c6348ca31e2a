package main

import (
	"bufio"
	"net"
	"strings"
	"sync"
	"testing"

	"mcpreplay/internal/exampletest"
)

// mailServer takes messages, and answers the end of each as it is told to.
type mailServer struct {
	mu    sync.Mutex
	taken []string
	next  string // reply to the end of the next message; "" goes away instead
	to    string // reply to the recipient
}

func (m *mailServer) serve(conn net.Conn) {
	defer conn.Close()
	say := func(text string) { conn.Write([]byte(text + "\r\n")) }
	in := bufio.NewScanner(conn)
	say("220 test")
	for in.Scan() {
		m.mu.Lock()
		next, to := m.next, m.to
		m.mu.Unlock()
		switch verb, _, _ := strings.Cut(in.Text(), " "); verb {
		case "EHLO", "HELO", "MAIL":
			say("250 fine")
		case "RCPT":
			say(to)
		case "DATA":
			say("354 go on")
			var text strings.Builder
			for in.Scan() && in.Text() != "." {
				text.WriteString(in.Text() + "\n")
			}
			m.mu.Lock()
			m.taken = append(m.taken, text.String())
			m.mu.Unlock()
			if next == "" {
				return
			}
			say(next)
		case "QUIT":
			say("221 bye")
			return
		}
	}
}

func TestAMessageIsSentOnceAndALostReplyStaysUnknown(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	m := &mailServer{next: "250 taken", to: "250 fine"}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go m.serve(conn)
		}
	}()
	s := exampletest.Build(t).Start(nil, "-smtp", listener.Addr().String())
	send := func(id string) exampletest.Result {
		return s.MustCall("send_email", `{"operation_id":"`+id+`","to":"bo@example.test","subject":"hello","body":"text"}`)
	}
	will := func(to, next string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.to, m.next = to, next
	}

	first := send("mail-1")
	if first.IsError || first.Replayed {
		t.Errorf("sent: %+v", first)
	}
	if r := send("mail-1"); r.Structured != first.Structured || !r.Replayed {
		t.Errorf("sent again: %+v", r)
	}
	will("550 nobody here", "")
	if r := send("mail-2"); !r.IsError || !strings.Contains(r.Text, "nobody here") {
		t.Errorf("refused: %+v", r)
	}
	if state, _ := s.Status("mail-2"); state != "not_applied" {
		t.Errorf("refused, it is %s", state)
	}
	will("451 later", "")
	send("mail-3")
	will("250 fine", "250 taken")
	if r := send("mail-3"); r.IsError || r.Replayed {
		t.Errorf("sent later: %+v", r)
	}
	will("250 fine", "")
	for range 3 {
		if r := send("mail-4"); !r.IsError || !strings.Contains(r.Text, "not known") {
			t.Errorf("the reply is lost: %+v", r)
		}
	}
	if state, detail := s.Status("mail-4"); state != "unknown" {
		t.Errorf("the reply is lost: %s, %s", state, detail)
	}
	if len(m.taken) != 3 {
		t.Errorf("%d messages were taken, want 3", len(m.taken))
	}
}
