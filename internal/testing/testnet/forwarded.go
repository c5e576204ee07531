package testnet

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// CountForwarded begins to count the packets to an address that the namespace forwards. count waits until their number
// has not changed for settle, and returns it. The next call of CountForwarded ends the count before it.
func (n *Namespace) CountForwarded(to netip.Addr) (count func() int) {
	return n.count("watch", "forward", to, "")
}

// CountDropped drops the packets to an address as they come in, and counts them as CountForwarded does.
func (n *Namespace) CountDropped(to netip.Addr) (count func() int) {
	return n.count("dropped", "prerouting", to, "drop")
}

// count adds a table with a counter.
func (n *Namespace) count(table, hook string, to netip.Addr, verdict string) func() int {
	family := "ip6"
	if to.Is4() {
		family = "ip"
	}
	n.nft("table inet %s; delete table inet %[1]s; table inet %[1]s { counter seen { }; chain at { "+
		"type filter hook %s priority 0; %s daddr %v counter name seen %s; }; }", table, hook, family, to, verdict)
	return func() (packets int) {
		for last := -1; packets != last; {
			last = packets
			time.Sleep(settle)
			out := n.nft("list counter inet %s seen", table)
			_, number, _ := strings.Cut(out, "packets ")
			if _, err := fmt.Sscan(number, &packets); err != nil {
				n.t.Fatalf("counter %q: %v", out, err)
			}
		}
		return packets
	}
}

// settle is longer than a packet needs to go round between two hosts until its TTL is used up.
const settle = 50 * time.Millisecond

// nft runs the program nft in the namespace, and returns its output.
func (n *Namespace) nft(format string, args ...any) (out string) {
	err := n.Do(func() error {
		b, err := exec.Command("nft", fmt.Sprintf(format, args...)).CombinedOutput()
		out = string(b)
		return err
	})
	if err != nil {
		n.t.Fatalf("nft in %s: %v: %s", n.Name, err, out)
	}
	return out
}

// Ping sends an ICMP echo request. It waits for no answer.
func (n *Namespace) Ping(to netip.Addr) error {
	network, msg := "ip6:ipv6-icmp", []byte{128, 0, 0, 0, 0, 1, 0, 1} // the kernel adds the checksum
	if to.Is4() {
		network, msg = "ip4:icmp", []byte{8, 0, 0, 0, 0, 1, 0, 1}
		binary.BigEndian.PutUint16(msg[2:], checksum.Of(msg))
	}
	return n.Do(func() error {
		conn, err := net.Dial(network, to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(msg)
		return err
	})
}
