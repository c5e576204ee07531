package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// HostPorts are the ports that pods have on the node's own addresses (hostPort). The value is immutable.
type HostPorts struct {
	Pods []HostPod
	// Addrs are the node's own addresses that other machines can reach. A port without hostIP is open on all of them.
	Addrs AddrSet
}

// A HostPod is a pod of the node with ports on the node's addresses.
type HostPod struct {
	api.Name         // the pod's
	UID      string  // the pod's; empty: not known
	Created  int64   // when the pod got its ports, as Service.Created
	Addrs    AddrSet // the pod's own
	Ports    []HostPort
}

// A HostPort is a port of the node that leads to a port of a pod.
type HostPort struct {
	Proto api.Proto
	Addr  netip.Addr // hostIP; invalid or unspecified: all addresses of the node
	Port  uint16     // on the node
	To    uint16     // on the pod
}

// Entry returns the name of the pod's Entry in a Table. It has a "/", so no Service has the same name.
func (p *HostPod) Entry() api.Name {
	return api.Name{Namespace: p.Namespace, Name: hostPodPrefix + p.Name.Name}
}

const hostPodPrefix = "pod/"

// HostPodOf returns the pod of the Entry with that name; false if it is the Entry of a Service.
func HostPodOf(entry api.Name) (pod api.Name, ok bool) {
	name, ok := strings.CutPrefix(entry.Name, hostPodPrefix)
	return api.Name{Namespace: entry.Namespace, Name: name}, ok
}

// Equal reports whether p and o have the same ports and addresses.
func (p *HostPod) Equal(o *HostPod) bool {
	return p.Name == o.Name && p.UID == o.UID && p.Created == o.Created && slices.Equal(p.Addrs, o.Addrs) && slices.Equal(p.Ports, o.Ports)
}

// CompileHostPod returns the Entry of a pod with host ports. It keeps the client's address, like the reference plugin
// portmap. This works because the pod's replies pass this node.
func CompileHostPod(p *HostPod, own AddrSet, node Node) *Entry {
	c := compilation{facts: Facts{Node: node}, entry: &Entry{Name: p.Entry(), Created: p.Created}}
	for _, port := range p.Ports {
		c.hostPort(p, port, own)
	}
	slices.SortStableFunc(c.entry.Frontends, func(a, b *Frontend) int { return a.Key().Compare(b.Key()) })
	twice := func(a, b *Frontend) bool { return a.Key() == b.Key() }
	c.entry.Frontends = slices.CompactFunc(c.entry.Frontends, twice)
	return c.entry
}

// hostPort adds the frontends of one port.
func (c *compilation) hostPort(p *HostPod, port HostPort, own AddrSet) {
	at, asked := own, port.Addr.Unmap()
	if asked.IsLoopback() {
		return // see Loopback
	}
	if asked.IsValid() && !asked.IsUnspecified() {
		if !own.Has(asked) {
			c.problem("HostIPNotOnNode", "hostIP %v is not an address of node %s; port %d/%v is left out [use an address of the node, or none]", asked, c.facts.Name, port.Port, port.Proto)
			return
		}
		at = AddrSet{asked}
	}
	name := api.PortName{Name: p.Entry(), Port: strconv.Itoa(int(port.To))}
	for _, a := range at {
		if asked.IsValid() && asked.Is4() != a.Is4() {
			continue // 0.0.0.0 stands for IPv4 only, :: for IPv6
		}
		i := slices.IndexFunc(p.Addrs, func(pod netip.Addr) bool { return pod.Is4() == a.Is4() })
		if i < 0 {
			continue // the pod has no address of this family
		}
		if exceeds(len(c.entry.Frontends)+1, c.facts.Limits.Frontends) {
			c.problem("TooManyFrontends", "the pod has more than %d host ports times addresses; the others are left out %s", c.facts.Limits.Frontends, limitAdvice)
			return
		}
		r := &Route{Endpoints: []Endpoint{{Addr: netip.AddrPortFrom(p.Addrs[i], port.To), Local: true}}, Local: true}
		c.entry.Frontends = append(c.entry.Frontends, &Frontend{
			Addr: netip.AddrPortFrom(a, port.Port), Proto: port.Proto, OnNode: true, Service: name, Internal: r, External: r,
			// The port goes when the runtime has removed the pod's network, so nothing can answer any more.
			Termination: TerminateUnready,
		})
	}
}

// Loopback returns the targets of host ports on the node's loopback addresses, 127.0.0.1 and ::1. No Table has them:
// the kernel does not forward packets with a loopback address to a pod, so a process must relay the connection. If
// several pods want a port, the oldest pod has it.
func (h HostPorts) Loopback() map[Key]netip.AddrPort {
	pods := slices.SortedFunc(slices.Values(h.Pods), func(a, b HostPod) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
	})
	all := map[Key]netip.AddrPort{}
	for _, p := range pods {
		for _, port := range p.Ports {
			for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
				asked := port.Addr.Unmap()
				if asked.IsValid() && asked != a && !(asked.IsUnspecified() && asked.Is4() == a.Is4()) {
					continue
				}
				i := slices.IndexFunc(p.Addrs, func(pod netip.Addr) bool { return pod.Is4() == a.Is4() })
				k := Key{netip.AddrPortFrom(a, port.Port), port.Proto}
				if _, taken := all[k]; i >= 0 && !taken {
					all[k] = netip.AddrPortFrom(p.Addrs[i], port.To)
				}
			}
		}
	}
	return all
}
