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

// inboxSize bounds the packets that wait for the loop. More packets are lost, as on a network.
const inboxSize = 4096

// A transport sends and receives heartbeats.
type transport struct {
	conn    *net.UDPConn
	key     []byte
	inbox   chan []byte
	refused func() // counts packets that are not authentic
	peers   map[string]netip.AddrPort
}

func listen(ctx context.Context, port uint16, key []byte, refused func()) (*transport, error) {
	var lc net.ListenConfig
	conn, err := lc.ListenPacket(ctx, "udp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen for heartbeats: %w [another speaker, or another program, has UDP port %d]", err, port)
	}
	udp := conn.(*net.UDPConn)
	_ = udp.SetReadBuffer(4 << 20) // the kernel may allow less
	return &transport{conn: udp, key: key, refused: refused, inbox: make(chan []byte, inboxSize), peers: map[string]netip.AddrPort{}}, nil
}

// run reads packets until the transport is closed. A packet that is not authentic takes no place in the inbox and no
// time of the loop.
func (t *transport) run() error {
	buf := make([]byte, election.MaxMessage+1)
	for {
		n, _, err := t.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			time.Sleep(time.Millisecond) // an ICMP error of an earlier packet; the pause prevents a tight loop
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

// send sends packets to peers whose address is known, and returns the number of bytes. Errors do not matter, because the
// next heartbeat repeats everything.
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
