package xtables

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// iptables-nft writes iptables' own options as expressions of nf_tables. This file reads them, and verdicts.

// head sets one of iptables' own options. A rule has each option at most once.
func (d *decoder) head(what source, not bool, option, value string) {
	if d.heads[what] != nil {
		d.unknown = true
		return
	}
	b := make([]byte, 0, len(option)+len(value)+4)
	if not {
		b = append(b, " !"...)
	}
	d.heads[what] = append(append(append(append(b, ' '), option...), ' '), value...)
}

// address reads a comparison with an address or with the first bytes of an address.
func (d *decoder) address(what source, not bool, value []byte) {
	size := 16
	if d.is4 {
		size = 4
	}
	var full [16]byte
	length, known := 8*len(value), true
	if d.mask != nil {
		var all int
		length, all = net.IPMask(d.mask).Size()
		known = all > 0 // the mask is ones, then zeros
	}
	if copy(full[:], value) != len(value) || len(value) > size || uint32(len(value)) != d.bytes || !known {
		d.unknown = true
		return
	}
	addr, _ := netip.AddrFromSlice(full[:size])
	option := "-s"
	if what == destination {
		option = "-d"
	}
	d.head(what, not, option, netip.PrefixFrom(addr, length).String())
}

// link reads a comparison with an interface's name, or with the first bytes of a name.
func (d *decoder) link(what source, not bool, value []byte) {
	name := string(netlink.Text(value))
	if len(name) == len(value) {
		name += "+"
	}
	for _, c := range name {
		if c <= ' ' || c > '~' {
			d.unknown = true
		}
	}
	option := "-i"
	if what == output {
		option = "-o"
	}
	d.unknown = d.unknown || d.mask != nil
	d.head(what, not, option, name)
}

// protocols are the names of the known protocols.
var protocols = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}

func (d *decoder) protocol(not bool, value []byte) {
	name := protocols[value[0]]
	if name == "" || len(value) != 1 || d.mask != nil {
		d.unknown = true
		return
	}
	if !not {
		d.proto = name
	}
	d.head(protocol, not, "-p", name)
}

// mark reads a comparison with the packet's mark.
func (d *decoder) mark(not bool, value []byte) {
	mask := uint32(0xffffffff)
	if d.mask != nil {
		mask = binary.NativeEndian.Uint32(d.mask)
	}
	if len(value) != 4 {
		d.unknown = true
		return
	}
	d.markMatch("mark", not, binary.NativeEndian.Uint32(value), mask)
}

// markMatch adds the match of a mark: "mark" for the packet's, "connmark" for the connection's.
func (d *decoder) markMatch(name string, not bool, mark, mask uint32) {
	d.match(name)
	if not {
		d.matches = append(d.matches, " !"...)
	}
	d.matches = fmt.Appendf(d.matches, " --mark %#x", mark)
	if mask != 0xffffffff {
		d.matches = fmt.Appendf(d.matches, "/%#x", mask)
	}
}

// port reads a comparison with the destination port.
func (d *decoder) port(not bool, value []byte) {
	if len(value) != 2 || d.mask != nil || d.proto == "" || d.proto == "sctp" {
		d.unknown = true
		return
	}
	d.match(d.proto)
	d.portTo(not, binary.BigEndian.Uint16(value))
}

// portTo adds the option of a protocol's match.
func (d *decoder) portTo(not bool, port uint16) {
	if not {
		d.matches = append(d.matches, " !"...)
	}
	d.matches = strconv.AppendUint(append(d.matches, " --dport "...), uint64(port), 10)
}

// match begins a match.
func (d *decoder) match(name string) { d.matches = append(append(d.matches, " -m "...), name...) }

// Verdicts of nf_tables.
const (
	verdictJump   = -3
	verdictGoto   = -4
	verdictReturn = -5
)

// verdict reads the verdict on the packet.
func (d *decoder) verdict(a *attributes) {
	var chain []byte
	code, there := int32(0), false
	err := netlink.Attributes(a[unix.NFTA_IMMEDIATE_DATA], func(typ uint16, b []byte) error {
		if typ != unix.NFTA_DATA_VERDICT {
			return nil
		}
		return netlink.Attributes(b, func(typ uint16, b []byte) error {
			switch {
			case typ == unix.NFTA_VERDICT_CODE && len(b) == 4:
				code, there = int32(binary.BigEndian.Uint32(b)), true
			case typ == unix.NFTA_VERDICT_CHAIN:
				chain = netlink.Text(b)
			}
			return nil
		})
	})
	to := ""
	switch {
	case err != nil || !there || a.number(unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT:
	case code == verdictJump:
		to = " -j " + string(chain)
	case code == verdictGoto:
		to = " -g " + string(chain)
	case code == verdictReturn:
		to = " -j RETURN"
	case code == 1: // NF_ACCEPT
		to = " -j ACCEPT"
	case code == 0: // NF_DROP
		to = " -j DROP"
	}
	d.setTarget(to)
}

// setTarget records the target. A rule has at most one.
func (d *decoder) setTarget(text string) {
	d.unknown = d.unknown || text == "" || d.target != nil
	d.target = []byte(text)
}
