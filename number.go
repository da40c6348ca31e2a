package mcpreplay

import (
	"bytes"
	"math"
	"strconv"
)

// maxExponent bounds the exponent that a normalised number may keep. It is far beyond binary64
// (308) and decimal128 (6176), and small enough that writing the number out is harmless.
const maxExponent = 9999

// maxZeros is how many zeros the canonical form writes out before it uses an exponent.
const maxZeros = 20

// numeral is a JSON number: the digits whole and frac, one after the other, times ten to the exp,
// the point being already counted in exp. The digits stay where they were read.
type numeral struct {
	text        []byte
	neg         bool
	whole, frac []byte
	exp         int64
	integer     bool // written without point and exponent
}

// scanNumeral reads the number at text[at]. It returns where the number ends or, if there is none,
// where the fault is. What follows a number is the caller's to check: 01 is 0, then 1.
func scanNumeral(text []byte, at int) (n numeral, end int, ok bool) {
	i := at
	if i < len(text) && text[i] == '-' {
		n.neg = true
		i++
	}
	n.whole = digits(text[i:])
	if len(n.whole) > 1 && n.whole[0] == '0' {
		n.whole = n.whole[:1]
	}
	if len(n.whole) == 0 {
		return n, i, false
	}
	i += len(n.whole)
	n.integer = true
	if i < len(text) && text[i] == '.' {
		n.integer = false
		n.frac = digits(text[i+1:])
		i += 1 + len(n.frac)
		if len(n.frac) == 0 {
			return n, i, false
		}
	}
	if i < len(text) && text[i]|0x20 == 'e' {
		n.integer = false
		i++
		minus := false
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			minus = text[i] == '-'
			i++
		}
		e := digits(text[i:])
		if len(e) == 0 {
			return n, i, false
		}
		i += len(e)
		n.exp = saturated(e)
		if minus {
			n.exp = -n.exp
		}
	}
	n.exp -= int64(len(n.frac))
	n.text = text[at:i]
	return n, i, true
}

func digits(text []byte) []byte {
	i := 0
	for i < len(text) && '0' <= text[i] && text[i] <= '9' {
		i++
	}
	return text[:i]
}

// saturated reads digits of any length. Beyond 2^60 the value stays where it is: no text is long
// enough for its digits to bring such an exponent back into bounds.
func saturated(digits []byte) int64 {
	var e int64
	for _, c := range digits {
		if e < 1<<60/10 {
			e = e*10 + int64(c-'0')
		} else {
			e = 1 << 60
		}
	}
	return e
}

// normal moves zeros at both ends of the digits into the exponent, so that equal numbers have
// equal digits and exponents. Zero has no digits, no sign and exponent 0.
func (n numeral) normal() numeral {
	frac := bytes.TrimRight(n.frac, "0")
	n.exp += int64(len(n.frac) - len(frac))
	n.frac = frac
	if len(frac) == 0 {
		whole := bytes.TrimRight(n.whole, "0")
		n.exp += int64(len(n.whole) - len(whole))
		n.whole = whole
	}
	n.whole = bytes.TrimLeft(n.whole, "0")
	if len(n.whole) == 0 {
		n.frac = bytes.TrimLeft(n.frac, "0")
	}
	if len(n.whole)+len(n.frac) == 0 {
		n.neg, n.exp = false, 0
	}
	return n
}

// append writes a normal numeral in the form [Canonical] documents.
func (n numeral) append(dst []byte) []byte {
	if len(n.whole)+len(n.frac) == 0 {
		return append(dst, '0')
	}
	if n.neg {
		dst = append(dst, '-')
	}
	dst = append(dst, n.whole...)
	dst = append(dst, n.frac...)
	if n.exp < 0 || n.exp > maxZeros {
		return strconv.AppendInt(append(dst, 'e'), n.exp, 10)
	}
	for range n.exp {
		dst = append(dst, '0')
	}
	return dst
}

// maxSafe is 2^53-1, up to which binary64 tells every integer from its neighbours.
const maxSafe = 1<<53 - 1

// safeInteger gives a number the meaning of contract v1. An integer literal is taken exactly; any
// other goes through binary64 first, so 1.00000000000000000001 is 1 and 1e-400 is 0.
func (n numeral) safeInteger() (int64, bool) {
	if n.integer {
		i, err := strconv.ParseInt(string(n.text), 10, 64)
		return i, err == nil && -maxSafe <= i && i <= maxSafe
	}
	f, err := strconv.ParseFloat(string(n.text), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > maxSafe {
		return 0, false
	}
	return int64(f), true
}
