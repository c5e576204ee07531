// Package loadbalancer reads the objects that give addresses to Services of type LoadBalancer and announce them, and
// writes the statuses of these objects. The decisions are in internal/loadbalancer.
//
//	controller  Addresses, or ServiceLB    ─→ statuses of Services and IPAddressPools, a ConfigurationState
//	speaker     Speaker, BGP               ─→ ServiceL2Statuses, ServiceBGPStatuses, a ConfigurationState, the list of voters
//	commands    Announced, Drain           ─→ a report of all addresses; the label that excludes a node
//	two nodes   LeaseVote                  ─→ a Lease, the third vote
//
// The objects of metallb.io have MetalLB's names and versions, and count in one namespace only.
//
// The kinds of each consumer:
//
//	consumer      waits for                        optional
//	Addresses     services, endpointslices, nodes, namespaces, ipaddresspools
//	                                               servicecidrs
//	ServiceLB     services, endpointslices, nodes
//	Announcements ipaddresspools, l2advertisements, bgpadvertisements, bgppeers, bfdprofiles, communities
//	Speaker       services, endpointslices, nodes, configmaps, ipaddresspools, l2advertisements
//	                                               bgpadvertisements, bgppeers
//	BGP           services, endpointslices, nodes, ipaddresspools, bgpadvertisements, bgppeers, bfdprofiles, communities
//	                                               secrets
package loadbalancer
