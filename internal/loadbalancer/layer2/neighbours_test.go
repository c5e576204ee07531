package layer2

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestRoutersAreNoNodes: a node claims the addresses of the default gateway, of its second address, and of a BGPPeer.
// Their MACs do not count as the node's.
func TestRoutersAreNoNodes(t *testing.T) {
	testnet.Enter(t)
	router, peer, node := "02:00:00:00:00:fe", "02:00:00:00:00:fa", "02:00:00:00:00:02"
	commands := [][]string{
		{"link", "add", "name", "near", "type", "veth", "peer", "name", "far"}, {"link", "set", "near", "up"}, {"link", "set", "far", "up"},
		{"address", "add", "192.0.2.1/24", "dev", "near"}, {"route", "add", "default", "via", "192.0.2.254"},
	}
	for addr, mac := range map[string]string{"192.0.2.254": router, "192.0.2.253": router, "192.0.2.250": peer, "192.0.2.2": node} {
		commands = append(commands, []string{"neighbour", "add", addr, "lladdr", mac, "dev", "near"})
	}
	for _, args := range commands {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	all, err := neighbourMACs()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"192.0.2.254", "192.0.2.253"} {
		if mac := all[netip.MustParseAddr(addr)]; mac != "" {
			t.Errorf("the gateway's MAC %s counts at %s", mac, addr)
		}
	}
	all = withoutRouters(all, []netip.Addr{netip.MustParseAddr("192.0.2.250")})
	if all[netip.MustParseAddr("192.0.2.2")] != node || all[netip.MustParseAddr("192.0.2.250")] != "" {
		t.Errorf("the nodes' MACs are %v, want 192.0.2.2's", all)
	}
}
