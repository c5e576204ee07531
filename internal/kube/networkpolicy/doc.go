// Package networkpolicy reads the objects of NetworkPolicies and ClusterNetworkPolicies from the API server, converts
// them to the model of internal/networkpolicy, and writes the conditions of ClusterNetworkPolicies.
//
//	kube.Store ─→ Policies (a subscription) ─→ networkpolicy.Cluster, networkpolicy.Dirty
//	          └─→ Statuses ─→ conditions of ClusterNetworkPolicies
//
// An invalid part of a policy never opens traffic that its author meant to close.
package networkpolicy
