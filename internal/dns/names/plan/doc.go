// Package plan decides which records a DNS server outside the cluster gets, loses and keeps. It is pure.
//
//	names.Entry ──> Wants ─┐
//	records of the server ─┼─> New ──> Plan ──> rfc2136, webhook
//	TXT records (owners) ──┘
//
// An owner is recorded in a TXT record next to each record, in ExternalDNS's format: Fairway and ExternalDNS read and
// write the same TXT records. The package promises:
//   - A record of another owner, or of nobody, is never changed or removed, and nothing is added to its name.
//   - A name is removed only if the cluster lists the kind of object that the name came from, and has at least one name.
//   - The policy upsert-only removes no name.
//   - Each change carries its reason. Equal inputs make an equal plan.
package plan
