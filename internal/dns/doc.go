// Package dns is the cluster's DNS server: CoreDNS as a library, with the plugins that clusters' Corefiles use.
//
//	ConfigMap fairway-dns, else coredns, else built in ──> Corefile
//	                                                          |
//	pod --53/udp,tcp--> loadbalance -> acl -> cache -> kubernetes -> loop -> forward --> upstream
//	                                                      |
//	                                       API server (services, slices, namespaces)
//
// New and Run encapsulate CoreDNS's process-wide state: the list of directives, the Corefile loader, and the standard
// logger. So a process can run one Server at a time. It should run only one in its life, because CoreDNS opens the
// metrics port only once. Decision 69 says what this package adds to CoreDNS, and why.
//
// Promises:
//   - Without a Corefile the server starts anywhere, even if resolv.conf names no server, or this server itself.
//   - A Corefile that cannot be served causes an error of one line, and does not replace the served one.
//   - Failed questions make one line a minute for each reason.
//   - When Run returns, the sockets are closed and the goroutines have ended. CoreDNS's loop probe and the keepers of
//     idle upstream connections end some seconds later.
package dns
