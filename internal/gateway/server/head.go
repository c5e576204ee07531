package server

import (
	"bytes"
	"errors"

	"github.com/fairway-net/fairway/internal/gateway"
)

// A head is what the server must know of a request's head before it believes a parser.
type head struct {
	length  int64 // Content-Length; -1: none
	chunked bool
	hop     bool // there is a header that is for this connection only
	upgrade bool
	expect  bool // Expect: 100-continue
	claims  bool // there is a header that only a trusted proxy may send
}

// Refusals of inspect. Each ends the connection, because nobody knows where the next request begins.
var (
	errBareLF     = errors.New("a line ends without CR")
	errBareCR     = errors.New("a CR is not the end of a line")
	errFold       = errors.New("a header is continued in the next line")
	errName       = errors.New("a header's name has a character that is not allowed")
	errValue      = errors.New("a header's value has a control character")
	errLength     = errors.New("the Content-Length is not one number")
	errTransfer   = errors.New("the Transfer-Encoding is not chunked alone")
	errBoth       = errors.New("there are both Content-Length and Transfer-Encoding")
	errHosts      = errors.New("there is not exactly one Host")
	errLine       = errors.New("the request line has not three parts")
	errVersion    = errors.New("the version is neither HTTP/1.1 nor HTTP/1.0")
	errExpect     = errors.New("the expectation is not 100-continue")
	errHeadLength = errors.New("the head is too long")
)

// inspect checks the head of a request, with its final empty line. It accepts less than parsers do: a head that two
// programs could read in two ways is an error.
func inspect(b []byte) (h head, err error) {
	h.length = -1
	end := bytes.IndexByte(b, '\n')
	if end < 1 || b[end-1] != '\r' {
		return h, errBareLF
	}
	old, err := requestLine(b[:end-1])
	if err != nil {
		return h, err
	}
	hosts, lengths := 0, 0
	for b = b[end+1:]; ; b = b[end+1:] {
		end = bytes.IndexByte(b, '\n')
		if end < 1 || b[end-1] != '\r' {
			return h, errBareLF
		}
		line := b[:end-1]
		if len(line) == 0 {
			break
		}
		colon := 0
		for colon < len(line) && gateway.IsToken(line[colon]) {
			colon++
		}
		switch {
		case line[0] == ' ' || line[0] == '\t':
			return h, errFold
		case colon == 0 || colon == len(line) || line[colon] != ':':
			return h, errName
		}
		value := line[colon+1:]
		if err := checkValue(value); err != nil {
			return h, err
		}
		if err := h.note(line[:colon], bytes.Trim(value, " \t"), &hosts, &lengths); err != nil {
			return h, err
		}
	}
	switch {
	case h.chunked && lengths > 0:
		return h, errBoth
	case h.chunked && old:
		return h, errTransfer
	case hosts > 1 || hosts == 0 && !old:
		return h, errHosts
	}
	return h, nil
}

// requestLine checks the first line. old: HTTP/1.0.
func requestLine(line []byte) (old bool, err error) {
	method := bytes.IndexByte(line, ' ')
	version := bytes.LastIndexByte(line, ' ')
	if method < 1 || version <= method+1 || version > len(line)-2 {
		return false, errLine
	}
	for _, c := range line[:method] {
		if !gateway.IsToken(c) {
			return false, errLine
		}
	}
	for _, c := range line[method+1 : version] {
		if c <= ' ' || c == 0x7f {
			return false, errLine
		}
	}
	switch string(line[version+1:]) {
	case "HTTP/1.1":
		return false, nil
	case "HTTP/1.0":
		return true, nil
	}
	return false, errVersion
}

func checkValue(value []byte) error {
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			if c == '\r' {
				return errBareCR
			}
			return errValue
		}
	}
	return nil
}

// note reads the headers that decide about framing.
func (h *head) note(name, value []byte, hosts, lengths *int) error {
	switch name[0] | 0x20 {
	case 'c':
		if is(name, "content-length") {
			*lengths++
			n, ok := number(value)
			if !ok || *lengths > 1 {
				return errLength
			}
			h.length = n
		}
		h.hop = h.hop || is(name, "connection")
	case 't':
		switch {
		case is(name, "transfer-encoding"):
			if h.chunked || !is(value, "chunked") {
				return errTransfer
			}
			h.chunked = true
		case is(name, "te"), is(name, "trailer"):
			h.hop = true
		}
	case 'h':
		if is(name, "host") {
			*hosts++
		}
	case 'u':
		if is(name, "upgrade") {
			h.upgrade, h.hop = true, true
		}
	case 'e':
		if is(name, "expect") {
			if !is(value, "100-continue") {
				return errExpect
			}
			h.expect = true
		}
	case 'k', 'p':
		h.hop = h.hop || is(name, "keep-alive") || is(name, "proxy-connection") || is(name, "proxy-authorization")
	case 'x', 'f':
		h.claims = h.claims || len(name) >= 11 && is(name[:11], "x-forwarded") || is(name, "forwarded") || is(name, "x-real-ip") ||
			len(name) >= 11 && is(name[:11], "x-original-") || is(name, "x-rewrite-url")
	}
	// Some backends read "_" as "-", so such a name could pass for a header that the gateway sets.
	if bytes.IndexByte(name, '_') >= 0 {
		h.claims = true
	}
	return nil
}

// is reports whether b is text, in any case. text is in lower case.
func is(b []byte, text string) bool {
	if len(b) != len(text) {
		return false
	}
	for i := range b {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != text[i] {
			return false
		}
	}
	return true
}

// number reads digits, and nothing else.
func number(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}
