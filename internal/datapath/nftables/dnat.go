package nftables

import (
	"regexp"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// This file writes the chains that look up large maps. All load-balancing chains share them. There are at most twelve.
// Each is written when it is first needed, and stays.

// sharedMask has the bits of a verdict that select the shared chains.
const sharedMask = verdictNodePort | verdictExternal | verdictAffinity

// shared returns the bits of v that select its shared chains.
func (v verdictID) shared() verdictID { return v & sharedMask }

// sharedName returns the name of a shared chain for the kind of frontend.
func (v verdictID) sharedName(name string) string {
	if v&verdictNodePort != 0 {
		name += "-nodeport"
	}
	if v&verdictExternal != 0 {
		name += "-external"
	}
	return name
}

// dnatChain returns the name of the chain that translates a packet to the endpoint in a slot. The packet's priority has
// the number of the slot.
func (v verdictID) dnatChain() string {
	name := v.sharedName(lbChainPrefix + "dnat")
	if v&verdictAffinity != 0 {
		name += "-affinity"
	}
	return name
}

// affinityChain returns the name of the chain that translates a packet to the endpoint that the client had before.
func (v verdictID) affinityChain() string { return v.sharedName(lbChainPrefix + "affinity") }

// sharedChains returns the names of the shared chains of a verdict.
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

// dnat returns the rules of the chain dnatChain. For each family:
//
//	meta priority set none dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints4
//	meta priority set O dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints4
//
// The first rule loads the key with the slot before it clears the priority, although nft lists the rule in another
// order. With affinity it sets the priority to the affinity ID instead.
//
// The second rule looks up the first slot, O, which exists as long as there is any endpoint. It is for a packet that
// meets a change: its slot has just been deleted. With affinity a third rule is for the moment when a frontend loses
// its ID.
func dnat(v verdictID) (rules [][]expr.Any) {
	_, offset := v.slots()
	nodePort := v&verdictNodePort != 0
	for _, f := range families {
		front, slot := f.loadFrontend(nodePort)
		load := slices.Concat([]expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: slot}}, front)
		rule := func(before, after []expr.Any) []expr.Any {
			return slices.Concat(f.family(), before, load, after, f.endpoint(nodePort))
		}
		none, firstSlot := setPriority(0), setPriority(offset)
		if v&verdictAffinity != 0 {
			setID := append(f.affinityID(v, hashReg), front...)
			rules = append(rules, rule(nil, setID), rule(firstSlot, setID), rule(firstSlot, none))
		} else {
			rules = append(rules, rule(nil, none), rule(firstSlot, none))
		}
	}
	return rules
}

// setPriority returns the expressions that set the packet's priority to n. They use a register behind the longest key.
func setPriority(n uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: hashReg, Data: nftset.Number(n)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: hashReg, SourceRegister: true},
	}
}

// endpoint returns the expressions that translate a packet to an endpoint. The endpoint's key is loaded before.
func (f family) endpoint(nodePort bool) []expr.Any {
	set := endpoints
	if nodePort {
		set = nodeportEndpoints
	}
	return []expr.Any{
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: set.Name(f.is4)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: firstReg, RegProtoMin: f.protoInNAT},
	}
}

// Parts of nft's listing: the begin of a rule of dnat, and the type of a map of endpoints.
var (
	listedDNAT      = regexp.MustCompile(`(?m)meta priority set (?:none|[^{}\n]* map @affinity-ids\S*) dnat ip`)
	listedEndpoints = regexp.MustCompile(`(?m)^\t(map (?:nodeport-)?endpoints[46] \{\n\t\ttypeof .*) numgen random mod 65536 :`)
)

// fixListing implements nft.Ruleset.FixListing. nft lists that a rule of dnat sets the priority before it loads the
// slot, so the copy does not set the priority. The copy does not need this, because it records no clients. Its maps of
// endpoints have the type of a priority, because nft refuses the listed lookup otherwise.
func fixListing(listing string) string {
	listing = listedDNAT.ReplaceAllString(listing, "dnat ip")
	return listedEndpoints.ReplaceAllString(listing, "\t$1 meta priority :")
}
