// Package dns is the cluster's DNS server: CoreDNS, linked in as a library with
// the plugins that Corefiles of clusters use and no others.
//
//	ConfigMap fairway-dns, else coredns, else built in ──> Corefile
//	                                                          |
//	pod --53/udp,tcp--> loadbalance -> acl -> cache -> kubernetes -> loop -> forward --> upstream
//	                                                      |
//	                                       API server (services, slices, namespaces)
//
// It hides CoreDNS's process-wide machinery (the directive list, the Corefile
// loader, the standard logger) behind New and Run. Because that machinery is
// process-wide, one Server can run at a time in a process, and a process should
// run one in its life: CoreDNS opens the port for metrics only once.
//
// It promises: without a Corefile it comes up anywhere, also where resolv.conf
// names no server or names this server itself; a Corefile that cannot be served is
// refused with one line, and does not replace one that is served; questions that fail for one
// reason are one line a minute; when Run returns, the sockets are closed and its
// goroutines have ended (of CoreDNS's own, the loop plugin's probe and the keepers
// of idle upstream connections end some seconds later).
package dns
