// Package scenario reads scenarios: the format in which tests describe the behaviour of Services. The input is Kubernetes
// YAML, and the expected output is a table and the way of packets. The tests of the policy, of the order of events and of
// every datapath read these files.
//
//	file.txtar ─ Load ─→ Scenario ─┬─ Table ─────────→ golden text (internal/service)
//	                               ├─ Orders, State ─→ the same Table, whatever the order
//	                               └─ Packets ─┬─ Predict(Table) ─→ agree? (internal/service)
//	                                           └─ real packets ───→ agree? (datapath/conformance)
//
// A misspelled word, an unknown field or a packet from an unknown place is an error, because a test that is silently left
// out proves nothing.
//
// # The format
//
// A scenario is a txtar archive. The archive's comment has one directive a line. "#" starts a comment:
//
//	node node-1 zone=a          the node that the table is for; "node node-1" if it has no zone
//	detect 10.244.0.0/16 …      Settings.Pods; without it no client counts as a pod
//	pod-interfaces veth* …      Settings.PodInterfaces: names of this node's links; the
//	                            tests' pods have veth1, veth2 …
//	nodeports primary           Settings.NodePorts: the node's main addresses (default),
//	nodeports all               all but loopback,
//	nodeports 192.0.2.0/24 …    or those in the given ranges
//	services 10.96.0.0/12 …     Settings.ServiceCIDRs; without it there are none
//	api-servers 172.18.0.2 …    Node.APIServers; without it there are none
//	masquerade-all              Node.MasqueradeAll
//	outside 192.0.2.0/24 …      Node.Outside, and the addresses that it balances
//	refuse-external-ips         Node.RefuseExternalIPs
//	balance rr                  Node.Balance
//	unsupported rr sh …         Node.Unsupported
//	dead node-2 …               Facts.Dead
//	ejected 10s 10.244.1.5:80 … Node.Ejection, and Facts.Ejected
//	hostport P A,A I:N/T -> M   pod P of this node, with addresses A, has port N, protocol T, on
//	                            the node's address I, which may be missing; it leads to M
//	packet from=F to=T -> W     a packet and what becomes of it
//
// F is the client: the address of an endpoint, or a place. Places are pod and pod-remote (a pod on the node and on the
// other node that is no endpoint), node (the node itself), peer (the other node) and outside. World has their addresses.
//
// T is ADDRESS:PORT/PROTO, with proto tcp, udp or sctp. The address is a literal, or
// the node's name for its IPv4 and [name] for its IPv6 address.
//
// W is drop, reject, or the endpoints that may answer, each of which does:
//
//	-> 10.244.2.5:8080 source=client
//	-> one-of 10.244.1.5:8080(node) 10.244.2.5:8080 source=client
//
// source is the address that an endpoint sees: the client's own or, after masquerading, the node's. A source in brackets
// is the source for one endpoint.
//
// The files are
//
//	objects.yaml   Services and EndpointSlices, and Pods where their weights matter
//	table          golden: Table.String
//	problems       golden, optional: Entry.Problems, a line each
//	explain        golden, where the file is there: command/inspect writes the service.Report of every Service
//
// "go test -update" in internal/service writes the golden files.
package scenario
