package nftables

import (
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Registers: a key is built from reg1 on, four bytes a register (NFT_REG32_xx).
// reg1 is the 16-byte name of the first four, which nft itself writes.
const (
	reg1     = unix.NFT_REG_1
	firstReg = unix.NFT_REG32_00
)

// family is what IPv4 and IPv6 differ in, seen from a rule.
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

// rules returns the rules of the chain that does h. They are the few that are not in
// ruleset.nft.tmpl: nft 1.0.6 cannot add, to a table that is there, a rule which looks
// up an address and a port of any protocol ("conflicting protocols: ip vs. th").
func (h how) rules(mark uint32) [][]expr.Any {
	_, slots, offset := h.forwards()
	rules := [][]expr.Any{clearPriority()}
	switch {
	case h&howAll != 0:
		rules = append(rules, setMark(mark))
	case h&howFar != 0:
		for _, f := range families {
			// ip saddr != @pods4 iifname != @pod-interfaces meta mark set meta mark | 0x4000
			rules = append(rules, append(f.match(),
				&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: f.saddr, Len: f.size},
				&expr.Lookup{SourceRegister: reg1, SetName: pods.name(f.is4), Invert: true},
				&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1},
				&expr.Lookup{SourceRegister: reg1, SetName: podLinks, Invert: true},
			))
			last := len(rules) - 1
			rules[last] = append(rules[last], setMark(mark)...)
		}
	}
	for _, f := range families {
		if h&howSticky != 0 {
			rules = append(rules, f.remembered(h)...)
		}
		rules = append(rules, f.pick(h, slots, offset), f.pick(h, 1, offset))
	}
	return rules
}

// clearPriority is "meta priority set none".
func clearPriority() []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg1, Data: []byte{0, 0, 0, 0}},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1, SourceRegister: true},
	}
}

// match is "meta nfproto ipv4".
func (f family) match() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{f.nfproto}},
	}
}

// pick is one of
//
//	dnat ip to ip daddr . meta l4proto . th dport . numgen random mod N offset O map @endpoints4
//	dnat ip to meta l4proto . th dport . numgen random mod N offset O map @nodeport-endpoints4
func (f family) pick(h how, slots, offset uint32) []expr.Any {
	rule := f.match()
	reg := uint32(firstReg)
	from := nodeportEndpoints
	if h&howNodePort == 0 {
		from = endpoints
		rule = append(rule, &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.daddr, Len: f.size})
		reg += f.size / 4
	}
	return append(rule,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Payload{DestRegister: reg + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Numgen{Register: reg + 2, Modulus: slots, Type: unix.NFT_NG_RANDOM, Offset: offset},
		&expr.Lookup{SourceRegister: firstReg, DestRegister: firstReg, IsDestRegSet: true, SetName: from.name(f.is4)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.nfproto), RegAddrMin: firstReg, RegProtoMin: f.protoInNAT},
	)
}

// setMark is "meta mark set meta mark | 0x4000".
func setMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		&expr.Bitwise{
			SourceRegister: reg1, DestRegister: reg1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^mark),
			Xor:  binaryutil.NativeEndian.PutUint32(mark),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1, SourceRegister: true},
	}
}
