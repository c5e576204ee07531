// Package obstacles finds firewalls of other programs that drop the packets of pods and Services.
//
//	nft list chains ─→ base chains at forward: policy or last rule drop ─┐
//	nft -j list table ─→ the rules of these chains ──────────────────┼─→ log, event, metric, status
//	podCIDRs ────────────────────────────────────────────────────────┘
//
// Docker sets that policy. An accept in another table cannot overrule a drop, so the package only reports the chain and
// how to change it. A chain whose rules accept all packets from and to the pods is no obstacle. Chains of
// iptables-legacy are not visible here.
package obstacles
