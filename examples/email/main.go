// Command email is an MCP server with one tool that sends an e-mail. A mail server
// cannot be asked later whether it took a message: where its last reply is lost, the
// operation stays unknown until a person looks and says what happened, with
// mcpreplay resolve.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/mail"
	"net/smtp"
	"net/textproto"
	"strings"

	"mcpreplay/guard"
	"mcpreplay/sqlite"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type Message struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
	Body    string `json:"body"`
}

type Sent struct {
	MessageID string `json:"messageId"`
}

type mailer struct{ server, from string }

// send talks to the mail server. Until the end of the message is sent nothing has
// happened, whatever goes wrong; after that, only the server's reply says.
func (m mailer) send(ctx context.Context, op *guard.Op, in Message) (Sent, error) {
	to, err := mail.ParseAddress(in.To)
	if err != nil || strings.ContainsAny(in.Subject, "\r\n") {
		return Sent{}, guard.NotApplied(errors.New("that is no address, or no subject"))
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", m.server)
	if err != nil {
		return Sent{}, guard.TryAgain(err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	host, _, _ := net.SplitHostPort(m.server)
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		return Sent{}, guard.TryAgain(err)
	}
	for _, step := range []func() error{
		func() error { return c.Mail(m.from) },
		func() error { return c.Rcpt(to.Address) },
	} {
		if err := step(); err != nil {
			return Sent{}, refused(err)
		}
	}
	w, err := c.Data()
	if err != nil {
		return Sent{}, refused(err)
	}
	// The operation is written into the message, so that a person can find it.
	id := op.IdempotencyKey() + "@mcpreplay.invalid"
	_, err = fmt.Fprintf(w, "From: <%s>\r\nTo: %s\r\nSubject: %s\r\nMessage-ID: <%s>\r\n\r\n%s\r\n", m.from, to, in.Subject, id, in.Body)
	if err != nil {
		return Sent{}, guard.TryAgain(err)
	}
	if err := w.Close(); err != nil { // the end of the message, and the reply to it
		if answer := new(textproto.Error); errors.As(err, &answer) {
			return Sent{}, refused(err)
		}
		return Sent{}, err
	}
	c.Quit()
	op.Effect(id)
	return Sent{MessageID: id}, nil
}

// refused is a reply of the mail server that says no: for now (4xx), or for good.
func refused(err error) error {
	if answer := new(textproto.Error); errors.As(err, &answer) && answer.Code >= 500 {
		return guard.NotApplied(err)
	}
	return guard.TryAgain(err)
}

func main() {
	ledger := flag.String("ledger", "email.db", "where operations are recorded")
	server := flag.String("smtp", "127.0.0.1:25", "the mail server")
	from := flag.String("from", "assistant@example.test", "who sends")
	flag.Parse()

	store, err := sqlite.Open(*ledger, &sqlite.Options{Backend: "email"})
	check(err)
	keys, err := guard.KeyFile(*ledger + ".keys")
	check(err)
	g, err := guard.New(store, &guard.Options{Keys: keys})
	check(err)
	s := mcp.NewServer(&mcp.Implementation{Name: "email", Version: "1"}, nil)
	guard.AddTool(g, s, &mcp.Tool{Name: "send_email", Description: "Sends an e-mail."}, guard.External(mailer{*server, *from}.send))
	g.Install(s)
	check(guard.RunStdio(context.Background(), s))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
