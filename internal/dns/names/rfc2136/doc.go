// Package rfc2136 reads and writes the zones of a DNS server, as bind9, Knot or Windows: zone transfers (AXFR, RFC 5936)
// and dynamic updates (RFC 2136), both signed (TSIG, RFC 8945).
//
//	Records ──SOA, AXFR──> server   the records, which the Client keeps
//	Apply ──UPDATE──> server        many names a message
//
// It promises:
//   - A message says for which records of each name the plan was made. The server changes nothing of a name if it has other
//     records by now, so that two writers cannot undo each other's change.
//   - A record and the TXT record of its owner change together.
//   - With a key, the server must sign each message.
//   - A server costs at most MaxRecords records of memory, and Timeout a zone.
package rfc2136
