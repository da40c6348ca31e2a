package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// statement is one of the ledger's own statements. They are sent by the extended
// protocol without a name, and several at once: nothing stays on the connection,
// which may be another one behind a pooler as soon as the transaction has ended,
// and nothing of how the application's pool is configured has a part in it.
type statement struct {
	sql  string
	args []any
}

func do(sql string, args ...any) statement { return statement{sql, args} }

// answer is what a statement brought.
type answer struct {
	rows [][][]byte // binary
	tag  pgconn.CommandTag
}

// exchange sends statements in one go and reads what they bring: one answer for
// each that was run. After the first that fails the server runs no other. notices
// are what it said beside. An error that is not a *pgconn.PgError left nobody
// knows where in the conversation: the connection is of no use any more.
func exchange(ctx context.Context, pg *pgconn.PgConn, statements ...statement) (answers []answer, notices []*pgproto3.NoticeResponse, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	f := pg.Frontend()
	for _, st := range statements {
		if err := send(f, st); err != nil {
			return nil, nil, err
		}
	}
	f.SendSync(&pgproto3.Sync{})
	if deadline, ok := ctx.Deadline(); ok {
		pg.Conn().SetWriteDeadline(deadline)
		defer pg.Conn().SetWriteDeadline(time.Time{})
	}
	if err := f.Flush(); err != nil {
		return nil, nil, err
	}
	var rows [][][]byte
	for {
		msg, e := pg.ReceiveMessage(ctx)
		if e != nil {
			return answers, notices, e
		}
		switch msg := msg.(type) {
		case *pgproto3.DataRow:
			row := make([][]byte, len(msg.Values))
			for i, v := range msg.Values {
				if v != nil { // it lies in the connection's buffer
					row[i] = append([]byte{}, v...)
				}
			}
			rows = append(rows, row)
		case *pgproto3.CommandComplete:
			answers = append(answers, answer{rows, pgconn.NewCommandTag(string(msg.CommandTag))})
			rows = nil
		case *pgproto3.NoticeResponse:
			copied := *msg
			notices = append(notices, &copied)
		case *pgproto3.ErrorResponse:
			if err == nil {
				err = pgconn.ErrorResponseToPgError(msg)
			}
		case *pgproto3.ReadyForQuery:
			return answers, notices, err
		}
	}
}

// The types of the ledger's columns.
const (
	oidBool  = 16
	oidBytes = 17
	oidInt   = 20
	oidText  = 25
)

var binaryResults = []int16{1}

func send(f *pgproto3.Frontend, st statement) error {
	parse := pgproto3.Parse{Query: st.sql}
	bind := pgproto3.Bind{ResultFormatCodes: binaryResults}
	for _, arg := range st.args {
		oid, format, value, err := encode(arg)
		if err != nil {
			return err
		}
		parse.ParameterOIDs = append(parse.ParameterOIDs, oid)
		bind.ParameterFormatCodes = append(bind.ParameterFormatCodes, format)
		bind.Parameters = append(bind.Parameters, value)
	}
	f.SendParse(&parse)
	f.SendBind(&bind)
	f.SendExecute(&pgproto3.Execute{})
	return nil
}

// encode is how an argument travels; a nil value is NULL.
func encode(arg any) (oid uint32, format int16, value []byte, err error) {
	switch arg := arg.(type) {
	case string:
		return oidText, 0, append([]byte{}, arg...), nil
	case int64:
		return oidInt, 0, strconv.AppendInt(nil, arg, 10), nil
	case bool:
		return oidBool, 0, strconv.AppendBool(nil, arg), nil
	case *bool:
		if arg == nil {
			return oidBool, 0, nil, nil
		}
		return encode(*arg)
	case *int64:
		if arg == nil {
			return oidInt, 0, nil, nil
		}
		return encode(*arg)
	case []byte:
		return oidBytes, 1, arg, nil
	case time.Time:
		if arg.IsZero() {
			return oidInt, 0, nil, nil
		}
		return encode(arg.UnixMicro())
	}
	return 0, 0, nil, fmt.Errorf("no column is a %T", arg)
}

// reader reads the columns of a row one after the other. What is not as the
// schema has it is kept as an error.
type reader struct {
	row [][]byte
	err error
}

func (r *reader) next(size int) []byte {
	if len(r.row) == 0 {
		r.fail("a column is missing")
		return nil
	}
	v := r.row[0]
	r.row = r.row[1:]
	if v != nil && size > 0 && len(v) != size {
		r.fail("a column has %d bytes, not %d", len(v), size)
		return nil
	}
	return v
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reader) bytes() []byte { return r.next(0) }
func (r *reader) text() string  { return string(r.next(0)) }

func (r *reader) int() int64 {
	if v := r.next(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (r *reader) bool() bool {
	v := r.next(1)
	return v != nil && v[0] != 0
}

func (r *reader) time() time.Time {
	if v := r.next(8); v != nil {
		return time.UnixMicro(int64(binary.BigEndian.Uint64(v))).UTC()
	}
	return time.Time{}
}

// storable reports whether PostgreSQL can keep s as a text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// clean makes of s what PostgreSQL can keep. An outcome must not be lost because
// what an upstream said about it is no text.
func clean(s string) string {
	if storable(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
