// Package ebpf gives TCP sockets their endpoint when they connect, and leaves every other packet to nf_tables.
//
//	*service.Table ─ Sync ─┬─→ nftables ──────────→ table inet fairway-ebpf ←── all other packets
//	                       └─→ fronts, slots ─────→ connect4/6 ←── connect(2) of pods and of the node
//	                                                   ├─→ socks ←── getpeername(2), close(2)
//	*service.Table ←─ Facts ←─ Ejected ←─ endpoints ←──┴── connections that fail
//
// A translated socket is a plain connection to a pod: its packets cost nothing. The programs translate a socket only if
// the result equals nf_tables' result. Package nftables serves everything else, as in mode nftables. So a missing
// program, kernel feature or right costs speed, and never service.
//
// In addition to the contract of package datapath the package promises:
//   - A socket never gets an endpoint that nf_tables does not have. A Sync withdraws a changed frontend from the maps,
//     lets package nftables write its rules, and then publishes the frontend again.
//   - getpeername(2) returns the Service's address for as long as the socket lives, also after a restart of the agent.
//   - The map endpoints has the open translated sockets of each endpoint, exactly. A restart, a change of lists, a switch
//     of the mode and a killed client change no count wrongly.
//   - An endpoint that fails connections is passed by for a while, if its list can spare it.
//   - Programs and maps are pinned in a bpffs, and survive a restart of the agent. Without an agent they choose endpoints
//     for 30 seconds, and then nf_tables serves new connections.
//
// Left to nf_tables are: protocols other than TCP, NodePorts, frontends without endpoints, with source ranges, with
// affinity or with a hash of the client's address, sockets bound to an address, a port, a device or a mark, sockets of the kernel,
// network namespaces that are not pods, and pods with a mesh's sidecar.
package ebpf
