// Package conformance is the suite that every datapath must pass: it compares what
// a Table means with what a real kernel does to real packets.
//
//	scenarios (internal/service/testdata) ─┐
//	random tables ─────────────────────────┴─ Sync ─→ kernel of node-1 ←─ packets from
//	                                  │                 │                everywhere
//	                                  │                 └─ which endpoint answered, which source it saw,
//	                                  │                    refused or dropped?
//	                                  └─ scenario.Predict: the slow reference of what the table means
//
// It hides the network (internal/testing/testnet) and promises to look at all that package
// datapath promises: every packet of every scenario over TCP, UDP, SCTP, IPv4 and IPv6;
// Dump, idempotence, adoption by a new process, Cleanup; connections that outlive
// changes and restarts; changes under load; writes that fail.
//
// The suite itself is held by broken datapaths that it must reject (slow_test.go).
//
// Packets of SCTP are handshakes by raw sockets, for few kernels have sockets of SCTP; where connection
// tracking does not know it, either, its frontends are compared by Adopt alone, and part sctp says so.
package conformance
