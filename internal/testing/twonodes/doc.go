// Package twonodes builds the smallest cluster in which a packet crosses the network: a client pod on node-1, an endpoint
// on node-2, and one Service in a datapath on both nodes. Tests of probes use it.
//
//	client 10.244.1.100 ─ node-1 ─┐
//	                              ├─ fabric ─ outside 198.51.100.10
//	server 10.244.2.6:8080 ─ node-2 ─┘          Service shop/db: 10.96.0.1:80, NodePort 30080
//
// It promises what package testnet promises: nothing leaves the namespaces, and nothing stays.
package twonodes
