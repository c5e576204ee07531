// Sctp stands in for agnhost where the kernel has no SCTP: `agnhost connect --protocol=sctp` and `agnhost porter`, with
// raw sockets. All else it leaves to the real agnhost.
//
//	connect  INIT ──────────────▶ porter      what passes is an SCTP packet with ports, as
//	         ◀───────── INIT ACK              conntrack and the policies see it
//
// It promises the messages of agnhost: TIMEOUT and REFUSED. It carries no data: an association that began is a
// connection.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Types of chunks (RFC 9260, 3.2).
const (
	chunkInit    = 1
	chunkInitAck = 2
	chunkAbort   = 6
)

const real = "/agnhost.real"

func main() {
	args := os.Args[1:]
	switch {
	case len(args) > 0 && args[0] == "porter" && len(ports()) > 0:
		log.Fatal(serve(ports()))
	case len(args) > 1 && args[0] == "connect" && contains(args, "--protocol=sctp"):
		if err := connect(args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		log.Fatal(syscall.Exec(real, append([]string{"agnhost"}, args...), os.Environ()))
	}
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

// ports are those of SERVE_SCTP_PORT_N, which porter reads.
func ports() map[uint16]bool {
	all := map[uint16]bool{}
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		if text, ok := strings.CutPrefix(name, "SERVE_SCTP_PORT_"); ok {
			if n, err := strconv.ParseUint(text, 10, 16); err == nil {
				all[uint16(n)] = true
			}
		}
	}
	return all
}

// A packet of SCTP with one chunk that begins with a tag and a window.
type packet struct {
	from, to uint16
	tag      uint32 // of the header: the receiver's
	chunk    byte
	own      uint32 // initiate tag of INIT and INIT ACK
}

func (p packet) marshal() []byte {
	b := make([]byte, 12+20)
	binary.BigEndian.PutUint16(b, p.from)
	binary.BigEndian.PutUint16(b[2:], p.to)
	binary.BigEndian.PutUint32(b[4:], p.tag)
	b[12] = p.chunk
	binary.BigEndian.PutUint16(b[14:], 20)
	binary.BigEndian.PutUint32(b[16:], p.own)
	binary.BigEndian.PutUint32(b[20:], 65536)   // window
	binary.BigEndian.PutUint32(b[24:], 1<<16|1) // streams
	binary.BigEndian.PutUint32(b[28:], 1)       // first number
	if p.chunk == chunkInitAck {
		b = append(b, 0, 7, 0, 8, 1, 2, 3, 4) // a cookie, which every INIT ACK has
		binary.BigEndian.PutUint16(b[14:], 28)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func parse(b []byte) (p packet, ok bool) {
	if len(b) < 16 {
		return p, false
	}
	p = packet{from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]), chunk: b[12]}
	if len(b) >= 20 {
		p.own = binary.BigEndian.Uint32(b[16:])
	}
	return p, true
}

// serve answers INIT at these ports, in both families, until it fails.
func serve(ports map[uint16]bool) error {
	failed := make(chan error)
	for _, network := range []string{"ip4:132", "ip6:132"} {
		c, err := net.ListenPacket(network, "")
		if err != nil {
			return err
		}
		go func() { failed <- answer(c, ports) }()
	}
	return <-failed
}

func answer(c net.PacketConn, ports map[uint16]bool) error {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return err
		}
		p, ok := parse(b[:n])
		if !ok || p.chunk != chunkInit || !ports[p.to] {
			continue
		}
		reply := packet{from: p.to, to: p.from, tag: p.own, chunk: chunkInitAck, own: 7}
		if _, err := c.WriteTo(reply.marshal(), from); err != nil {
			log.Print(err)
		}
	}
}

// connect sends INIT until there is an answer or --timeout ends; its errors are agnhost's messages.
func connect(args []string) error {
	timeout := 3 * time.Second
	target := ""
	for _, a := range args {
		if text, ok := strings.CutPrefix(a, "--timeout="); ok {
			d, err := time.ParseDuration(text)
			if err != nil {
				return fmt.Errorf("UNKNOWN: %w", err)
			}
			timeout = d
		} else if !strings.HasPrefix(a, "-") {
			target = a
		}
	}
	to, err := netip.ParseAddrPort(target)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	network := "ip6:132"
	if to.Addr().Is4() {
		network = "ip4:132"
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, to.Addr().String())
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	defer c.Close()
	return associate(ctx, c.(*net.IPConn), to.Port())
}

func associate(ctx context.Context, c *net.IPConn, port uint16) error {
	own := packet{from: uint16(32768 + os.Getpid()%28000), to: port, chunk: chunkInit, own: uint32(time.Now().UnixNano()) | 1}
	for b := make([]byte, 2048); ctx.Err() == nil; {
		if _, err := c.Write(own.marshal()); err != nil {
			return fmt.Errorf("OTHER: %w", err)
		}
		again := time.Now().Add(time.Second)
		if end, ok := ctx.Deadline(); ok && end.Before(again) {
			again = end
		}
		if err := c.SetReadDeadline(again); err != nil {
			return fmt.Errorf("OTHER: %w", err)
		}
		for {
			n, _, err := c.ReadFrom(b) // without the header of IPv4, which Read has
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return fmt.Errorf("REFUSED: %w", err)
			}
			p, ok := parse(b[:n])
			switch {
			case !ok || p.from != port || p.to != own.from || p.tag != own.own:
			case p.chunk == chunkInitAck:
				return nil
			case p.chunk == chunkAbort:
				return errors.New("REFUSED")
			}
		}
	}
	return errors.New("TIMEOUT")
}
