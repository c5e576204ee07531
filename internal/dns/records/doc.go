// Package records says which records the cluster's DNS has for a name, and why. It is the slow and obvious reference of
// the server, which is CoreDNS, and it imports the standard library only.
//
//	Cluster, Question ─▶ Resolve ─▶ []Record, Why
//
// The rules are those of Kubernetes' DNS specification, version 1.1.0, with CoreDNS's choices where it leaves some. A test
// compares both with random clusters and questions. Not part of the rules: the search path, which is the resolver's, the
// names outside the cluster, the zone's own records (SOA, NS), and what a Corefile changes.
package records
