package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/fairway-net/fairway/lab/fabric"
)

// The autonomous systems of the router and of the nodes, of the private range of RFC 6996.
const (
	routerASN = 64500
	nodeASN   = 64501
)

// holdTime is after how many seconds the router gives a node up that says nothing.
const holdTime = 9

// routerConfig is BIRD's configuration: it takes sessions from every node there is or will be, and only routes to
// load balancers' addresses; several to one address are one route with several next hops.
func routerConfig(plan fabric.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "log stderr all;\nrouter id %s;\nprotocol device {}\n", routerID(plan))
	pools := plan.Routed()
	for i, own := range plan.FrontAddrs() {
		family := "ipv4"
		if own.Addr().Is6() {
			family = "ipv6"
		}
		fmt.Fprintf(&b, `protocol kernel kernel_%[1]s {
  %[1]s { import none; export all; };
  merge paths on;
}
protocol bgp nodes_%[1]s {
  local %[2]s as %[3]d;
  neighbor range %[4]s as %[5]d;
  dynamic name "node_%[1]s_";
  hold time %[6]d;
  %[1]s { import where net ~ [ %[7]s+ ]; export none; };
}
`, family, own.Addr(), routerASN, plan.NodeNets()[i].Masked(), nodeASN, holdTime, pools[i])
	}
	return b.String()
}

// routerID is an IPv4 address by which BGP's speakers tell each other apart, in every family.
func routerID(plan fabric.Plan) netip.Addr {
	plan.Family = fabric.IPv4
	return plan.FrontAddrs()[0].Addr()
}

// routerSocket is where birdc reaches BIRD.
func (l Lab) routerSocket() string { return l.path("router", "bird.ctl") }

// startRouter starts BIRD in the router's namespace.
func (b *builder) startRouter() error {
	dir := b.path("router")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the router's directory: %w", err)
	}
	config := b.path("router", "bird.conf")
	if err := os.WriteFile(config, []byte(routerConfig(b.plan)), 0o644); err != nil {
		return fmt.Errorf("write the router's configuration: %w", err)
	}
	cmd := exec.Command("bird", "-f", "-c", config, "-s", b.routerSocket(), "-P", b.path("router", "bird.pid"))
	return b.start(fabric.Router, fabric.Router, cmd)
}
