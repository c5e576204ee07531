package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
)

// A Fault is a way to break a machine of the lab: a node or the control plane. The machine in front supports some of
// them.
type Fault string

// The faults, and Heal, which undoes all of them.
const (
	Kill      Fault = "kill"      // power off: the machine does not answer and loses its kernel's state, its disk stays
	Pause     Fault = "pause"     // all processes stop, as on a hanging machine; the kernel still forwards packets
	Partition Fault = "partition" // the fabric drops the machine's packets, and the link stays up
	LinkDown  Fault = "link-down" // the machine loses its carrier
	Heal      Fault = "heal"
)

// Faults lists all faults.
var Faults = []Fault{Kill, Pause, Partition, LinkDown, Heal}

// A Cut limits a Partition. The zero value drops all packets.
type Cut struct {
	From   []string // drop only packets from and to these machines
	OneWay string   // fabric.In or fabric.Out, seen from the machine with the fault
}

// Fault does f to the machine target: "2", "node-2" or "control-plane". The faults of a machine add up until Heal.
func (l Lab) Fault(ctx context.Context, target string, f Fault, cut Cut, p *Progress) error {
	b, unlock, err := l.resume(ctx, p)
	if err != nil {
		return err
	}
	defer unlock()
	if target == fabric.Router || target == fabric.Edge {
		return b.faultFront(target, f)
	}
	name, err := b.machine(target)
	if err != nil {
		return err
	}
	if f == Heal {
		return b.heal(ctx, name)
	}
	if !b.state.process(name).Alive() {
		return l.broken(name)
	}
	switch f {
	case Kill:
		err = b.powerOff(name)
	case Pause:
		err = b.signal(name, unix.SIGSTOP)
	case Partition:
		err = b.cut(name, cut)
	case LinkDown:
		err = b.fabric().SetLink(name, false)
	default:
		return fmt.Errorf("unknown fault %q [choose one of %s]", f, joined(Faults))
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", f, name, err)
	}
	b.Say("%s: %s [%s undoes it]", name, strings.Join(b.faults(name), ", "), l.healCommand(name))
	return nil
}

func joined(faults []Fault) string {
	words := make([]string, len(faults))
	for i, f := range faults {
		words[i] = string(f)
	}
	return strings.Join(words, ", ")
}

// healCommand returns the command line that heals a machine.
func (l Lab) healCommand(name string) string {
	if n, ok := strings.CutPrefix(name, "node-"); ok {
		name = "node " + n
	}
	return l.Command("fault " + name + " heal")
}

func (b *builder) cut(name string, cut Cut) error {
	peers := make([]string, len(cut.From))
	for i, peer := range cut.From {
		found, err := b.machine(peer)
		if err != nil {
			return err
		}
		if found == name {
			return errors.New("it cannot be cut off from itself [name another machine with --from]")
		}
		if !b.state.process(found).Alive() {
			return b.broken(found)
		}
		if b.subnet(found) != b.subnet(name) {
			return fmt.Errorf("%s and %s are in different subnets: the switch does not see which packets are theirs [leave --from out]", name, found)
		}
		peers[i] = found
	}
	return b.fabric().Cut(name, cut.OneWay, peers...)
}

// subnet returns the number of a machine's subnet.
func (b *builder) subnet(name string) int {
	n, err := nodeNumber(name)
	if err != nil {
		return 1 // the control plane
	}
	return b.plan.Subnet(n)
}

// heal undoes all faults of a machine, and starts the machine if it is off.
func (b *builder) heal(ctx context.Context, name string) error {
	had := b.faults(name)
	if err := b.fabric().Mend(name); err != nil {
		return err
	}
	if slices.Contains(had, wordOff) {
		if err := b.powerOn(ctx, name); err != nil {
			return err
		}
		b.Say("%s: started", name)
		return nil
	}
	if err := b.fabric().SetLink(name, true); err != nil {
		return err
	}
	if err := b.signal(name, unix.SIGCONT); err != nil {
		return err
	}
	if len(had) == 0 {
		b.Say("%s: had no fault", name)
	} else {
		b.Say("%s: no longer %s", name, strings.Join(had, ", "))
	}
	return nil
}

// signal sends a signal to all processes of a machine.
func (b *builder) signal(name string, s unix.Signal) error {
	pid := b.state.process(name).PID
	if name == controlPlane {
		return unix.Kill(pid, s)
	}
	return node.Signal(pid, s)
}

// powerOff takes the link away first. Otherwise the dying processes would say goodbye to their peers, and a machine
// that loses power cannot do that.
func (b *builder) powerOff(name string) error {
	if err := b.fabric().PullPlug(name); err != nil {
		return err
	}
	if err := b.state.process(name).Kill(); err != nil {
		return err
	}
	return b.sweep(name)
}

// sweep removes the kernel's remaining state of a machine after its processes have ended.
func (b *builder) sweep(name string) error {
	if err := errors.Join(b.fabric().PullPlug(name), b.fabric().Release(name)); err != nil {
		return err
	}
	return node.RemoveCgroups(b.cgroup() + "/" + name)
}

// powerOn starts a machine from its disk.
func (b *builder) powerOn(ctx context.Context, name string) error {
	if err := b.sweep(name); err != nil {
		return err
	}
	if name != controlPlane {
		n, err := nodeNumber(name)
		if err != nil {
			return err
		}
		if err := b.fabric().PlugNode(b.plan, n); err != nil {
			return err
		}
		return b.startNode(n)
	}
	ports, err := b.listen()
	if err != nil {
		return err
	}
	defer ports.Close()
	b.ports = ports
	if err := b.fabric().PlugControlPlane(b.plan); err != nil {
		return err
	}
	if err := b.startControlPlane(); err != nil {
		return err
	}
	if err := b.guardOne(ctx, name, b.waitAPI); err != nil {
		return err
	}
	return b.routePods(ctx)
}

// The words that describe a machine's faults.
const (
	wordOff      = "off"
	wordPaused   = "paused"
	wordCutOff   = "partitioned"
	wordLinkDown = "link down"
)

// faults lists a machine's faults, as the kernel shows them.
func (b *builder) faults(name string) []string { return b.Lab.faults(b.state, name) }

func (l Lab) faults(s *State, name string) []string {
	var words []string
	r := s.process(name)
	switch {
	case !r.Alive():
		words = append(words, wordOff)
	case r.Stopped():
		words = append(words, wordPaused)
	}
	if cut, err := l.fabric().IsCut(name); err == nil && cut {
		words = append(words, wordCutOff)
	}
	if port, err := l.fabric().Port(name); err == nil && port == fabric.PortDown {
		words = append(words, wordLinkDown)
	}
	return words
}
