package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/fairway-net/fairway/lab/fabric"
)

// The autonomous systems of the router and of the nodes, from the private range of RFC 6996.
const (
	routerASN = 64500
	nodeASN   = 64501
)

// holdTime is the time in seconds after which the router gives up a silent node.
const holdTime = 9

// A routerAddr is an address of the router, and the number of the subnet whose nodes use it.
type routerAddr struct {
	subnet int
	addr   netip.Prefix
}

// routerAddrs returns the addresses at which nodes reach BIRD.
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

// routerConfig returns BIRD's configuration. BIRD accepts a session from any node. It accepts only routes to
// load-balancer addresses and to pods, and passes the pods' routes to the other nodes. Several routes to one address
// become one route with several next hops. The error wait time is some seconds instead of BIRD's minute, so that a node
// which failed returns soon.
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

// routerID returns the IPv4 address that identifies the router in BGP, in every family.
func routerID(plan fabric.Plan) netip.Addr {
	plan.Family = fabric.IPv4
	return plan.Gateway()[0].Addr()
}

// routerSocket returns the path of BIRD's control socket.
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
