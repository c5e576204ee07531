package nftables

import "github.com/fairway-net/fairway/internal/datapath/nftset"

// The set names of releases up to 16d7bce, so that their elements are taken over: the
// verdicts, the affinity IDs and with them the clients. Their load-balancing chains are
// not taken over: they are written again under the new names.
const formerAffinity nftset.Set = "affinity"

const (
	formerDispatchMap     = "ways"
	formerAffinityUpdates = "learners"
)

func renamed() []nftset.Rename {
	all := map[nftset.Set]nftset.Set{formerAffinity: nftset.Set(affinityClients)}
	for former, is := range map[nftset.Set]set{
		"services": frontends, "inside": frontendsInternal, "outside": frontendsExternal,
		"nodeport": nodeports, "nodeport-inside": nodeportsInternal, "nodeport-outside": nodeportsExternal,
		"guarded": sourceRestricted, "sources": sourceRanges, "reserved": clusterIPs,
		"sticky": affinityIDs, "sticky-outside": affinityIDsExternal,
		"nodeport-sticky": affinityIDsNodeports, "nodeport-sticky-outside": affinityIDsNodeportsExternal,
	} {
		all[former] = nftset.Set(is)
	}
	return nftset.RenamedSets(all)
}
