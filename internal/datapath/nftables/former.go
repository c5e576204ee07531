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

// renamedLate are the renamed sets to which packets add elements.
func renamedLate() []nftset.Rename {
	return nftset.RenamedSets(map[nftset.Set]nftset.Set{formerAffinity: affinityClients})
}

func renamed() []nftset.Rename {
	all := map[nftset.Set]nftset.Set{formerAffinity: affinityClients}
	for former, is := range map[nftset.Set]nftset.Set{
		"services": nftset.Frontends, "inside": frontendsInternal, "outside": nftset.FrontendsExternal,
		"nodeport": nftset.Nodeports, "nodeport-inside": nodeportsInternal, "nodeport-outside": nftset.NodeportsExternal,
		"guarded": nftset.SourceRestricted, "sources": nftset.SourceRanges, "reserved": nftset.ClusterIPs,
		"sticky": affinityIDs, "sticky-outside": affinityIDsExternal,
		"nodeport-sticky": affinityIDsNodeports, "nodeport-sticky-outside": affinityIDsNodeportsExternal,
	} {
		all[nftset.Set(former)] = is
	}
	return nftset.RenamedSets(all)
}
