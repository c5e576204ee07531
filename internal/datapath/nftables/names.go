package nftables

import (
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// Names of kernel objects. ruleset.nft.tmpl explains its sets and maps.
const (
	dispatchMap      = "dispatch"
	affinityPending  = "affinity-pending"
	affinityUpdates  = "affinity-updates"
	affinityConfirms = "affinity-confirms"
)

// lbChainPrefix begins the names of the load-balancing chains.
const lbChainPrefix = "lb-"

// isDynamicChain reports whether a chain is written over netlink: "lb-random-3", "lb-rr-7", "affinity-update-10800".
func isDynamicChain(chain string) bool {
	return strings.HasPrefix(chain, lbChainPrefix) || strings.HasPrefix(chain, affinityChainPrefix)
}

// Sets that only this mode has.
const (
	frontendsInternal            nftset.Set = "frontends-internal"
	nodeportsInternal            nftset.Set = "nodeports-internal"
	endpoints                    nftset.Set = "endpoints"
	nodeportEndpoints            nftset.Set = "nodeport-endpoints"
	nodeportHosts                nftset.Set = "nodeport-hosts"
	affinityIDs                  nftset.Set = "affinity-ids"
	affinityIDsExternal          nftset.Set = "affinity-ids-external"
	affinityIDsNodeports         nftset.Set = "affinity-ids-nodeports"
	affinityIDsNodeportsExternal nftset.Set = "affinity-ids-nodeports-external"
	affinityBuckets              nftset.Set = "affinity-buckets"
)

// A verdictID says what happens to a packet. It is the data of the maps of frontends, and the key of the map dispatch.
// ruleset.nft.tmpl explains its bits. 0 means "no element".
type verdictID uint32

const (
	verdictMasqueradeOffCluster           = verdictID(nftset.MasqueradeOffCluster)
	verdictMasqueradeAll                  = verdictID(nftset.MasqueradeAll)
	verdictExternal                       = verdictID(nftset.ForExternal)
	verdictNodePort                       = verdictID(nftset.ForNodePort)
	verdictAffinity             verdictID = 16 << 16
	verdictAlgorithm            verdictID = 0x60 << 16 // the bits of the algorithm: 0 (random) or one of
	verdictRoundRobin           verdictID = 0x20 << 16
	verdictSourceHash           verdictID = 0x40 << 16
	verdictDestHash             verdictID = 0x60 << 16
	verdictIPv4Only             verdictID = 0x100 << 16 // the chain has rules for one family only
	verdictIPv6Only             verdictID = 0x200 << 16
	verdictMajor                verdictID = 0xffff << 16
	verdictDedicated            verdictID = 0xe000 << 16 // a dedicated chain: the other 28 bits are its number
	verdictDedicatedMask        verdictID = 0xf000 << 16
	verdictReject                         = verdictID(nftset.Reject)
	verdictDrop                           = verdictID(nftset.Drop)
	verdictPolicyCheck          verdictID = 0xf000<<16 | 3
)

// maxSlots is the largest number of slots in a list. It fits into the 16 bits of minor.
const maxSlots = lb.MaxSlots

// externalOffset is the number of the first slot in the list for external clients.
const externalOffset = 65536

// verdictFor returns the verdict of a route with the given number of slots. external selects the list for external
// clients.
func verdictFor(r *service.Route, balance service.Algorithm, slots int, nodePort, external, affinity bool) verdictID {
	forward, forwards := nftset.VerdictFor(r, nodePort, external)
	v := verdictID(forward)
	if !forwards {
		return v
	}
	v |= verdictID(slots)
	switch balance {
	case service.RoundRobin:
		v |= verdictRoundRobin
	case service.SourceHash, service.Maglev:
		v |= verdictSourceHash
	case service.DestHash:
		v |= verdictDestHash
	}
	if affinity {
		v |= verdictAffinity
	}
	return v
}

// isDedicated reports whether v leads to a dedicated chain, which serves one frontend only.
func (v verdictID) isDedicated() bool { return v&verdictDedicatedMask == verdictDedicated }

// balances reports whether v leads to a load-balancing chain.
func (v verdictID) balances() bool {
	return v != 0 && v&verdictDedicatedMask != verdictReject&verdictDedicatedMask
}

// slots returns the number of slots that v balances over, and the number of the first slot.
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
	algorithm := map[verdictID]string{
		0: "random", verdictRoundRobin: "rr-shared", verdictSourceHash: "source", verdictDestHash: "dest",
	}[v&verdictAlgorithm]
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
