package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"mcpreplay/consumer"
	"mcpreplay/faults"
)

// keyCells are about the header that makes Go's HTTP client send a POST a second
// time by itself, and tell nobody: when a connection that was used before closes
// in place of the reply.
func keyCells() []cell {
	const id, title = "transport-key", "net/http repeats a POST that carries an Idempotency-Key"
	return []cell{
		{id: id, title: title, expected: "stored_result_one_effect", script: keyed},
		unguardedTwin(id, title, "duplicate_effect", keyed),
		{id: id + "-consumer", title: "the consumer's tripper takes the key away", expected: "unknown_then_authoritative_applied_no_redispatch", script: func(p *play) { keyedConsumer(p, consumer.StripKeys) }},
		unguardedTwin(id+"-below", "a key that is added below the consumer", "duplicate_effect", func(p *play) {
			keyedConsumer(p, func(base http.RoundTripper) http.RoundTripper { return base })
		}),
	}
}

// keyed is what people write: one http.Client, one key for each request.
func keyed(p *play) {
	s := p.start("server")
	i := s.between(faults.CloseKeptAliveForwarded, faults.IntermediaryOptions{})
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: base, Timeout: replyLimit}
	first := s.postWith(client, call{id: 10})
	s.postWith(client, call{id: 11, state: first.state, body: alpha})
	i.struck(1)
	if !p.unguarded {
		s.postWith(client, status(12))
	}
	s.stop()
}

// postWith makes a call with net/http, and with a key.
func (s *server) postWith(client *http.Client, c call) answer {
	method, params := s.params(c)
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.id, "method": method, "params": params})
	s.p.must(err)
	req, err := http.NewRequestWithContext(s.p.ctx, http.MethodPost, "http://"+s.addr+"/mcp", bytes.NewReader(text))
	s.p.must(err)
	req.Header = credentials()
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": s.p.protocol, "Mcp-Method": method, "Mcp-Name": fmt.Sprint(params["name"]),
		"Idempotency-Key": fmt.Sprintf("%q", s.p.op),
	} {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}
	}
	return readAnswer(body)
}

// keyedConsumer has a tripper of the caller add a key to what the consumer sends,
// around another one.
func keyedConsumer(p *play, around func(http.RoundTripper) http.RoundTripper) {
	header := credentials()
	header.Set("Idempotency-Key", p.op)
	adding := func(base http.RoundTripper) http.RoundTripper { return bearer{around(base), header} }
	s := p.start("server")
	i := s.between(faults.CloseKeptAliveForwarded, faults.IntermediaryOptions{})
	u := p.user()
	session := u.connect(s, adding)
	u.call(p.ctx, clientSide, session)
	i.struck(1)
	session.Close()
	if !p.unguarded {
		session = u.connect(s, adding)
		u.reconcile(clientSide, session)
		session.Close()
	}
	s.stop()
}
