package server

import (
	"net/netip"
	"strconv"
	"strings"
)

// canonicalHost returns the host of a Host header in lower case, without port and without a final dot. ok is false if the
// header is no host.
func canonicalHost(authority string) (host string, ok bool) {
	host = authority
	if strings.HasPrefix(host, "[") {
		end := strings.IndexByte(host, ']')
		if end < 0 || !validPort(host[end+1:]) {
			return "", false
		}
		a, err := netip.ParseAddr(host[1:end])
		return strings.ToLower(host[:end+1]), err == nil && a.Is6() && a.Zone() == ""
	}
	if i := strings.IndexByte(host, ':'); i >= 0 {
		if !validPort(host[i:]) {
			return "", false
		}
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	if host == "" || len(host) > 253 {
		return "", false
	}
	upper := false
	for i := range len(host) {
		switch c := host[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', c == '.' && i > 0 && host[i-1] != '.':
		case 'A' <= c && c <= 'Z':
			upper = true
		default:
			return "", false
		}
	}
	if upper {
		host = strings.ToLower(host)
	}
	return host, true
}

// validPort checks ":8080", or nothing.
func validPort(s string) bool {
	if s == "" || s == ":" {
		return s == ""
	}
	_, err := strconv.ParseUint(s[1:], 10, 16)
	return s[0] == ':' && err == nil && s[1] != '+'
}

// isClaim reports whether a header says something that only a trusted proxy may say. Backends that read "_" as "-" would
// believe the name with "_" as well, so that form is never forwarded.
func isClaim(name string, trusted bool) bool {
	plain := strings.ReplaceAll(strings.ToLower(name), "_", "-")
	if trusted && !strings.Contains(name, "_") {
		return false
	}
	return strings.HasPrefix(plain, "x-forwarded-") || plain == "forwarded" || plain == "x-real-ip" ||
		strings.HasPrefix(plain, "x-original-") || plain == "x-rewrite-url"
}

func portText(p uint16) string { return strconv.Itoa(int(p)) }

func addrText(a netip.Addr) string { return a.String() }

// reason4xx is the label of a refusal's code.
func reason4xx(code int) string { return strconv.Itoa(code) }
