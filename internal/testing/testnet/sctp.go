package testnet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SCTP handshakes by raw sockets, because few kernels have SCTP sockets. A client sends an INIT. A server answers with
// an INIT ACK, whose state cookie is the server's line. The association is not completed: rules of the kernel decide
// about its first packet.

// ProtocolSCTP is SCTP's protocol number.
const ProtocolSCTP = 132

// Types of chunks, and the type of the parameter with the cookie.
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpCookie  = 7

	sctpHeader  = 12
	sctpChunk   = 20 // an INIT, or an INIT ACK without parameters
	sctpInitTag = 1  // the tag of every client
)

// NATsSCTP reports whether the kernel's conntrack knows the ports of SCTP. Otherwise it cannot translate ports.
func NATsSCTP() bool {
	_, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed")
	return err == nil
}

// SCTPInit returns the packet that opens an association.
func SCTPInit(from, to uint16) []byte { return sctpPacket(sctpInit, from, to, 0, "") }

// sctpPacket returns a packet with one chunk.
func sctpPacket(kind byte, from, to uint16, tag uint32, cookie string) []byte {
	p := make([]byte, sctpHeader+sctpChunk)
	binary.BigEndian.PutUint16(p, from)
	binary.BigEndian.PutUint16(p[2:], to)
	binary.BigEndian.PutUint32(p[4:], tag)
	p[12] = kind
	binary.BigEndian.PutUint32(p[16:], sctpInitTag)
	binary.BigEndian.PutUint32(p[20:], 65536)   // window
	binary.BigEndian.PutUint32(p[24:], 1<<16|1) // streams
	if cookie != "" {
		p = binary.BigEndian.AppendUint16(p, sctpCookie)
		p = binary.BigEndian.AppendUint16(p, uint16(4+len(cookie)))
		p = append(p, cookie...)
	}
	binary.BigEndian.PutUint16(p[14:], uint16(len(p)-sctpHeader))
	p = append(p, make([]byte, -len(p)&3)...)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// sctpCookieOf returns the cookie of an INIT ACK for a port. ok is false for other packets.
func sctpCookieOf(p []byte, port uint16) (string, bool) {
	const text = sctpHeader + sctpChunk + 4
	if len(p) < text || p[sctpHeader] != sctpInitAck || binary.BigEndian.Uint16(p[2:]) != port || binary.BigEndian.Uint32(p[4:]) != sctpInitTag {
		return "", false
	}
	end := sctpHeader + int(binary.BigEndian.Uint16(p[14:]))
	return string(p[text:max(text, min(end, len(p)))]), true
}

// sctpNetwork returns the name of a raw SCTP socket in package net.
func sctpNetwork(a netip.Addr) string {
	if a.Is4() {
		return fmt.Sprintf("ip4:%d", ProtocolSCTP)
	}
	return fmt.Sprintf("ip6:%d", ProtocolSCTP)
}

// An sctpConn is a client. Each Write sends an INIT, whatever its bytes. Read returns the lines of the server.
type sctpConn struct {
	*net.IPConn
	local, to netip.AddrPort
	served    bool   // a server of this namespace has the address to
	free      func() // lets the next client of the namespace start
	deadline  time.Time
	again     time.Time // when to send the INIT again
	rest      bytes.Buffer
}

// dialSCTP opens a client. A namespace has one client at a time, because a raw socket receives the ICMP errors of all
// packets to its peer, for all ports.
func (n *Namespace) dialSCTP(to netip.AddrPort) (net.Conn, error) {
	n.sctp.Lock()
	conn, err := net.Dial(sctpNetwork(to.Addr()), to.Addr().String())
	if err != nil {
		n.sctp.Unlock()
		return nil, err
	}
	_, served := n.served.Load(to)
	c := &sctpConn{IPConn: conn.(*net.IPConn), to: to, served: served, free: n.sctp.Unlock}
	own, _ := netip.AddrFromSlice(conn.LocalAddr().(*net.IPAddr).IP)
	c.local = netip.AddrPortFrom(own.Unmap(), n.nextPort())
	return c, nil
}

func (c *sctpConn) Write(p []byte) (int, error) {
	c.again = time.Now().Add(sctpAgain)
	_, err := c.IPConn.Write(SCTPInit(c.local.Port(), c.to.Port()))
	return len(p), err
}

// sctpAgain is the time after which a client sends its INIT again. A host without SCTP should answer with an ICMP
// error. It is silent if a client of the host has opened a raw socket and not connected it yet.
const sctpAgain = 500 * time.Millisecond

// SetDeadline sets the deadline of Read. Writes never wait.
func (c *sctpConn) SetDeadline(t time.Time) error { c.deadline = t; return nil }

// SetReadDeadline is SetDeadline.
func (c *sctpConn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

func (c *sctpConn) Read(p []byte) (int, error) {
	buf := make([]byte, 1500)
	for c.rest.Len() == 0 {
		until := c.again
		last := !c.deadline.IsZero() && c.deadline.Before(until)
		if last {
			until = c.deadline
		}
		if err := c.IPConn.SetReadDeadline(until); err != nil {
			return 0, err
		}
		n, _, err := c.ReadFrom(buf) // Read would also return the IPv4 header
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !last:
			_, _ = c.Write(nil)
			continue
		case errors.Is(err, unix.ENOPROTOOPT), errors.Is(err, unix.EPROTO): // the host has no SCTP socket
			return 0, unix.ECONNREFUSED
		case err != nil:
			return 0, err
		case c.isOwnPacket(buf[:n]) && !c.served: // this raw socket prevents the ICMP error of the kernel
			return 0, unix.ECONNREFUSED
		}
		text, _ := sctpCookieOf(buf[:n], c.local.Port())
		c.rest.WriteString(text)
	}
	return c.rest.Read(p)
}

// isOwnPacket reports whether p is a packet of the client itself, which came back to its own host.
func (c *sctpConn) isOwnPacket(p []byte) bool {
	return bytes.Equal(p, SCTPInit(c.local.Port(), c.to.Port()))
}

// LocalAddr returns the address with the port. The raw socket does not know the port.
func (c *sctpConn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.local) }

func (c *sctpConn) Close() error {
	defer c.free()
	return c.IPConn.Close()
}

// serveSCTP answers each INIT.
func (n *Namespace) serveSCTP(s *server, at netip.AddrPort) error {
	pc, err := net.ListenPacket(sctpNetwork(at.Addr()), at.Addr().String())
	if err != nil {
		return err
	}
	n.served.Store(at, nil)
	s.answerPackets(pc, func(p []byte, from net.Addr) []byte {
		if len(p) < sctpHeader+sctpChunk || p[sctpHeader] != sctpInit || binary.BigEndian.Uint16(p[2:]) != at.Port() {
			return nil
		}
		port := binary.BigEndian.Uint16(p)
		client, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
		tag := binary.BigEndian.Uint32(p[sctpHeader+4:])
		return sctpPacket(sctpInitAck, at.Port(), port, tag, s.answerLine(at, netip.AddrPortFrom(client.Unmap(), port)))
	})
	s.close = func() error { n.served.Delete(at); return pc.Close() }
	return nil
}
