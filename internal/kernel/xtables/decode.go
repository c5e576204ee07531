package xtables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// Decode makes text of a rule's expressions, which the kernel lists: the text that iptables-nft-save prints behind "-A
// CHAIN ". It knows the rules that mode iptables writes. It returns false for every other rule, and for each bit that
// it does not know: then iptables-nft must print the rule.
func Decode(is4 bool, exprs []byte) (text string, ok bool) {
	d := decoder{is4: is4}
	err := netlink.Attributes(exprs, func(_ uint16, b []byte) error { return d.expression(b) })
	if err != nil || d.unknown || d.loaded != nothing {
		return "", false
	}
	return string(d.text()), true
}

// A source is the value that an expression loads into a register for the next comparison.
type source uint8

const (
	nothing source = iota
	sourceAddress
	destination
	input
	output
	protocol
	packetMark
	port
)

// A decoder reads one rule's expressions in their order.
type decoder struct {
	is4     bool
	unknown bool

	loaded source
	bytes  uint32 // the number of bytes loaded
	mask   []byte // nil: all bits are compared

	heads   [protocol + 1][]byte // -s, -d, -i, -o, -p, by source
	proto   string
	matches []byte // " -m …"
	target  []byte // " -j …"
}

// text returns the rule's text. iptables' own options come first, as its programs print them.
func (d *decoder) text() []byte {
	var b []byte
	for _, head := range d.heads {
		b = append(b, head...)
	}
	b = append(append(b, d.matches...), d.target...)
	if len(b) > 0 {
		b = b[1:] // the space
	}
	return b
}

// expression reads one expression: its name and its attributes.
func (d *decoder) expression(b []byte) error {
	var name, data []byte
	err := netlink.Attributes(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			name = netlink.Text(b)
		case unix.NFTA_EXPR_DATA:
			data = b
		}
		return nil
	})
	if err != nil {
		return err
	}
	var a attributes
	if err := netlink.Attributes(data, a.add); err != nil {
		return err
	}
	switch string(name) {
	case "payload":
		d.payload(&a)
	case "meta":
		d.meta(&a)
	case "bitwise":
		d.bitwise(&a)
	case "cmp":
		d.compare(&a)
	case "counter":
	case "immediate":
		d.verdict(&a)
	case "match", "target":
		d.extension(string(name) == "match", &a)
	default:
		d.unknown = true
	}
	return nil
}

// attributes are an expression's attributes, by type.
type attributes [9][]byte

func (a *attributes) add(typ uint16, b []byte) error {
	if int(typ) < len(a) {
		a[typ] = b
	}
	return nil
}

// number returns an attribute's value, or 0 if it is missing.
func (a *attributes) number(typ uint16) uint32 {
	if len(a[typ]) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a[typ])
}

// value returns the nested attribute NFTA_DATA_VALUE, or nil if it is missing.
func (a *attributes) value(typ uint16) (v []byte) {
	_ = netlink.Attributes(a[typ], func(typ uint16, b []byte) error { // a truncated attribute has no value
		if typ == unix.NFTA_DATA_VALUE {
			v = b
		}
		return nil
	})
	return v
}

// load records the value of the next comparison.
func (d *decoder) load(s source, bytes uint32) {
	d.unknown = d.unknown || s == nothing || d.loaded != nothing
	d.loaded, d.bytes, d.mask = s, bytes, nil
}

// payload loads a part of the packet: an address, the first bytes of an address, or the destination port.
func (d *decoder) payload(a *attributes) {
	base, offset, size := a.number(unix.NFTA_PAYLOAD_BASE), a.number(unix.NFTA_PAYLOAD_OFFSET), a.number(unix.NFTA_PAYLOAD_LEN)
	from, to, full := uint32(8), uint32(24), uint32(16) // in the header of IPv6
	if d.is4 {
		from, to, full = 12, 16, 4
	}
	what := nothing
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && offset == from && size <= full:
		what = sourceAddress
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && offset == to && size <= full:
		what = destination
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == 2 && size == 2:
		what = port
	}
	d.load(what, size)
}

// meta loads a property of the packet.
func (d *decoder) meta(a *attributes) {
	switch a.number(unix.NFTA_META_KEY) {
	case unix.NFT_META_IIFNAME:
		d.load(input, unix.IFNAMSIZ)
	case unix.NFT_META_OIFNAME:
		d.load(output, unix.IFNAMSIZ)
	case unix.NFT_META_L4PROTO:
		d.load(protocol, 1)
	case unix.NFT_META_MARK:
		d.load(packetMark, 4)
	default:
		d.unknown = true
	}
}

// nftaBitwiseOp is NFTA_BITWISE_OP: 0 is a mask.
const nftaBitwiseOp = 6

// bitwise masks the loaded value.
func (d *decoder) bitwise(a *attributes) {
	mask, xor := a.value(unix.NFTA_BITWISE_MASK), a.value(unix.NFTA_BITWISE_XOR)
	d.unknown = d.unknown || d.loaded == nothing || d.mask != nil || uint32(len(mask)) != d.bytes ||
		a.number(nftaBitwiseOp) != 0 || !zero(xor)
	d.mask = mask
}

// compare reads the comparison of the loaded value.
func (d *decoder) compare(a *attributes) {
	op, value, what := a.number(unix.NFTA_CMP_OP), a.value(unix.NFTA_CMP_DATA), d.loaded
	d.loaded = nothing
	if op != unix.NFT_CMP_EQ && op != unix.NFT_CMP_NEQ || len(value) == 0 {
		d.unknown = true
		return
	}
	switch not := op == unix.NFT_CMP_NEQ; what {
	case sourceAddress, destination:
		d.address(what, not, value)
	case input, output:
		d.link(what, not, value)
	case protocol:
		d.protocol(not, value)
	case packetMark:
		d.mark(not, value)
	case port:
		d.port(not, value)
	default:
		d.unknown = true
	}
}

// zero reports whether all bytes are zero.
func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
