package xtables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// This file reads matches and targets of xtables: a name, a revision, and a struct of linux/netfilter/xt_*.h.

// extension reads a match or a target.
func (d *decoder) extension(isMatch bool, a *attributes) {
	key := fmt.Sprintf("%s %d", netlink.Text(a[unix.NFTA_MATCH_NAME]), a.number(unix.NFTA_MATCH_REV))
	read := targets[key]
	if isMatch {
		read = matches[key]
	}
	if info := a[unix.NFTA_MATCH_INFO]; read.f == nil || len(info) < read.size || !read.f(d, info) {
		d.unknown = true
	}
}

// A known reads one revision of a match or a target.
type known struct {
	size int                             // the minimum size of the struct
	f    func(d *decoder, b []byte) bool // reports whether it knows each bit of the struct
}

var native = binary.NativeEndian

var matches = map[string]known{
	"comment 0":   {1, (*decoder).comment},
	"tcp 0":       {12, (*decoder).tcp},
	"udp 0":       {9, (*decoder).udp},
	"sctp 0":      {292, (*decoder).sctp},
	"statistic 0": {16, (*decoder).statistic},
	"addrtype 1":  {8, (*decoder).addrtype},
	"mark 1":      {9, func(d *decoder, b []byte) bool { return d.xtMark("mark", b) }},
	"connmark 1":  {9, func(d *decoder, b []byte) bool { return d.xtMark("connmark", b) }},
	"conntrack 3": {162, (*decoder).conntrack},
}

var targets = map[string]known{
	"MARK 2":       {8, (*decoder).setMark},
	"CONNMARK 1":   {13, (*decoder).setConnmark},
	"CONNMARK 2":   {15, (*decoder).setConnmark},
	"MASQUERADE 0": {4, (*decoder).masquerade},
	"DNAT 2":       {42, (*decoder).dnat},
	"REJECT 0":     {4, (*decoder).reject},
}

func (d *decoder) comment(b []byte) bool {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	d.match("comment --comment ")
	d.matches = append(d.matches, Quote(string(b))...)
	return len(b) > 0
}

// ports reads the two port ranges of a protocol's match. It knows one destination port or all, and all source ports.
func (d *decoder) ports(name string, from, to []byte) bool {
	d.match(name)
	first, last := native.Uint16(to), native.Uint16(to[2:])
	if first != 0 || last != 0xffff {
		d.portTo(false, first)
	}
	return (first == last || first == 0 && last == 0xffff) && native.Uint16(from) == 0 && native.Uint16(from[2:]) == 0xffff
}

func (d *decoder) tcp(b []byte) bool { return d.ports("tcp", b, b[4:]) && zero(b[8:12]) } // option, flags
func (d *decoder) udp(b []byte) bool { return d.ports("udp", b, b[4:]) && b[8] == 0 }

// sctp reads struct xt_sctp_info. It does not know chunks.
func (d *decoder) sctp(b []byte) bool {
	d.match("sctp")
	flags, first, last := native.Uint32(b[284:]), native.Uint16(b), native.Uint16(b[2:])
	if flags == 2 { // XT_SCTP_DEST_PORTS
		d.portTo(false, first)
		return first == last && native.Uint32(b[288:]) == 0
	}
	return flags == 0 && zero(b[288:292])
}

func (d *decoder) statistic(b []byte) bool {
	mode, flags := native.Uint16(b), native.Uint16(b[2:])
	switch mode {
	case 0:
		d.match("statistic --mode random --probability ")
		d.matches = fmt.Appendf(d.matches, "%.11f", float64(native.Uint32(b[4:]))/(1<<31))
	case 1:
		d.match("statistic --mode nth --every ")
		d.matches = fmt.Appendf(d.matches, "%d --packet %d", native.Uint32(b[4:])+1, native.Uint32(b[8:]))
	}
	return mode <= 1 && flags == 0
}

func (d *decoder) addrtype(b []byte) bool {
	const local = 1 << unix.RTN_LOCAL
	from, to := native.Uint16(b), native.Uint16(b[2:])
	d.match("addrtype")
	if from == local {
		d.matches = append(d.matches, " --src-type LOCAL"...)
	}
	if to == local {
		d.matches = append(d.matches, " --dst-type LOCAL"...)
	}
	return (from == 0 || from == local) && (to == 0 || to == local) && native.Uint32(b[4:]) == 0
}

func (d *decoder) xtMark(name string, b []byte) bool {
	d.markMatch(name, b[8] == 1, native.Uint32(b), native.Uint32(b[4:]))
	return b[8] <= 1
}

// conntrack reads struct xt_conntrack_mtinfo3. It knows only the state.
func (d *decoder) conntrack(b []byte) bool {
	flags, inverted, state := native.Uint16(b[146:]), native.Uint16(b[148:]), native.Uint16(b[150:])
	var names []string
	for i, name := range []string{"INVALID", "NEW", "RELATED", "ESTABLISHED"} {
		if bit := [...]uint16{1, 8, 4, 2}[i]; state&bit != 0 {
			names = append(names, name)
			state &^= bit
		}
	}
	d.match("conntrack --ctstate ")
	d.matches = append(d.matches, strings.Join(names, ",")...)
	return flags == 1 && inverted == 0 && state == 0 && len(names) > 0 // XT_CONNTRACK_STATE
}

func (d *decoder) setMark(b []byte) bool {
	d.setTarget(fmt.Sprintf(" -j MARK --set-xmark 0x%x/0x%x", native.Uint32(b), native.Uint32(b[4:])))
	return true
}

// setConnmark reads both revisions of struct xt_connmark_tginfo. The second can shift.
func (d *decoder) setConnmark(b []byte) bool {
	d.setTarget(fmt.Sprintf(" -j CONNMARK --set-xmark 0x%x/0x%x", native.Uint32(b), native.Uint32(b[4:])))
	return zero(b[12:min(len(b), 15)]) // XT_CONNMARK_SET
}

// masquerade reads the structs of both families.
func (d *decoder) masquerade(b []byte) bool {
	const randomFully = 1 << 4 // NF_NAT_RANGE_PROTO_RANDOM_FULLY
	flags := native.Uint32(b)
	if d.is4 { // the struct begins with the number of ranges
		if flags != 1 || len(b) < 8 {
			return false
		}
		flags = native.Uint32(b[4:])
	}
	to := " -j MASQUERADE"
	if flags == randomFully {
		to += " --random-fully"
	}
	d.setTarget(to)
	return flags == 0 || flags == randomFully
}

// dnat reads struct nf_nat_range2. It knows one address with one port.
func (d *decoder) dnat(b []byte) bool {
	const addressAndPort = 1<<0 | 1<<1 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED
	size := 16
	if d.is4 {
		size = 4
	}
	first, last := b[4:4+size], b[20:20+size]
	addr, _ := netip.AddrFromSlice(first)
	port := binary.BigEndian.Uint16(b[36:])
	d.setTarget(" -j DNAT --to-destination " + netip.AddrPortFrom(addr, port).String())
	return native.Uint32(b) == addressAndPort && bytes.Equal(first, last) && port == binary.BigEndian.Uint16(b[38:])
}

func (d *decoder) reject(b []byte) bool {
	with, unreachable, reset := "icmp6-port-unreachable", uint32(4), uint32(6) // IP6T_ICMP6_PORT_UNREACH, IP6T_TCP_RESET
	if d.is4 {
		with, unreachable, reset = "icmp-port-unreachable", 3, 7 // IPT_ICMP_PORT_UNREACHABLE, IPT_TCP_RESET
	}
	n := native.Uint32(b)
	if n == reset {
		with = "tcp-reset"
	}
	d.setTarget(" -j REJECT --reject-with " + with)
	return n == unreachable || n == reset
}
