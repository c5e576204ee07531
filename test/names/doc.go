// Package names holds no code: its test runs ExternalDNS's own registry, plan and RFC 2136 provider against the zones that
// `fairway names sync` writes, and the other way round (make test-names).
package names
