package nftset

// A Set is a set or map of a program. Each family has one: 4 or 6 follows the name.
type Set string

// The sets that several modes have. The ruleset of each mode says what they are for.
const (
	Frontends         Set = "frontends"
	FrontendsExternal Set = "frontends-external"
	Nodeports         Set = "nodeports"
	NodeportsExternal Set = "nodeports-external"
	SourceRestricted  Set = "source-restricted"
	SourceRanges      Set = "source-ranges"
	ClusterIPs        Set = "cluster-ips"
	ServiceCIDRs      Set = "service-cidrs"
	Pods              Set = "pods"
	NodePortAddresses Set = "nodeport-addresses"
	Hairpin           Set = "hairpin"
)

// PodInterfaces is the set of the interfaces behind which only pods are, of both families.
const PodInterfaces = "pod-interfaces"

// Name returns the kernel's name of the set for a family.
func (s Set) Name(is4 bool) string {
	if is4 {
		return string(s) + "4"
	}
	return string(s) + "6"
}

// Families are both address families; true is IPv4.
var Families = [...]bool{true, false}
