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

// A routerAddr is an address of the router's, and the subnet of the nodes that speak to it.
type routerAddr struct {
	subnet int
	addr   netip.Prefix
}

// routerAddrs are where nodes reach BIRD.
func (o Options) routerAddrs() (all []routerAddr) {
	plan := o.plan()
	if o.routerIn() == fabric.Router {
		for _, own := range plan.FrontAddrs() {
			all = append(all, routerAddr{1, own})
		}
		return all
	}
	for subnet := range plan.Subnets() {
		for _, own := range plan.Gateways(subnet + 1) {
			all = append(all, routerAddr{subnet + 1, own})
		}
	}
	return all
}

// routerConfig is BIRD's configuration: it takes sessions from every node there is or will be, and only routes to
// load balancers' addresses and pods, which it tells the other nodes; several to one address are one route with several next hops.
// A node that failed is taken back after seconds, not after BIRD's minute.
func (o Options) routerConfig() string {
	var b strings.Builder
	plan := o.plan()
	fmt.Fprintf(&b, "log stderr all;\nrouter id %s;\nprotocol device {}\nprotocol direct { ipv4; ipv6; }\nprotocol bfd {}\n", routerID(plan))
	bfd := ""
	if o.PodNetwork == podNetworkBGP {
		bfd = "bfd on;"
	}
	for i, pods := range plan.Pods() {
		fmt.Fprintf(&b, "protocol kernel kernel_%[1]s {\n  %[1]s { import none; export where source = RTS_BGP; };\n  merge paths on;\n}\n", familyOf(pods))
		for _, own := range o.routerAddrs() {
			if own.addr.Addr().Is4() != pods.Addr().Is4() {
				continue
			}
			fmt.Fprintf(&b, `protocol bgp nodes%[8]d_%[1]s {
  local %[2]s as %[3]d;
  neighbor range %[4]s as %[5]d;
  dynamic name "node%[8]d_%[1]s_";
  hold time %[6]d;
  error wait time 1, 5;
  %[10]s
  %[1]s { import where net ~ [ %[7]s+, %[9]s+ ]; export where source = RTS_BGP && net ~ [ %[9]s+ ]; next hop self; };
}
`, familyOf(pods), own.addr.Addr(), routerASN, own.addr.Masked(), nodeASN, holdTime, plan.Routed()[i], own.subnet, pods, bfd)
		}
	}
	return b.String()
}

func familyOf(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "ipv6"
	}
	return "ipv4"
}

// routerID is an IPv4 address by which BGP's speakers tell each other apart, in every family.
func routerID(plan fabric.Plan) netip.Addr {
	plan.Family = fabric.IPv4
	return plan.Gateway()[0].Addr()
}

// routerSocket is where birdc reaches BIRD.
func (l Lab) routerSocket() string { return l.path("router", "bird.ctl") }

// startRouter starts BIRD.
func (b *builder) startRouter() error {
	dir := b.path("router")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the router's directory: %w", err)
	}
	config := b.path("router", "bird.conf")
	if err := os.WriteFile(config, []byte(b.routerConfig()), 0o644); err != nil {
		return fmt.Errorf("write the router's configuration: %w", err)
	}
	cmd := exec.Command("bird", "-f", "-c", config, "-s", b.routerSocket(), "-P", b.path("router", "bird.pid"))
	return b.start(fabric.Router, b.routerIn(), cmd)
}
