// Package networkpolicy decides which packets NetworkPolicies and ClusterNetworkPolicies allow. It is pure: it turns
// objects into a table with reasons, and knows no kernel and no API server.
//
//	Policy ─┐                       ┌ Classes   address of a pod : class
//	Pod    ─┼─ Compiler ─→ Table ───┼ Ports     named port of a pod : class
//	Namespace, Sandbox              ├ Networks  range of ClusterNetworkPolicies : class
//	                                ├ Isolated  local pod, by direction
//	                                ├ Grants    local pod . class . protocol . ports : rule
//	                                ├ Views     local pod : the blocks of its namespace
//	                                └ Prefixes  view . prefix : class
//	packet     ─ Lookup(Table)    ─→ Decision: allowed or not, by which rule
//	connection ─ Explain(Cluster) ─→ Explanation: the same from the objects, with all reasons
//
// A policy matters on a node if it selects a pod there. Two pods have the same class if the same peers of these policies
// select both. So a new pod is one element of the table, and a policy's grant is one element for each class. Blocks of
// NetworkPolicies are in views, so that a namespace's blocks change no other namespace's classes.
//
// The package encapsulates selectors, blocks with exceptions, names of ports and the union of policies. Tests hold
// three promises:
//
//   - A Compiler that got changes has the same table as a new Compiler.
//   - Changes names only elements that differ.
//   - Evaluate, which reads the objects and no table, agrees with Lookup.
package networkpolicy
