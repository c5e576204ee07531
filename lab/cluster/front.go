package cluster

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/fabric"
)

// fronts maps each load balancer to the machine between the client and the nodes.
var fronts = map[string]string{BalancerBGP: fabric.Router, BalancerEdge: fabric.Edge}

// front returns the name of the machine between the client and the nodes, or "" if there is none.
func (o Options) front() string { return fronts[o.LoadBalancer] }

// plan returns the address plan of a lab with these options.
func (o Options) plan() fabric.Plan {
	return fabric.Plan{Family: o.Family, Front: o.front(), TwoSubnets: o.Subnets == 2}
}

// routerIn returns the namespace in which BIRD runs, or "" if the lab runs no BIRD. If the lab has a router in front,
// this is the router's namespace. Otherwise, if BGP carries the pods' packets, it is the fabric's.
func (o Options) routerIn() string {
	switch {
	case o.front() == fabric.Router:
		return fabric.Router
	case o.PodNetwork == podNetworkBGP:
		return fabric.Switch
	}
	return ""
}

// needsFront returns an error if the lab has neither the machine called name in front nor BIRD in the role of the
// router.
func (l Lab) needsFront(o Options, name string) error {
	if o.front() == name || name == fabric.Router && o.routerIn() != "" {
		return nil
	}
	for balancer, front := range fronts {
		if front == name {
			return fmt.Errorf("the lab has no %s [%s makes one]", name, l.Command("up --load-balancer "+balancer))
		}
	}
	return fmt.Errorf("no machine %q", name)
}

// startFront starts the program of the machine in front.
func (b *builder) startFront() error {
	if b.front() == fabric.Edge {
		return b.startEdge()
	}
	return b.startRouter()
}

// faultFront stops, pauses or heals the process of the machine in front. The machine's kernel keeps forwarding packets.
func (b *builder) faultFront(name string, f Fault) error {
	if err := b.needsFront(b.Options, name); err != nil {
		return err
	}
	process, now := b.state.process(name), wordOff
	switch {
	case f == Heal && !process.Alive():
		if err := b.startFront(); err != nil {
			return err
		}
		b.Say("%s: started", name)
		return nil
	case f == Heal:
		if err := unix.Kill(process.PID, unix.SIGCONT); err != nil {
			return fmt.Errorf("continue the %s: %w", name, err)
		}
		b.Say("%s: runs", name)
		return nil
	case !process.Alive():
		return b.broken(name)
	case f == Kill:
		if err := process.Kill(); err != nil {
			return err
		}
	case f == Pause:
		if err := unix.Kill(process.PID, unix.SIGSTOP); err != nil {
			return fmt.Errorf("pause the %s: %w", name, err)
		}
		now = wordPaused
	default:
		return fmt.Errorf("the %s can be killed, paused and healed [name a node for other faults]", name)
	}
	b.Say("%s: %s [%s undoes it]", name, now, b.healCommand(name))
	return nil
}

// OnFront runs a command on the machine in front, in the same way as OnNode. name is fabric.Router or fabric.Edge.
// birdc gets the path of BIRD's socket, and fairway runs the edge's own program.
func (l Lab) OnFront(name string, argv []string) error {
	state, err := l.load()
	if err != nil {
		return err
	}
	if err := l.needsFront(state.Options, name); err != nil {
		return err
	}
	switch {
	case argv[0] == "birdc":
		argv = append([]string{"birdc", "-s", l.routerSocket()}, argv[1:]...)
	case name == fabric.Edge:
		if err := os.Setenv("PATH", l.edgeDir()+":"+os.Getenv("PATH")); err != nil {
			return fmt.Errorf("set PATH: %w", err)
		}
	}
	if name == fabric.Router {
		name = state.Options.routerIn()
	}
	return l.inside(name, argv)
}
