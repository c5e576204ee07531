//go:build uml

package node

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestNeighboursAreKept: a pod that sends to so many addresses of the nodes' network that the kernel's table of neighbours is
// full keeps no other pod from the other nodes and the routers. In a kernel of its own: all namespaces share that table.
func TestNeighboursAreKept(t *testing.T) {
	c := newCluster(t, 2, dual)
	m := c.machines[0]
	c.outside.serve()
	c.machines[1].serve()
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, file := range []string{"gc_thresh1", "gc_thresh2", "gc_thresh3"} {
			if err := os.WriteFile("/proc/sys/net/"+family+"/neigh/default/"+file, []byte("64"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.sync()
	attacker, victim, far := m.newPod(), m.newPod(), c.machines[1].newPod()
	// Those that answer need entries of the same table: here it is the node's alone that may be full.
	mac := strings.Fields(m.run("ip -o link show eth0 | sed 's/.*ether //'"))[0]
	for _, n := range []*namespace{c.outside, c.machines[1].namespace} {
		n.run(fmt.Sprintf("ip neigh replace 192.0.2.1 lladdr %[1]s dev eth0 nud permanent; ip neigh replace 2001:db8::1 lladdr %[1]s dev eth0 nud permanent", mac))
	}
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- attacker.do(func() error {
			conn, err := net.ListenUDP("udp", nil)
			if err != nil {
				return err
			}
			defer conn.Close()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return nil
				default:
				}
				for _, to := range addresses(fmt.Sprintf("192.0.2.%d", 100+i%150), fmt.Sprintf("2001:db8::bb:%x", i%4000)) {
					_, _ = conn.WriteToUDPAddrPort([]byte{0}, netip.AddrPortFrom(to, 9))
				}
				time.Sleep(time.Millisecond) // the kernel's clock stands still while a program runs
			}
		})
	}()
	// For some seconds: the first entries all end at once, and leave room for a moment.
	eventually(t, "the tables are full", func() bool {
		return overflows(t, "arp_cache") > 3000 && overflows(t, "ndisc_cache") > 3000
	})
	for i, to := range addresses(outside4.String(), outside6.String()) {
		victim.wantSource("to a router", to, m.peer.Addrs[i])
		victim.wantSource("to the other node", c.machines[1].peer.Addrs[i], victim.addrs[i])
		victim.wantSource("to its pod", far.addrs[i], victim.addrs[i])
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// overflows is how often a table of neighbours had no place for an entry.
func overflows(t *testing.T, table string) (n uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/stat/" + table)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	column := slices.Index(strings.Fields(lines[0]), "table_fulls")
	for _, line := range lines[1:] {
		count, err := strconv.ParseUint(strings.Fields(line)[column], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	return n
}
