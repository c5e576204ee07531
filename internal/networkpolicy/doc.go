// Package policy decides which packets NetworkPolicies allow. It is pure: objects in, a table
// with reasons out; it knows no kernel and no API server.
//
//	Policy ─┐                       ┌ Classes   address of a pod : class
//	Pod    ─┼─ Compiler ─→ Table ───┼ Blocks    every other range : class
//	Namespace, Sandbox              ├ Isolated  local pod, by direction
//	                                └ Grants    local pod . class . protocol . ports : rule
//	packet ─ Lookup(Table) ─→ Decision: allowed or not, by which rule
//
// Two addresses are of one class if the same peers of the policies that matter on this node
// include them, and the same numbers stand behind the port names that these policies use. So
// a pod that appears is one element, and what a policy grants is one element for each class.
// Policies matter on a node if they select a pod there.
//
// It hides selectors, blocks and their exceptions, port names and the union of policies. It
// promises that the table of a Compiler that was told changes is that of a new one, that
// Changes names no element that stayed as it was, and that Evaluate, which reads the objects
// without any table, says the same as Lookup: tests hold both.
package networkpolicy
