// Package conformance is the suite that every datapath must pass. It compares the meaning of a Table with the way of real
// packets through a real kernel.
//
//	scenarios (internal/service/testdata) ─┐
//	random tables ─────────────────────────┴─ Sync ─→ kernel of node-1 ←─ packets from
//	                                  │                 │                everywhere
//	                                  │                 └─ which endpoint answered, which source it saw,
//	                                  │                    refused or dropped?
//	                                  └─ scenario.Predict: the slow reference of the table's meaning
//
// The suite checks every promise of package datapath:
//   - every packet of every scenario, over TCP, UDP, SCTP, IPv4 and IPv6
//   - Explain, idempotence, adoption by a new process, Cleanup
//   - connections that survive changes and restarts
//   - changes under load
//   - writes that fail
//
// Tests of the suite itself run it on broken datapaths, which it must reject (slow_test.go).
//
// The suite sends SCTP handshakes by raw sockets, because few kernels have SCTP sockets. If conntrack does not know SCTP,
// frontends of SCTP are only compared by Adopt, and part sctp says so.
package conformance
