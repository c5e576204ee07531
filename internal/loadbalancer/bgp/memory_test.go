package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// speakerLimit is the limit of the speaker's memory in deploy/components/load-balancer/speaker.yaml, in KiB, and
// speakerEnv is its environment there.
const (
	speakerLimit = 256 << 10
	speakerEnv   = "GOMEMLIMIT=200MiB"
)

// TestGreedyRouter: a router whose prefixes are few, but have as many attributes as BGP allows, loses its session before
// the speaker has no memory left.
func TestGreedyRouter(t *testing.T) {
	r := newRack(t, 1)
	r.nodes[0].env = []string{speakerEnv}
	var l net.Listener
	must(t, r.at.Do(func() (err error) {
		l, err = net.Listen("tcp", "172.18.0.1:179")
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			sendMuch(c, 3000, 8000)
			_ = c.Close()
		}
	}()
	r.start(0)
	var peak int
	end := time.Now().Add(patience)
	for ; !strings.Contains(r.nodes[0].log.String(), "filter what it sends to nodes") && peak < 3*speakerLimit && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		peak = peakMemory(t, r.nodes[0].cmd.Process.Pid)
	}
	if !strings.Contains(r.nodes[0].log.String(), "filter what it sends to nodes") {
		t.Errorf("the router keeps its session")
	}
	peak = peakMemory(t, r.nodes[0].cmd.Process.Pid)
	t.Logf("the speaker had %d MiB at most", peak>>10)
	if peak > speakerLimit {
		t.Errorf("the speaker had %d MiB, more than its limit of %d MiB", peak>>10, speakerLimit>>10)
	}
}

// TestGreedyClient: a node that sends few prefixes with many attributes to a route reflector is reset.
func TestGreedyClient(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	at := netip.MustParseAddrPort(l.Addr().String())
	must(t, l.Close()) // this port is free
	log := &testnet.Log{}
	routes := &ledger{of: map[sender]*account{}}
	want := &announce.Reflector{ASN: 64500, RouterID: netip.MustParseAddr("192.0.2.1"), Listen: []netip.Addr{at.Addr()}, Port: at.Port()}
	r, err := newReflector(slog.New(slog.NewTextHandler(log, nil)), want, routes, func() {}, func() {})
	must(t, err)
	t.Cleanup(r.stop)
	must(t, r.sync([]announce.Client{{SessionConfig: announce.SessionConfig{
		Peer: "node-2", LocalASN: 64500, PeerASN: 64500, Address: netip.AddrPortFrom(at.Addr(), 179), Hold: 90 * time.Second, Keepalive: 30 * time.Second, Connect: time.Second, IPv4: true, Reflected: true,
	}}}))
	for end := time.Now().Add(patience); !strings.Contains(log.String(), "the session with a node is reset") && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		ttl := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hopLimit) })
			return errors.Join(controlErr, err)
		}}
		c, err := ttl.DialContext(t.Context(), "tcp", at.String())
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			sendMuch(c, maxOfClient-1, 8000)
			_ = c.Close()
		}
	}
	await(t, log.String, "the session with a node is reset", "up=false")
	if routes.total != 0 || len(routes.of) != 0 {
		t.Errorf("after the session %d bytes of %d senders count", routes.total, len(routes.of))
	}
}

// TestSessionLeavesNothing: a session that ends leaves no goroutine, which would keep its server in memory. TestMain
// looks for goroutines.
func TestSessionLeavesNothing(t *testing.T) {
	s, err := openSession(slog.New(slog.DiscardHandler), announce.SessionConfig{
		Peer: "router", LocalASN: 64501, PeerASN: 64500, Address: netip.MustParseAddrPort("127.0.0.1:1"), RouterID: netip.MustParseAddr("192.0.2.1"),
		Hold: 90 * time.Second, Keepalive: 30 * time.Second, Connect: time.Second, IPv4: true,
	}, false, &ledger{of: map[sender]*account{}}, func() {}, func() {})
	must(t, err)
	s.close(false)
}

// TestLedger: the session with the most memory ends, once. Withdrawn and replaced routes, and sessions that have ended,
// do not count.
func TestLedger(t *testing.T) {
	prefix := func(i int) []wire.PathNLRI {
		n, err := wire.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32))
		must(t, err)
		return []wire.PathNLRI{{NLRI: n}}
	}
	l := &ledger{of: map[sender]*account{}}
	small, large := &session{}, &session{}
	const size = maxMemory / 100
	for i := range 1000 {
		if l.update(small, nil, prefix(0), size) != nil || l.update(large, nil, prefix(i), size) != nil || l.update(large, prefix(i), nil, 0) != nil {
			t.Fatalf("a session ended for replaced and withdrawn routes, after %d", i)
		}
	}
	for i := range 99 {
		if l.update(large, nil, prefix(i), size) != nil {
			t.Fatalf("a session ended below the limit, after %d", i)
		}
	}
	if greedy := l.update(small, nil, prefix(1), size); greedy != sender(large) {
		t.Error("above the limit another session than the largest ended")
	}
	if l.update(large, nil, prefix(1000), size) != nil || l.total != 2*size {
		t.Errorf("the routes of a refused session count: %d bytes, want %d", l.total, 2*size)
	}
	l.forget(large)
	l.forget(small)
	if l.total != 0 || len(l.of) != 0 {
		t.Errorf("after all sessions: %d bytes of %d sessions", l.total, len(l.of))
	}
}

// peakMemory returns the most resident memory that a process has had, in KiB.
func peakMemory(t *testing.T, pid int) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	_, err = fmt.Sscan(rest, &kib)
	must(t, err)
	return kib
}

// sendMuch is a router that sends prefixes with a count of extended communities each, as fast as it can.
func sendMuch(c net.Conn, prefixes, count int) {
	message, _ := wire.NewBGPOpenMessage(64500, 90, netip.MustParseAddr("172.18.0.1"), []wire.OptionParameterInterface{
		wire.NewOptionParameterCapability([]wire.ParameterCapabilityInterface{
			wire.NewCapMultiProtocol(wire.RF_IPv4_UC), wire.NewCapFourOctetASNumber(64500), wire.NewCapExtendedMessage(),
		}),
	})
	open, _ := message.Serialize()
	alive, _ := wire.NewBGPKeepAliveMessage().Serialize()
	if _, err := c.Write(append(open, alive...)); err != nil {
		return
	}
	header := make([]byte, wire.BGP_HEADER_LENGTH)
	for kind := byte(0); kind != wire.BGP_MSG_KEEPALIVE; kind = header[18] { // the session is up
		if _, err := io.ReadFull(c, header); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint16(header[16:]))-wire.BGP_HEADER_LENGTH); err != nil {
			return
		}
	}
	go func() { _, _ = io.Copy(io.Discard, c) }()
	var communities []wire.ExtendedCommunityInterface
	for i := range count {
		communities = append(communities, wire.NewTwoOctetAsSpecificExtended(wire.EC_SUBTYPE_ROUTE_TARGET, 1, uint32(i), true))
	}
	for i := range prefixes {
		nlri, _ := wire.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
		next, _ := wire.NewPathAttributeNextHop(netip.MustParseAddr("172.18.0.1"))
		update, err := wire.NewBGPUpdateMessage(nil, []wire.PathAttributeInterface{
			wire.NewPathAttributeOrigin(0), wire.NewPathAttributeAsPath([]wire.AsPathParamInterface{wire.NewAs4PathParam(wire.BGP_ASPATH_ATTR_TYPE_SEQ, []uint32{64500})}),
			next, wire.NewPathAttributeExtendedCommunities(communities),
		}, []wire.PathNLRI{{NLRI: nlri}}).Serialize(&wire.MarshallingOption{ExtendedMessage: true})
		if err != nil {
			panic(err)
		}
		if _, err := c.Write(update); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, c)
}
