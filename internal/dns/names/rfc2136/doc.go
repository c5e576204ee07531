// Package rfc2136 reads and writes the zones of a DNS server, as bind9, Knot or Windows: zone transfers (AXFR, RFC 5936)
// and dynamic updates (RFC 2136), both signed (TSIG, RFC 8945).
//
//	Records ──AXFR──> server        the records, which the Client keeps
//	Apply ──UPDATE──> server        one message a name
//
// It promises:
//   - The message for a name says which records of the name the plan was made for. The server changes nothing if there are
//     others by now, so that two writers cannot undo each other's change.
//   - A record and the TXT record of its owner change together.
//   - With a key, the server must sign each message.
//   - A server costs at most MaxRecords records of memory, and Timeout a zone.
package rfc2136
