package nftables

import (
	"regexp"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// Chains that the load-balancing chains share: those that look up large maps. There are few, each is written
// when it is first needed, and stays.

// sharedMask has the bits of a verdict that say which shared chains a load-balancing chain leads to.
const sharedMask = verdictNodePort | verdictExternal | verdictAffinity

// shared returns what names the shared chains of a verdict that balances.
func (v verdictID) shared() verdictID { return v & sharedMask }

// sharedName appends the kind of frontend to the name of a shared chain.
func (v verdictID) sharedName(name string) string {
	if v&verdictNodePort != 0 {
		name += "-nodeport"
	}
	if v&verdictExternal != 0 {
		name += "-external"
	}
	return name
}

// dnatChain returns the name of the chain that translates to the slot in the packet's priority.
func (v verdictID) dnatChain() string {
	name := v.sharedName(lbChainPrefix + "dnat")
	if v&verdictAffinity != 0 {
		name += "-affinity"
	}
	return name
}

// affinityChain returns the name of the chain that translates to the endpoint that a client had
// before.
func (v verdictID) affinityChain() string { return v.sharedName(lbChainPrefix + "affinity") }

// sharedChains returns the names of the shared chains that a verdict leads to.
func (v verdictID) sharedChains() []string {
	if v&verdictAffinity == 0 {
		return []string{v.dnatChain()}
	}
	return []string{v.dnatChain(), v.affinityChain()}
}

// addShared queues the shared chains of a verdict.
func addShared(t *nft.Table, c *nftables.Conn, v verdictID) {
	writeChain(t, c, v.dnatChain(), dnat(v))
	if v&verdictAffinity != 0 {
		writeChain(t, c, v.affinityChain(), affinityLookup(v))
	}
}

// dnat is the rules of the chain dnatChain, for each family
//
//	meta priority set none dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints4
//	meta priority set O dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints4
//
// In the first, the key is loaded before the priority is cleared, or is set to the affinity ID again, whatever
// nft lists first. The second lookup is for a packet that meets a change: the first slot, O, exists as long as there is any endpoint.
// With affinity, a third is for one whose frontend has just lost its ID.
func dnat(v verdictID) (rules [][]expr.Any) {
	_, offset := v.slots()
	nodePort := v&verdictNodePort != 0
	for _, f := range families {
		front, slot := f.loadFrontend(nodePort)
		load := slices.Concat([]expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: slot}}, front)
		rule := func(before, after []expr.Any) []expr.Any {
			return slices.Concat(f.family(), before, load, after, f.endpoint(nodePort))
		}
		clear, first := setPriority(0), setPriority(offset)
		if v&verdictAffinity != 0 {
			again := append(f.affinityID(v, hashReg), front...)
			rules = append(rules, rule(nil, again), rule(first, again), rule(first, clear))
		} else {
			rules = append(rules, rule(nil, clear), rule(first, clear))
		}
	}
	return rules
}

// setPriority sets the packet's priority, by way of a register behind any key.
func setPriority(n uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: hashReg, Data: nftset.Number(n)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: hashReg, SourceRegister: true},
	}
}

// endpoint translates to the endpoint of the slot whose key is loaded.
func (f family) endpoint(nodePort bool) []expr.Any {
	from := endpoints
	if nodePort {
		from = nodeportEndpoints
	}
	return []expr.Any{
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: from.Name(f.is4)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: firstReg, RegProtoMin: f.protoInNAT},
	}
}

// What nft lists of a chain dnat before "dnat", and of the type of a map of endpoints.
var (
	listedDNAT      = regexp.MustCompile(`(?m)meta priority set (?:none|[^{}\n]* map @affinity-ids\S*) dnat ip`)
	listedEndpoints = regexp.MustCompile(`(?m)^\t(map (?:nodeport-)?endpoints[46] \{\n\t\ttypeof .*) numgen random mod 65536 :`)
)

// loadable is nft.Ruleset.FixListing: the copy of a former program neither clears the priority nor
// records clients, and its maps have the type of a priority.
func loadable(listed string) string {
	listed = listedDNAT.ReplaceAllString(listed, "dnat ip")
	return listedEndpoints.ReplaceAllString(listed, "\t$1 meta priority :")
}
