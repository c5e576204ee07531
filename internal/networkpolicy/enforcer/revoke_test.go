package enforcer

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestRevokeAnyProtocol: a flow without ports, or from port 0, ends like a connection when it loses its grant.
func TestRevokeAnyProtocol(t *testing.T) {
	r := newRig(t)
	web, client := r.host("web", 10), r.host("client", 11)
	r.is("web", "web", "node-1", 1, web.Addrs...)
	r.is("client", "client", "node-1", 1, client.Addrs...)
	r.written()
	flows := []*rawFlow{
		{network: "ip4:icmp", family: 0, ask: []byte{8, 0, 0xe5, 0xca, 0x12, 0x34, 0, 1}},
		{network: "ip6:ipv6-icmp", family: 1, ask: []byte{128, 0, 0, 0, 0x12, 0x34, 0, 1}},
		{network: "ip4:gre", family: 0, ask: []byte{0, 0, 8, 0, 1, 2, 3, 4}, answer: []byte{0, 0, 8, 0, 4, 3, 2, 1}},
		{network: "ip6:gre", family: 1, ask: []byte{0, 0, 8, 0, 1, 2, 3, 4}, answer: []byte{0, 0, 8, 0, 4, 3, 2, 1}},
		{network: "ip4:253", family: 0, ask: []byte("question"), answer: []byte("response")},
		{network: "ip6:253", family: 1, ask: []byte("question"), answer: []byte("response")},
		{network: "ip4:udp", family: 0, ask: []byte{0, 0, 0, 9, 0, 8, 0, 0}, answer: []byte{0, 9, 0, 0, 0, 8, 0, 0}},
	}
	for _, f := range flows {
		f.open(t, client, web)
		r.eventually(f.network+" is answered", func() bool { return f.arrives(t) && f.answered(t) })
	}
	name := api.Name{Namespace: "default", Name: "web"}
	r.source.setPolicy(name, &networkpolicy.Policy{Name: name, Selector: selects("web"), Isolates: [2]bool{networkpolicy.Ingress: true}})
	// Without an answer from now on: the first packet of a flow from web is allowed, and so are the answers to it.
	ends := time.Now().Add(20 * time.Second)
	for len(flows) > 0 && time.Now().Before(ends) {
		flows = slices.DeleteFunc(flows, func(f *rawFlow) bool { return !f.arrives(t) })
	}
	for _, f := range flows {
		t.Errorf("packets of %s still pass after their grant was revoked", f.network)
	}
}

// A rawFlow is a flow of IP packets between two pods. Without an answer the kernel of the other pod answers.
type rawFlow struct {
	network        string
	family         int // the index of the address: 0 is IPv4
	ask, answer    []byte
	client, server net.PacketConn
	clientAddr     net.Addr
	serverAddr     net.Addr
}

func (f *rawFlow) open(t *testing.T, client, server *testnet.Host) {
	t.Helper()
	listen := func(h *testnet.Host) (c net.PacketConn, a net.Addr) {
		err := h.Do(func() (err error) {
			c, err = net.ListenPacket(f.network, h.Addrs[f.family].String())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, &net.IPAddr{IP: h.Addrs[f.family].AsSlice()}
	}
	f.client, f.clientAddr = listen(client)
	f.server, f.serverAddr = listen(server)
}

// arrives sends a packet of the client, and reports whether it arrives.
func (f *rawFlow) arrives(t *testing.T) bool {
	t.Helper()
	f.send(t, f.client, f.ask, f.serverAddr)
	return f.receive(t, f.server, f.ask)
}

// answered sends an answer, and reports whether it arrives.
func (f *rawFlow) answered(t *testing.T) bool {
	t.Helper()
	if f.answer != nil {
		f.send(t, f.server, f.answer, f.clientAddr)
	}
	return f.receive(t, f.client, f.answer)
}

func (f *rawFlow) send(t *testing.T, c net.PacketConn, packet []byte, to net.Addr) {
	t.Helper()
	if _, err := c.WriteTo(packet, to); err != nil {
		t.Fatal(err)
	}
}

// receive waits for a packet; nil stands for the kernel's answer to an echo request.
func (f *rawFlow) receive(t *testing.T, c net.PacketConn, want []byte) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(testnet.Patience)); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 1500); ; {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return false
		}
		if got := b[:n]; bytes.Equal(got, want) || f.answer == nil && n == len(f.ask) && bytes.Equal(got[4:], f.ask[4:]) {
			return true
		}
	}
}
