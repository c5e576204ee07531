package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
)

// waitDNS asks the cluster DNS from every node, at the address of the DNS Service, until it answers.
func (b *builder) waitDNS(ctx context.Context) error {
	const name = "kubernetes.default.svc.cluster.local."
	for n := 1; n <= b.Nodes; n++ {
		for _, server := range b.plan.DNS() {
			err := apiclient.Poll(ctx, 50*time.Millisecond, func(ctx context.Context) error {
				return b.fabric().Do(fabric.NodeName(n), func() error {
					return ask(ctx, netip.AddrPortFrom(server, 53), name)
				})
			})
			if err != nil {
				return fmt.Errorf("wait for DNS on %s: %w", fabric.NodeName(n), err)
			}
		}
	}
	b.Done("DNS answers on every node")
	return nil
}

// ask sends one query and expects an answer without an error.
func ask(ctx context.Context, server netip.AddrPort, name string) error {
	qname, err := dnsmessage.NewName(name)
	if err != nil {
		return fmt.Errorf("make query: %w", err)
	}
	kind := dnsmessage.TypeA
	if server.Addr().Is6() {
		kind = dnsmessage.TypeAAAA
	}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(time.Now().UnixNano()), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: qname, Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := query.Pack()
	if err != nil {
		return fmt.Errorf("pack query: %w", err)
	}
	// Each query uses a new socket. The kernel may have refused or dropped the flow of an earlier socket, because the
	// Service had no endpoints yet.
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return fmt.Errorf("dial DNS: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if _, err := conn.Write(packed); err != nil {
		return fmt.Errorf("ask DNS: %w", err)
	}
	buf := make([]byte, 1500)
	size, err := conn.Read(buf)
	if err != nil {
		return fmt.Errorf("ask DNS: %w", err)
	}
	var answer dnsmessage.Message
	if err := answer.Unpack(buf[:size]); err != nil {
		return fmt.Errorf("read DNS answer: %w", err)
	}
	if answer.RCode != dnsmessage.RCodeSuccess {
		return fmt.Errorf("DNS answers %s", answer.RCode)
	}
	if answer.ID != query.ID {
		return errors.New("DNS answers another question")
	}
	return ctx.Err()
}
