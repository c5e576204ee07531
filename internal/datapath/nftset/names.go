package nftset

// A Set is the name of a set or map without its family. There are two of each, and their names end with 4 or 6.
type Set string

// The sets that several modes have. The ruleset of each mode explains them.
const (
	Frontends         Set = "frontends"
	FrontendsExternal Set = "frontends-external"
	Nodeports         Set = "nodeports"
	NodeportsExternal Set = "nodeports-external"
	SourceRestricted  Set = "source-restricted"
	SourceRanges      Set = "source-ranges"
	ClusterIPs        Set = "cluster-ips"
	ExternalAddresses Set = "external-addresses"
	ServiceCIDRs      Set = "service-cidrs"
	Pods              Set = "pods"
	NodePortAddresses Set = "nodeport-addresses"
	Hairpin           Set = "hairpin"
)

// PodInterfaces is the set of interfaces that lead to pods only. It is one set for both families.
const PodInterfaces = "pod-interfaces"

// Name returns the kernel's name of the set for a family.
func (s Set) Name(is4 bool) string {
	if is4 {
		return string(s) + "4"
	}
	return string(s) + "6"
}

// Families has both values of is4: true is IPv4, false is IPv6.
var Families = [...]bool{true, false}
