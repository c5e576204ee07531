package nftables

import (
	"github.com/fairway-net/fairway/internal/datapath/nftset"
)

// formerClients is the map of clients before they had buckets.
const formerClients nftset.Set = "affinity-clients"

// The set names of releases up to 16d7bce, so that their elements are taken over: the
// verdicts, the affinity IDs and with them the clients. Their load-balancing chains are
// not taken over: they are written again under the new names.
const formerAffinity nftset.Set = "affinity"

const (
	formerDispatchMap     = "ways"
	formerAffinityUpdates = "learners"
)

// renamedLate are the renamed sets to which packets add elements.
func renamedLate() (all []nftset.Rename) {
	for _, was := range []nftset.Set{formerClients, formerAffinity} {
		for _, is4 := range nftset.Families {
			all = append(all, nftset.Rename{Former: was.Name(is4), Name: affinityBuckets.Name(is4), Key: nftset.BucketKey[affinityID]})
		}
	}
	return all
}

func renamed() []nftset.Rename {
	all := map[nftset.Set]nftset.Set{}
	for former, is := range map[nftset.Set]nftset.Set{
		"services": nftset.Frontends, "inside": frontendsInternal, "outside": nftset.FrontendsExternal,
		"nodeport": nftset.Nodeports, "nodeport-inside": nodeportsInternal, "nodeport-outside": nftset.NodeportsExternal,
		"guarded": nftset.SourceRestricted, "sources": nftset.SourceRanges, "reserved": nftset.ClusterIPs,
		"sticky": affinityIDs, "sticky-outside": affinityIDsExternal,
		"nodeport-sticky": affinityIDsNodeports, "nodeport-sticky-outside": affinityIDsNodeportsExternal,
	} {
		all[nftset.Set(former)] = is
	}
	return append(nftset.RenamedSets(all), renamedLate()...)
}
