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

// Registers: a key is built from reg1 on, four bytes a register (NFT_REG32_xx).
// reg1 is the 16-byte name of the first four, which nft itself writes.
const (
	reg1     = unix.NFT_REG_1
	firstReg = unix.NFT_REG32_00
	hashReg  = unix.NFT_REG32_12 // behind any key; the hash input needs four
)

// family holds the differences between IPv4 and IPv6 in a rule.
type family struct {
	is4        bool
	nfproto    byte
	saddr      uint32 // offset of the source in the network header
	daddr      uint32
	size       uint32 // of an address, in bytes
	protoInNAT uint32 // the register of the port in the result of an endpoint lookup
}

var families = []family{
	{is4: true, nfproto: unix.NFPROTO_IPV4, saddr: 12, daddr: 16, size: 4, protoInNAT: firstReg + 1},
	{is4: false, nfproto: unix.NFPROTO_IPV6, saddr: 8, daddr: 24, size: 16, protoInNAT: firstReg + 4},
}

// A ruleWriter writes the chains of one program.
type ruleWriter struct {
	mark  uint32
	count bool // traffic is counted
}

// addChain queues the chain for the verdict what, and the element that leads from h to it.
// The comment of a chain for one frontend only has the verdict that it gives, for a restart.
func (w ruleWriter) addChain(t *nft.Table, c *nftables.Conn, h, what verdictID) error {
	writeChain(t, c, h.chainName(), w.rules(what))
	e := nftables.SetElement{Key: verdictData(h), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: h.chainName()}}
	if h != what {
		e.Comment = what.String()
	}
	return c.SetAddElements(t.Set(dispatchMap), []nftables.SetElement{e})
}

// writeChain queues a chain with these rules, in place of those that it has.
func writeChain(t *nft.Table, c *nftables.Conn, name string, rules [][]expr.Any) {
	chain := c.AddChain(t.Chain(name))
	c.FlushChain(chain)
	for _, exprs := range rules {
		c.AddRule(&nftables.Rule{Table: t.Ref(), Chain: chain, Exprs: exprs})
	}
}

// salt represents the rules that are written over netlink: they are part of the program's
// version too.
func (w ruleWriter) salt() string {
	rules := slices.Concat(affinityHook(), affinityUpdate(100, false), affinityUpdate(100, true))
	for _, h := range []verdictID{verdictMasqueradeAll | verdictAffinity | 1, verdictMasqueradeOffCluster | verdictNodePort | verdictSourceHash | 1, verdictExternal | verdictRoundRobin | 1, verdictDestHash | 1} {
		rules = slices.Concat(rules, w.rules(h), dnat(h), affinityLookup(h))
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
func delChain(t *nft.Table, c *nftables.Conn, h verdictID) error {
	if err := c.SetDeleteElements(t.Set(dispatchMap), []nftables.SetElement{{Key: verdictData(h)}}); err != nil {
		return err
	}
	c.FlushChain(t.Chain(h.chainName()))
	c.DelChain(t.Chain(h.chainName()))
	return nil
}

// rules returns the rules of the chain for the verdict h. Only these rules are not in
// ruleset.nft.tmpl: nft 1.0.6 cannot add, to an existing table, a rule which looks up an
// address and a port of any protocol ("conflicting protocols: ip vs. th").
func (w ruleWriter) rules(h verdictID) [][]expr.Any {
	var rules [][]expr.Any
	if h&verdictMasqueradeAll != 0 {
		rules = append(rules, setMark(w.mark))
	}
	for _, f := range families {
		if h&verdictIPv4Only != 0 && !f.is4 || h&verdictIPv6Only != 0 && f.is4 {
			continue
		}
		if h&verdictMasqueradeOffCluster != 0 {
			// ip saddr != @pods4 iifname != @pod-interfaces meta mark set meta mark | 0x4000
			far := append(f.family(),
				&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
				&expr.Lookup{SourceRegister: reg1, SetName: nftset.Pods.Name(f.is4), Invert: true},
				&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1},
				&expr.Lookup{SourceRegister: reg1, SetName: nftset.PodInterfaces, Invert: true},
			)
			rules = append(rules, append(far, setMark(w.mark)...))
		}
		if w.count {
			rules = append(rules, f.connection(h))
		}
	}
	if h&verdictAffinity != 0 {
		rules = append(rules, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: h.affinityChain()}})
	}
	if by := h & verdictAlgorithm; by == verdictSourceHash || by == verdictDestHash {
		for _, f := range families {
			rules = append(rules, append(f.family(), f.choose(h)...))
		}
		return rules
	}
	return append(rules, families[0].choose(h))
}

// clearPriority is "meta priority set none".
func clearPriority() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg1, Data: []byte{0, 0, 0, 0}},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
	}
}

// match is "meta nfproto ipv4".
func (f family) family() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{f.nfproto}},
	}
}

// loadFrontend loads a frontend's key, and returns the first register behind it:
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

// choose is one of
//
//	meta priority set numgen random mod N offset O goto dnat
//	meta priority set numgen inc mod N offset O goto dnat
//	meta priority set jhash ip saddr mod N seed 1 offset O goto dnat
//
// The map of endpoints is looked up in the chain dnat, which all share: when a rule of a chain
// looks up a map for the first time, the kernel walks all elements of the map, and a chain for a
// number of slots may come with any change (16 ms for 250,000 endpoints).
func (f family) choose(h verdictID) []expr.Any {
	slots, offset := h.slots()
	var rule []expr.Any
	switch h & verdictAlgorithm {
	case verdictRoundRobin:
		rule = append(rule, &expr.Numgen{Register: reg1, Modulus: slots, Type: unix.NFT_NG_INCREMENTAL, Offset: offset})
	case verdictSourceHash, verdictDestHash:
		addr := f.saddr
		if h&verdictAlgorithm == verdictDestHash {
			addr = f.daddr
		}
		rule = append(rule,
			&expr.Payload{DestRegister: hashReg, Base: expr.PayloadBaseNetworkHeader, Offset: addr, Len: f.size},
			// A seed, or the kernel takes a random one: every node and mode chooses the same.
			&expr.Hash{SourceRegister: hashReg, DestRegister: reg1, Length: f.size, Modulus: slots, Seed: lb.HashSeed, Offset: offset, Type: expr.HashTypeJenkins},
		)
	default:
		rule = append(rule, &expr.Numgen{Register: reg1, Modulus: slots, Type: unix.NFT_NG_RANDOM, Offset: offset})
	}
	return append(rule,
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: h.dnatChain()},
	)
}

// setMark is "meta mark set meta mark | 0x4000".
func setMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		masked(^mark, mark),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1, SourceRegister: true},
	}
}

// masked is reg1 = reg1 & mask ^ xor.
func masked(mask, xor uint32) expr.Any {
	return &expr.Bitwise{
		SourceRegister: reg1, DestRegister: reg1, Len: 4,
		Mask: binaryutil.NativeEndian.PutUint32(mask),
		Xor:  binaryutil.NativeEndian.PutUint32(xor),
	}
}
