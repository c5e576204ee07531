package gateway

import (
	"bytes"
	"strings"
)

// Normalise returns the one form in which a request's path is matched and forwarded. raw is the path as the client sent
// it, without the query. ok is false if the path must be refused, because servers do not agree on its meaning: an encoded
// slash, backslash or NUL, an invalid escape, or a byte that a path cannot have.
//
//	/a/%2e%2e/b ─→ /b      //a ─→ /a      /%7euser ─→ /~user      /a%c3%a9 ─→ /a%C3%A9      /a%2Fb ─→ refused
func Normalise(raw string) (path string, ok bool) {
	if raw == "" || raw[0] != '/' {
		return "", false
	}
	if simple(raw) {
		return raw, true
	}
	decoded, ok := unescape(raw)
	if !ok {
		return "", false
	}
	return removeDots(decoded), true
}

// simple reports whether a path is in its form already, which most are.
func simple(path string) bool {
	for i := 0; i < len(path); i++ {
		switch b := path[i]; {
		case b == '%' || !pathByte[b]:
			return false
		case b == '/' && i+1 < len(path) && (path[i+1] == '/' || path[i+1] == '.'):
			return false
		}
	}
	return true
}

// pathByte says which bytes a path has without an escape: pchar of RFC 3986 and the slash.
var pathByte = func() (is [256]bool) {
	for b := range is {
		is[b] = unreserved(byte(b)) || strings.IndexByte("!$&'()*+,;=:@/", byte(b)) >= 0
	}
	return is
}()

func unreserved(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '.' || b == '_' || b == '~'
}

// unescape decodes what needs no escape and writes other escapes in upper case.
func unescape(raw string) (string, bool) {
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	out.Grow(len(raw))
	for i := 0; i < len(raw); i++ {
		b := raw[i]
		if b != '%' {
			if !pathByte[b] {
				return "", false
			}
			out.WriteByte(b)
			continue
		}
		if i+2 >= len(raw) {
			return "", false
		}
		high, low := unhex(raw[i+1]), unhex(raw[i+2])
		if high < 0 || low < 0 {
			return "", false
		}
		i += 2
		switch b := byte(high<<4 | low); {
		case b == '/' || b == '\\' || b == 0:
			return "", false
		case unreserved(b):
			out.WriteByte(b)
		default:
			out.WriteByte('%')
			out.WriteByte(digits[high])
			out.WriteByte(digits[low])
		}
	}
	return out.String(), true
}

func unhex(b byte) int {
	switch {
	case b >= '0' && b <= '9':
		return int(b - '0')
	case b >= 'a' && b <= 'f':
		return int(b-'a') + 10
	case b >= 'A' && b <= 'F':
		return int(b-'A') + 10
	}
	return -1
}

// removeDots merges slashes, and removes the elements . and .. with what they lead out of (RFC 3986, 5.2.4). A path does
// not lead above its root.
func removeDots(path string) string {
	out := make([]byte, 0, len(path))
	for i := 0; i < len(path); {
		for i < len(path) && path[i] == '/' {
			i++
		}
		end := i
		for end < len(path) && path[end] != '/' {
			end++
		}
		switch element := path[i:end]; element {
		case "", ".", "..":
			if element == ".." {
				out = out[:max(0, bytes.LastIndexByte(out, '/'))]
			}
			if end == len(path) { // a directory
				out = append(out, '/')
			}
		default:
			out = append(append(out, '/'), element...)
		}
		i = end
	}
	return string(out)
}

// normalPattern returns a path of a route in the form of Normalise. Bytes that need an escape get one. A path that
// Normalise refuses stays as it is, and no request has it.
func normalPattern(path string) string {
	const digits = "0123456789ABCDEF"
	var escaped strings.Builder
	for i := range len(path) {
		if b := path[i]; pathByte[b] || b == '%' {
			escaped.WriteByte(b)
		} else {
			escaped.Write([]byte{'%', digits[b>>4], digits[b&15]})
		}
	}
	if normal, ok := Normalise(escaped.String()); ok {
		return normal
	}
	return path
}
