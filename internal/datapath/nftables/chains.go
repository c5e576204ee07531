package nftables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// Registers of four bytes (NFT_REG32_xx). A key begins in firstReg. reg1 has 16 bytes: the same bytes as the first four
// registers.
const (
	reg1     = unix.NFT_REG_1
	firstReg = unix.NFT_REG32_00
	hashReg  = unix.NFT_REG32_12 // behind the longest key; a hash needs four registers for its input
)

// family has the differences between IPv4 and IPv6 in a rule.
type family struct {
	is4        bool
	nfproto    byte
	saddr      uint32 // the offset of the source address in the network header
	daddr      uint32 // the offset of the destination address
	size       uint32 // the size of an address in bytes
	protoInNAT uint32 // the register of the port after the lookup of an endpoint
}

var families = []family{
	{is4: true, nfproto: unix.NFPROTO_IPV4, saddr: 12, daddr: 16, size: 4, protoInNAT: firstReg + 1},
	{is4: false, nfproto: unix.NFPROTO_IPV6, saddr: 8, daddr: 24, size: 16, protoInNAT: firstReg + 4},
}

// A ruleWriter writes the load-balancing chains.
type ruleWriter struct {
	mark  uint32 // the packet mark for masquerading
	count bool   // count traffic
}

// addChain queues the chain of the verdict ID v, and the element that leads from v to it. verdict says what the chain
// does. It differs from v only for dedicated chains. Their element has verdict as comment, which a restart reads.
func (w ruleWriter) addChain(t *nft.Table, c *nftables.Conn, v, verdict verdictID) error {
	writeChain(t, c, v.chainName(), w.rules(verdict))
	e := nftables.SetElement{Key: verdictData(v), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: v.chainName()}}
	if v != verdict {
		e.Comment = verdict.String()
	}
	return c.SetAddElements(t.Set(dispatchMap), []nftables.SetElement{e})
}

// writeChain queues a chain with these rules. They replace the rules of an existing chain.
func writeChain(t *nft.Table, c *nftables.Conn, name string, rules [][]expr.Any) {
	chain := c.AddChain(t.Chain(name))
	c.FlushChain(chain)
	for _, exprs := range rules {
		c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: exprs})
	}
}

// salt represents the rules that are written over netlink, which are part of the version too.
func (w ruleWriter) salt() string {
	rules := slices.Concat(affinityHook(), affinityUpdate(100, false), affinityUpdate(100, true))
	for _, v := range []verdictID{
		verdictMasqueradeAll | verdictAffinity | 1, verdictMasqueradeOffCluster | verdictNodePort | verdictSourceHash | 1,
		verdictExternal | verdictRoundRobin | 1, verdictDestHash | 1,
	} {
		rules = slices.Concat(rules, w.rules(v), dnat(v), affinityLookup(v))
	}
	var all strings.Builder
	for _, rule := range rules {
		for _, e := range rule {
			fmt.Fprintf(&all, "%T%+v ", e, e)
		}
		all.WriteString("\n")
	}
	return all.String()
}

// delChain queues the inverse of addChain.
func delChain(t *nft.Table, c *nftables.Conn, v verdictID) error {
	if err := c.SetDeleteElements(t.Set(dispatchMap), []nftables.SetElement{{Key: verdictData(v)}}); err != nil {
		return err
	}
	c.FlushChain(t.Chain(v.chainName()))
	c.DelChain(t.Chain(v.chainName()))
	return nil
}

// rules returns the rules of the chain for the verdict v. They are not in ruleset.nft.tmpl because of a bug in nft
// 1.0.6. To an existing table it cannot add a rule that looks up an address and a port of any protocol: "conflicting
// protocols: ip vs. th".
func (w ruleWriter) rules(v verdictID) [][]expr.Any {
	var rules [][]expr.Any
	if v&verdictMasqueradeAll != 0 {
		rules = append(rules, setMark(w.mark))
	}
	for _, f := range families {
		if v&verdictIPv4Only != 0 && !f.is4 || v&verdictIPv6Only != 0 && f.is4 {
			continue
		}
		if v&verdictMasqueradeOffCluster != 0 {
			// ip saddr != @pods4 iifname != @pod-interfaces meta mark set meta mark | 0x4000
			offCluster := append(f.family(),
				&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
				&expr.Lookup{SourceRegister: reg1, SetName: nftset.Pods.Name(f.is4), Invert: true},
				&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1},
				&expr.Lookup{SourceRegister: reg1, SetName: nftset.PodInterfaces, Invert: true},
			)
			rules = append(rules, append(offCluster, setMark(w.mark)...))
		}
		if w.count {
			rules = append(rules, f.connection(v))
		}
	}
	if v&verdictAffinity != 0 {
		rules = append(rules, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: v.affinityChain()}})
	}
	if by := v & verdictAlgorithm; by == verdictSourceHash || by == verdictDestHash {
		for _, f := range families {
			rules = append(rules, append(f.family(), f.choose(v)...))
		}
		return rules
	}
	return append(rules, families[0].choose(v))
}

// clearPriority returns "meta priority set none".
func clearPriority() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg1, Data: []byte{0, 0, 0, 0}},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
	}
}

// family returns "meta nfproto ipv4", or the same for IPv6.
func (f family) family() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{f.nfproto}},
	}
}

// loadFrontend returns the expressions that load a frontend's key, and the first register behind the key:
//
//	ip daddr . meta l4proto . th dport
//	           meta l4proto . th dport
func (f family) loadFrontend(nodePort bool) (load []expr.Any, next uint32) {
	reg := uint32(firstReg)
	if !nodePort {
		load = append(load, &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.size})
		reg += f.size / 4
	}
	return append(load,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Payload{DestRegister: reg + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	), reg + 2
}

// choose returns one of these rules. It selects a slot and goes to the chain that translates the packet (dnat.go).
//
//	meta priority set numgen random mod N offset O goto dnat
//	meta priority set numgen inc mod N offset O goto dnat
//	meta priority set jhash ip saddr mod N seed 1 offset O goto dnat
//
// The rule itself must not look up the map of endpoints. When a rule binds a map, the kernel walks all elements of the
// map: 16 ms for 250,000 endpoints. Any change may need a chain for a new number of slots.
func (f family) choose(v verdictID) []expr.Any {
	slots, offset := v.slots()
	var rule []expr.Any
	switch v & verdictAlgorithm {
	case verdictRoundRobin:
		rule = append(rule, &expr.Numgen{Register: reg1, Modulus: slots, Type: unix.NFT_NG_INCREMENTAL, Offset: offset})
	case verdictSourceHash, verdictDestHash:
		addr := f.saddr
		if v&verdictAlgorithm == verdictDestHash {
			addr = f.daddr
		}
		rule = append(rule,
			&expr.Payload{DestRegister: hashReg, Base: expr.PayloadBaseNetworkHeader, Offset: addr, Len: f.size},
			// Without a seed the kernel takes a random one. All nodes and modes must choose the same endpoint.
			&expr.Hash{
				SourceRegister: hashReg, DestRegister: reg1, Length: f.size,
				Modulus: slots, Seed: lb.HashSeed, Offset: offset, Type: expr.HashTypeJenkins,
			},
		)
	default:
		rule = append(rule, &expr.Numgen{Register: reg1, Modulus: slots, Type: unix.NFT_NG_RANDOM, Offset: offset})
	}
	return append(rule,
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: v.dnatChain()},
	)
}

// setMark returns "meta mark set meta mark | 0x4000".
func setMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		masked(^mark, mark),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1, SourceRegister: true},
	}
}

// masked returns reg1 = reg1 & mask ^ xor.
func masked(mask, xor uint32) expr.Any {
	return &expr.Bitwise{
		SourceRegister: reg1, DestRegister: reg1, Len: 4,
		Mask: binaryutil.NativeEndian.PutUint32(mask),
		Xor:  binaryutil.NativeEndian.PutUint32(xor),
	}
}
