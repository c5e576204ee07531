// Package conformance is the suite that every datapath must pass: the words of a Table
// held against a real kernel with real packets.
//
//	scenarios (internal/service/testdata) ─┐
//	random tables ─────────────────────────┴─ Sync ─→ kernel of node-1 ←─ packets from
//	                                  │                 │                everywhere
//	                                  │                 └─ who answered, whom did it see,
//	                                  │                    refused or dropped?
//	                                  └─ scenario.Predict: the slow meaning of the table
//
// It hides the network (internal/testnet) and promises to look at all that package
// datapath promises: every packet of every scenario over TCP, UDP, IPv4 and IPv6;
// Dump, idempotence, adoption by a new process, Cleanup; connections that outlive
// changes and restarts; changes under load; writes that fail.
//
// The suite itself is held by broken datapaths that it must reject (slow_test.go).
//
// SCTP frontends are compared by Dump alone: kernels without SCTP sockets are common.
package conformance
