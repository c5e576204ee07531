package iptables

import "github.com/fairway-net/fairway/internal/datapath/nftset"

// formerMark is what releases up to d2dfa2d called the chain that marks what is of no pod. A full Sync
// writes the rules that lead to it again, and removes it, in one transaction.
const formerMark = "KUBE-MARK-FAR"

// renamedSets are the sets of former releases whose elements are taken over: the numbers of lists, and with
// them the clients, and ClusterIPs, all under the names up to d2dfa2d; and the clients up to 77b8eb1, one by one.
func renamedSets() []nftset.Rename {
	all := append(nftset.RenamedSets(map[nftset.Set]nftset.Set{
		"reserved": nftset.ClusterIPs, "sticky": affinityIDs, "sticky-outside": affinityIDs + external,
		"nodeport-sticky": affinityIDsNodeports, "nodeport-sticky-outside": affinityIDsNodeports + external,
	}), nftset.Rename{Former: "ids", Name: affinityLists})
	for _, is4 := range nftset.Families {
		all = append(all, nftset.Rename{Former: inFamily("affinity", is4), Name: affinityBuckets(is4), Key: nftset.BucketKey[listNumber]})
	}
	return all
}
