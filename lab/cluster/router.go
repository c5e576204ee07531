package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/fabric"
)

// router is the process of the lab's router: BIRD.
const router = fabric.Router

// The autonomous systems of the router and of the nodes, of the private range of RFC 6996.
const (
	routerASN = 64500
	nodeASN   = 64501
)

// holdTime is after how many seconds the router gives a node up that says nothing.
const holdTime = 9

// hasRouter reports whether the lab has a router that learns load balancers' addresses.
func (o Options) hasRouter() bool { return o.LoadBalancer == BalancerBGP }

// plan is the address plan of a lab with these options.
func (o Options) plan() fabric.Plan {
	return fabric.Plan{Family: o.Family, HasRouter: o.hasRouter(), TwoSubnets: o.Subnets == 2}
}

// routerConfig is BIRD's configuration: it takes sessions from every node there is or will be, and only routes to
// load balancers' addresses; several to one address are one route with several next hops.
func routerConfig(plan fabric.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "log stderr all;\nrouter id %s;\nprotocol device {}\n", routerID(plan))
	pools := plan.Routed()
	for i, own := range plan.Router() {
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
	return plan.Router()[0].Addr()
}

// routerSocket is where birdc reaches BIRD.
func (l Lab) routerSocket() string { return l.path("router", "bird.ctl") }

// startRouter starts BIRD in the router's namespace.
func (b *builder) startRouter() error {
	if !b.hasRouter() {
		return nil
	}
	dir := b.path("router")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the router's directory: %w", err)
	}
	config := b.path("router", "bird.conf")
	if err := os.WriteFile(config, []byte(routerConfig(b.plan)), 0o644); err != nil {
		return fmt.Errorf("write the router's configuration: %w", err)
	}
	cmd := exec.Command("bird", "-f", "-c", config, "-s", b.routerSocket(), "-P", b.path("router", "bird.pid"))
	return b.start(router, fabric.Router, cmd)
}

// faultRouter does what can be done to the router's BIRD; its kernel forwards on.
func (b *builder) faultRouter(f Fault) error {
	if !b.hasRouter() {
		return fmt.Errorf("the lab has no router [%s]", b.Command("up --load-balancer bgp makes one"))
	}
	process, now := b.state.process(router), wordOff
	switch {
	case f == Heal && !process.Alive():
		if err := b.startRouter(); err != nil {
			return err
		}
		b.Say("%s: started", router)
		return nil
	case f == Heal:
		if err := unix.Kill(process.PID, unix.SIGCONT); err != nil {
			return fmt.Errorf("continue the router: %w", err)
		}
		b.Say("%s: runs", router)
		return nil
	case !process.Alive():
		return b.broken(router)
	case f == Kill:
		if err := process.Kill(); err != nil {
			return err
		}
	case f == Pause:
		if err := unix.Kill(process.PID, unix.SIGSTOP); err != nil {
			return fmt.Errorf("pause the router: %w", err)
		}
		now = wordPaused
	default:
		return errors.New("the router can be killed, paused and healed [name a node for other faults]")
	}
	b.Say("%s: %s [%s undoes it]", router, now, b.healCommand(router))
	return nil
}

// OnRouter runs a command on the router, as OnNode does. birdc is told where BIRD is.
func (l Lab) OnRouter(argv []string) error {
	state, err := l.load()
	if err != nil {
		return err
	}
	if !state.Options.hasRouter() {
		return fmt.Errorf("the lab has no router [%s]", l.Command("up --load-balancer bgp makes one"))
	}
	if argv[0] == "birdc" {
		argv = append([]string{"birdc", "-s", l.routerSocket()}, argv[1:]...)
	}
	return l.inside(fabric.Router, argv)
}
