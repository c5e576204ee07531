package iptables

// formerMark is what releases up to d2dfa2d called the chain that marks what is of no pod. A full Sync
// writes the rules that lead to it again, and removes it, in one transaction.
const formerMark = "KUBE-MARK-FAR"
