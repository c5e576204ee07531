package layer2

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// inboxSize bounds the packets that wait: what comes then is lost, as on a network.
const inboxSize = 4096

// A transport sends and receives heartbeats.
type transport struct {
	conn  *net.UDPConn
	key   []byte
	inbox chan []byte
	// refused counts packets that are not authentic.
	refused func()
	peers   map[string]netip.AddrPort
	port    uint16
}

func listen(ctx context.Context, port uint16, key []byte, refused func()) (*transport, error) {
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(ctx, "udp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen for heartbeats: %w [another speaker, or another program, has UDP port %d]", err, port)
	}
	udp := conn.(*net.UDPConn)
	_ = udp.SetReadBuffer(4 << 20) // as far as the kernel allows
	return &transport{conn: udp, key: key, refused: refused, inbox: make(chan []byte, inboxSize), port: port, peers: map[string]netip.AddrPort{}}, nil
}

// run reads packets until the transport is closed. What is not authentic takes no place in the inbox, and none of the
// loop's time.
func (t *transport) run() error {
	buf := make([]byte, election.MaxMessage+1)
	for {
		n, _, err := t.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			time.Sleep(time.Millisecond) // an ICMP error of an earlier packet; never a tight loop
			continue
		}
		if !election.Authentic(t.key, buf[:n]) {
			t.refused()
			continue
		}
		select {
		case t.inbox <- append([]byte(nil), buf[:n]...):
		default:
		}
	}
}

// send sends packets to those whose address is known. What is lost is sent again with the
// next heartbeat.
func (t *transport) send(packets []election.Packet) (bytes int) {
	for _, p := range packets {
		if to, ok := t.peers[p.To]; ok {
			_ = t.conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			_, _ = t.conn.WriteToUDPAddrPort(p.Data, to)
			bytes += len(p.Data)
		}
	}
	return bytes
}
