package volley

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

const (
	flagSYN, flagRST, flagACK = 2, 4, 16

	sctpInit, sctpInitAck, sctpAbort = 1, 2, 6

	// hops is enough to cross the network. It is small, because a packet may be in a loop.
	hops = 16
)

// header puts a network header before a payload.
func header(src, dst netip.Addr, proto uint8, payload []byte) []byte {
	if src.Is4() {
		h := make([]byte, 20, 20+len(payload))
		h[0] = 0x45
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
		h[8], h[9] = hops, proto
		copy(h[12:], src.AsSlice())
		copy(h[16:], dst.AsSlice())
		return append(h, payload...) // the kernel adds the checksum
	}
	h := make([]byte, 40, 40+len(payload))
	h[0] = 0x60
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	h[6], h[7] = proto, hops
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	return append(h, payload...)
}

// syn is a TCP segment that opens a connection. Its sequence number is the probe's id.
func syn(src, dst netip.AddrPort, id uint32) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b[0:], src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint32(b[4:], id)
	b[12], b[13] = 5<<4, flagSYN
	binary.BigEndian.PutUint16(b[14:], 64240)
	binary.BigEndian.PutUint16(b[16:], checksum.Transport(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, b))
	return b
}

func datagram(src, dst netip.AddrPort, text string) []byte {
	b := make([]byte, 8, 8+len(text))
	b = append(b, text...)
	binary.BigEndian.PutUint16(b[0:], src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	sum := checksum.Transport(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, b)
	if sum == 0 {
		sum = 0xffff // 0 means no checksum
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return b
}

// chunk returns an SCTP packet with an INIT, an INIT-ACK or an ABORT. The tag of the INIT is the probe's id. The others
// have the id as verification tag.
func chunk(src, dst netip.AddrPort, kind uint8, id uint32) []byte {
	b := make([]byte, 12, 40)
	binary.BigEndian.PutUint16(b[0:], src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	if kind != sctpInit {
		binary.BigEndian.PutUint32(b[4:], id)
	}
	b = append(b, kind, 0, 0, 4)
	if kind != sctpAbort {
		b = binary.BigEndian.AppendUint32(b, id)
		b = append(b, 0, 0, 250, 240, 0, 1, 0, 1) // window, streams
		b = binary.BigEndian.AppendUint32(b, id)
	}
	if kind == sctpInitAck {
		b = append(b, 0, 7, 0, 8, 1, 2, 3, 4) // the state cookie
	}
	binary.BigEndian.PutUint16(b[14:], uint16(len(b)-12))
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// tcp gets the SYNs at endpoints, and SYN-ACKs and resets at clients.
func (f *Field) tcp(t *tap, p packet) {
	if len(p.data) < 20 {
		return
	}
	src, dst := binary.BigEndian.Uint16(p.data[0:]), binary.BigEndian.Uint16(p.data[2:])
	seq, ack := binary.BigEndian.Uint32(p.data[4:]), binary.BigEndian.Uint32(p.data[8:])
	switch p.data[13] & (flagSYN | flagRST | flagACK) {
	case flagSYN:
		if s := f.shotOf(seq); s != nil {
			f.arrived(s, t.at, netip.AddrPortFrom(p.dst, dst), p.src)
		}
	case flagSYN | flagACK:
		if s := f.shotOf(ack - 1); s != nil && s.From == t.at && portOf(ack-1) == dst {
			f.told(s, Answered, netip.AddrPortFrom(p.src, src))
		}
	case flagRST | flagACK:
		if s := f.shotOf(ack - 1); s != nil && s.From == t.at && portOf(ack-1) == dst {
			f.told(s, Reset, netip.AddrPortFrom(p.src, src))
		}
	}
}

// udp gets the answers that arrive at clients. An answer names the endpoint: see testnet.Host.Serve.
func (f *Field) udp(t *tap, p packet) {
	if len(p.data) < 8 {
		return
	}
	s := f.shotFrom(t.at, binary.BigEndian.Uint16(p.data[2:]))
	words := strings.Fields(string(p.data[8:]))
	if s == nil || len(words) != 4 || words[2] != "saw" {
		return // a probe
	}
	at, err := netip.ParseAddrPort(words[1])
	if err != nil {
		return
	}
	seen, err := netip.ParseAddrPort(words[3])
	if err != nil {
		return
	}
	f.told(s, Answered, netip.AddrPortFrom(p.src, binary.BigEndian.Uint16(p.data[0:])))
	f.arrived(s, f.stations[words[0]], at, seen.Addr())
}

// sctp answers in place of a server, which the kernel does not have.
func (f *Field) sctp(t *tap, p packet) {
	if len(p.data) < 16 {
		return
	}
	src := netip.AddrPortFrom(p.src, binary.BigEndian.Uint16(p.data[0:]))
	dst := netip.AddrPortFrom(p.dst, binary.BigEndian.Uint16(p.data[2:]))
	if p.data[12] != sctpInit {
		id := binary.BigEndian.Uint32(p.data[4:])
		if s := f.shotOf(id); s != nil && s.From == t.at && portOf(id) == dst.Port() {
			f.told(s, map[byte]Verdict{sctpInitAck: Answered, sctpAbort: Reset}[p.data[12]], src)
		}
		return
	}
	if len(p.data) < 20 {
		return
	}
	id, answer := binary.BigEndian.Uint32(p.data[16:]), uint8(sctpAbort)
	s := f.shotOf(id)
	if s == nil {
		return
	}
	if slices.Contains(f.sctpPorts, dst.Port()) {
		answer = sctpInitAck
		f.arrived(s, t.at, dst, p.src)
	}
	_ = t.at.write(dst, src, unix.IPPROTO_SCTP, chunk(dst, src, answer, id)) // an error shows as silence
}

// icmp gets the ICMP errors. They contain the packet of the client.
func (f *Field) icmp(t *tap, p packet) {
	unreachable, port, length := byte(1), byte(4), 40
	if t.is4 {
		unreachable, port, length = 3, 3, 20
	}
	if len(p.data) < 8+length+8 || p.data[0] != unreachable {
		return
	}
	inner := p.data[8:]
	if t.is4 {
		length = int(inner[0]&15) * 4
	}
	if len(inner) < length+4 {
		return
	}
	var to netip.Addr
	if t.is4 {
		to = netip.AddrFrom4([4]byte(inner[16:20]))
	} else {
		to = netip.AddrFrom16([16]byte(inner[24:40]))
	}
	s := f.shotFrom(t.at, binary.BigEndian.Uint16(inner[length:]))
	if s == nil || s.To != netip.AddrPortFrom(to, binary.BigEndian.Uint16(inner[length+2:])) {
		return
	}
	if p.data[1] == port {
		f.told(s, Refused, netip.AddrPort{})
	} else {
		f.told(s, Lost, netip.AddrPort{})
	}
}
