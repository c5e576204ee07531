package nftables

import (
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/lb"
	"github.com/fairway-net/fairway/internal/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

// Names of kernel objects. ruleset.nft.tmpl says what its sets and maps are for.
const (
	tableName       = numbers.TableNFTables
	dispatchMap     = "dispatch"
	affinityUpdates = "affinity-updates"
	podInterfaces   = "pod-interfaces"
)

// lbChainPrefix begins the names of the load-balancing chains.
const lbChainPrefix = "lb-"

// writtenChain reports whether a chain is written over netlink when it is first needed:
// "lb-random-3", "lb-rr-7", "affinity-update-10800".
func writtenChain(chain string) bool {
	return strings.HasPrefix(chain, lbChainPrefix) || strings.HasPrefix(chain, affinityChainPrefix)
}

// A set is a map or set of the program, one for each family: its name is followed
// by 4 or 6.
type set string

const (
	frontends                    set = "frontends"
	frontendsInternal            set = "frontends-internal"
	frontendsExternal            set = "frontends-external"
	nodeports                    set = "nodeports"
	nodeportsInternal            set = "nodeports-internal"
	nodeportsExternal            set = "nodeports-external"
	endpoints                    set = "endpoints"
	nodeportEndpoints            set = "nodeport-endpoints"
	pods                         set = "pods"
	nodeportHosts                set = "nodeport-hosts"
	nodeportAddresses            set = "nodeport-addresses"
	hairpin                      set = "hairpin"
	sourceRestricted             set = "source-restricted"
	sourceRanges                 set = "source-ranges"
	clusterIPs                   set = "cluster-ips"
	serviceCIDRs                 set = "service-cidrs"
	affinityIDs                  set = "affinity-ids"
	affinityIDsExternal          set = "affinity-ids-external"
	affinityIDsNodeports         set = "affinity-ids-nodeports"
	affinityIDsNodeportsExternal set = "affinity-ids-nodeports-external"
	affinityClients              set = "affinity-clients"
)

// name returns the kernel's name of the set for a family.
func (s set) name(is4 bool) string {
	if is4 {
		return string(s) + "4"
	}
	return string(s) + "6"
}

// A verdictID says what happens to a packet. It is the data of the frontends' maps and the
// key of the map dispatch. ruleset.nft.tmpl explains its bits. Zero means "no element".
type verdictID uint32

const (
	verdictMasqueradeOffCluster verdictID = 1 << 16
	verdictMasqueradeAll        verdictID = 2 << 16
	verdictExternal             verdictID = 4 << 16
	verdictNodePort             verdictID = 8 << 16
	verdictAffinity             verdictID = 16 << 16
	verdictAlgorithm            verdictID = 0x60 << 16 // these bits are one of:
	verdictRoundRobin           verdictID = 0x20 << 16
	verdictSourceHash           verdictID = 0x40 << 16
	verdictDestHash             verdictID = 0x60 << 16
	verdictIPv4Only             verdictID = 0x100 << 16 // a chain for one family
	verdictIPv6Only             verdictID = 0x200 << 16
	verdictMajor                verdictID = 0xffff << 16
	verdictDedicated            verdictID = 0xe000 << 16 // a chain for one frontend only; the other 28 bits number it
	verdictDedicatedMask        verdictID = 0xf000 << 16
	verdictReject               verdictID = 0xf000<<16 | 1
	verdictDrop                 verdictID = 0xf000<<16 | 2
	verdictPolicyCheck          verdictID = 0xf000<<16 | 3
)

// maxSlots is how many slots a list can have: minor has 16 bits.
const maxSlots = lb.MaxSlots

// externalOffset is the first slot of the list for external clients.
const externalOffset = 65536

// verdictFor translates a route that has the given number of slots. external selects the
// list for external clients.
func verdictFor(r *service.Route, balance service.Algorithm, slots int, nodePort, external, affinity bool) verdictID {
	switch r.Action {
	case service.Reject:
		return verdictReject
	case service.Drop:
		return verdictDrop
	}
	v := verdictID(slots)
	switch r.Masquerade {
	case service.MasqueradeOffCluster:
		v |= verdictMasqueradeOffCluster
	case service.MasqueradeAll:
		v |= verdictMasqueradeAll
	}
	switch balance {
	case service.RoundRobin:
		v |= verdictRoundRobin
	case service.SourceHash, service.Maglev:
		v |= verdictSourceHash
	case service.DestHash:
		v |= verdictDestHash
	}
	for _, bit := range [...]struct {
		verdict verdictID
		set     bool
	}{{verdictNodePort, nodePort}, {verdictExternal, external}, {verdictAffinity, affinity}} {
		if bit.set {
			v |= bit.verdict
		}
	}
	return v
}

// route is the inverse of verdictFor but for the endpoints.
func (v verdictID) route() *service.Route {
	switch {
	case v == verdictReject:
		return &service.Route{Action: service.Reject}
	case v == verdictDrop:
		return &service.Route{Action: service.Drop}
	case v&verdictMasqueradeAll != 0:
		return &service.Route{Masquerade: service.MasqueradeAll}
	case v&verdictMasqueradeOffCluster != 0:
		return &service.Route{Masquerade: service.MasqueradeOffCluster}
	}
	return &service.Route{}
}

// isDedicated reports whether v leads to a chain that serves one frontend only.
func (v verdictID) isDedicated() bool { return v&verdictDedicatedMask == verdictDedicated }

// balances reports whether v leads to a load-balancing chain.
func (v verdictID) balances() bool {
	return v != 0 && v&verdictDedicatedMask != verdictReject&verdictDedicatedMask
}

// slots returns the number of slots that v balances over, and the first slot.
func (v verdictID) slots() (n, offset uint32) {
	if v&verdictExternal != 0 {
		offset = externalOffset
	}
	return uint32(v &^ verdictMajor), offset
}

// String returns the ID as nft prints it: "1:3".
func (v verdictID) String() string { return fmt.Sprintf("%x:%x", uint32(v>>16), uint32(v&0xffff)) }

// parseVerdictText is the inverse of String.
func parseVerdictText(s string) (verdictID, error) {
	var major, minor uint32
	if _, err := fmt.Sscanf(s, "%x:%x", &major, &minor); err != nil {
		return 0, fmt.Errorf("%q is not a verdict ID: %w", s, err)
	}
	return verdictID(major<<16 | minor), nil
}

// chainName returns the name of the chain that the ID leads to:
// "lb-random-3-nodeport-external-masquerade-all".
func (v verdictID) chainName() string {
	switch {
	case v == verdictReject:
		return "refused"
	case v == verdictDrop:
		return "dropped"
	case v.isDedicated():
		return fmt.Sprintf("%srr-%d", lbChainPrefix, v&^verdictDedicatedMask)
	}
	algorithm := map[verdictID]string{0: "random", verdictSourceHash: "source", verdictDestHash: "dest"}[v&verdictAlgorithm]
	name := fmt.Sprintf("%s%s-%d", lbChainPrefix, algorithm, v&^verdictMajor)
	for _, bit := range [...]struct {
		verdict verdictID
		suffix  string
	}{
		{verdictNodePort, "-nodeport"}, {verdictExternal, "-external"}, {verdictMasqueradeAll, "-masquerade-all"},
		{verdictMasqueradeOffCluster, "-masquerade-off-cluster"}, {verdictAffinity, "-affinity"},
	} {
		if v&bit.verdict != 0 {
			name += bit.suffix
		}
	}
	return name
}
