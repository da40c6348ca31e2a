package postgres

import (
	"fmt"
	"strings"
)

// refused are the statements that an effect may not send, by their first word:
// what ends the transaction, what makes points in it that the handle does not know
// of, and what stays on the connection, which is somebody else's next. A statement
// of these kinds cannot be inside another one: the server refuses them in functions
// within a transaction. It also refuses several statements in one text, because the
// handle uses the extended protocol.
var refused = map[string]string{
	"BEGIN": "", "START": "", "COMMIT": "", "END": "", "ROLLBACK": "", "ABORT": "",
	"SAVEPOINT": "use Begin of the handle", "RELEASE": "use Begin of the handle",
	"PREPARE": "", "EXECUTE": "", "DEALLOCATE": "",
	"SET": "use SET LOCAL or SET CONSTRAINTS", "RESET": "", "DISCARD": "", "LOAD": "",
	"LISTEN": "", "UNLISTEN": "", "DECLARE": "", "COPY": "",
}

// permit fails for a statement that an effect may not send.
func permit(sql string) error {
	word, rest := firstWord(sql)
	instead, is := refused[word]
	if !is {
		return nil
	}
	if word == "SET" {
		if second, _ := firstWord(rest); second == "LOCAL" || second == "CONSTRAINTS" {
			return nil
		}
	}
	if instead != "" {
		instead = ": " + instead
	}
	return fmt.Errorf("%w: an effect may not use %s%s", errNotYours, word, instead)
}

// firstWord is the first word of a text of SQL in capitals, and what follows it.
// Before it stands what the server passes over: white space, comments, empty
// statements.
func firstWord(sql string) (word, rest string) {
	for {
		sql = strings.TrimLeft(sql, " \t\n\r\f\v;(")
		switch {
		case strings.HasPrefix(sql, "--"):
			end := strings.IndexAny(sql, "\n\r")
			if end < 0 {
				return "", ""
			}
			sql = sql[end:]
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql)
		default:
			end := strings.IndexFunc(sql, func(c rune) bool { return c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') })
			if end < 0 {
				end = len(sql)
			}
			return strings.ToUpper(sql[:end]), sql[end:]
		}
	}
}

// afterComment is what follows a comment, inside which there may be others.
func afterComment(sql string) string {
	depth := 0
	for i := 0; i+1 < len(sql); {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i += 2
		case "*/":
			depth--
			i += 2
		default:
			i++
		}
		if depth == 0 {
			return sql[i:]
		}
	}
	return ""
}
