package scenario

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Random generates events about a few Services with a few endpoints each. There are few, so they share addresses,
// NodePorts and pods far more often than real ones. The events depend only on the rng.
type Random struct {
	NoAffinity bool // no Service has session affinity
	NoWeights  bool // no Service asks for weights
	// Algorithms are the algorithms of the node. Services ask for others as well. If there are none, no Service asks
	// for any.
	Algorithms service.Algorithms
	rng        *rand.Rand
	// Services and Pods bound the numbers of each.
	Services, Pods int
}

// NewRandom returns a generator for 12 Services and 6 pods.
func NewRandom(rng *rand.Rand) *Random { return &Random{rng: rng, Services: 12, Pods: 6} }

// Facts returns facts with which tables of the events may be compiled.
func (r *Random) Facts() service.Facts {
	n := service.Node{Primary4: World.Node.V4, Primary6: World.Node.V6, Name: "node-1", Zone: []string{"", "a", "b"}[r.rng.IntN(3)], MasqueradeAll: r.rng.IntN(5) == 0}
	if r.Algorithms != 0 {
		n = offer(n, r.Algorithms)
		if a := service.Algorithm(r.rng.IntN(algorithms)); r.Algorithms.Has(a) {
			n.Balance = a
		}
	}
	s := &n.Settings
	s.NodePorts = primary()
	n.NodeAddrs = service.NewAddrSet(World.Node.V4, World.Node.V6)
	if r.rng.IntN(2) == 0 {
		n.APIServers = service.NewAddrSet(netip.AddrFrom4([4]byte{203, 0, 113, 4}))
	}
	if r.rng.IntN(4) > 0 {
		s.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
		s.Pods = s.Pods[:1+r.rng.IntN(2)] // sometimes IPv4 only
	}
	if r.rng.IntN(2) == 0 {
		s.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/112")}
	}
	if r.rng.IntN(2) == 0 {
		s.NodePorts = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	}
	return service.Facts{Node: n}
}

// Event returns the next change.
func (r *Random) Event() Event {
	name := api.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", r.rng.IntN(r.Services))}
	switch r.rng.IntN(10) {
	case 0:
		return Event{GoneService: name}
	case 1:
		return Event{GoneSlice: r.sliceName(name)}
	case 2, 3, 4:
		return Event{Service: r.service(name)}
	default:
		return Event{Slice: r.slice(name)}
	}
}

func (r *Random) sliceName(of api.Name) api.Name {
	return api.Name{Namespace: of.Namespace, Name: fmt.Sprintf("%s-%d", of.Name, r.rng.IntN(3))}
}

// algorithms is the number of algorithms.
const algorithms = int(service.Maglev) + 1

// ports is a short list. Two of its ports have one number and different names.
var ports = []service.Port{
	{Name: "http", Proto: api.TCP, Port: 80},
	{Name: "web", Proto: api.TCP, Port: 80},
	{Name: "dns", Proto: api.UDP, Port: 53},
	{Name: "dns-tcp", Proto: api.TCP, Port: 53},
	{Name: "", Proto: api.TCP, Port: 443},
	{Name: "sig", Proto: api.SCTP, Port: 7000},
}

// Ports returns every port that a Service may have.
func Ports() []service.Port { return slices.Clone(ports) }

func (r *Random) service(n api.Name) *service.Service {
	svc := &service.Service{
		Name: n, Created: int64(r.rng.IntN(4)),
		InternalLocal: r.rng.IntN(4) == 0, ExternalLocal: r.rng.IntN(3) == 0,
	}
	ip := 1 + r.rng.IntN(r.Services) // sometimes the address of another Service
	v4 := netip.AddrFrom4([4]byte{10, 96, 0, byte(ip)})
	v6 := netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%d", ip))
	svc.ClusterIPs = [][]netip.Addr{{v4}, {v6}, {v4, v6}, {v6, v4}, nil}[r.rng.IntN(5)]
	if r.rng.IntN(3) == 0 && !r.NoAffinity {
		svc.Affinity = []time.Duration{time.Hour, 3 * time.Hour}[r.rng.IntN(2)]
	}
	if r.Algorithms != 0 && r.rng.IntN(2) == 0 {
		svc.Balanced, svc.Balance = true, service.Algorithm(r.rng.IntN(algorithms))
	}
	svc.Weighted = !r.NoWeights && r.rng.IntN(3) == 0
	for range r.rng.IntN(3) {
		if a := r.external(); r.rng.IntN(2) == 0 {
			svc.BalancerIPs = append(svc.BalancerIPs, a)
		} else {
			svc.ExternalIPs = append(svc.ExternalIPs, a)
		}
	}
	for range max(0, r.rng.IntN(5)-2) {
		ranges := []string{"198.51.100.0/24", "172.18.0.0/16", "10.244.0.0/16", "172.18.0.12/32", "0.0.0.0/0", "2001:db8:51::/64", "fd00:172:18::/64"}
		svc.Sources = append(svc.Sources, netip.MustParsePrefix(ranges[r.rng.IntN(len(ranges))]))
	}
	for _, p := range ports {
		if r.rng.IntN(2) == 0 {
			continue
		}
		if r.rng.IntN(3) == 0 {
			p.NodePort = uint16(30000 + r.rng.IntN(6))
		}
		svc.Ports = append(svc.Ports, p)
	}
	return svc
}

// external returns an address for clients outside the cluster. It chooses from few addresses, so that Services claim
// equal ones. Sometimes it is a ClusterIP, or an address of the node.
func (r *Random) external() netip.Addr {
	n := 1 + r.rng.IntN(4)
	is4 := r.rng.IntN(2) == 0
	switch net := r.rng.IntN(8); {
	case net == 0 && is4:
		return netip.AddrFrom4([4]byte{10, 96, 0, byte(n)})
	case net == 0:
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%d", n))
	case net == 1:
		return World.Node.Addr(is4)
	case is4:
		return netip.AddrFrom4([4]byte{203, 0, 113, byte(n)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:9::%d", n))
}

// PodAddr returns the address of a pod, and its node.
func PodAddr(i int, is4 bool) (netip.Addr, string) {
	node := 1 + i%2
	if is4 {
		return netip.AddrFrom4([4]byte{10, 244, byte(node), byte(5 + i)}), fmt.Sprintf("node-%d", node)
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", node, 5+i)), fmt.Sprintf("node-%d", node)
}

// PortOf returns the number of a port on pods. It depends on the slice, as for a targetPort by name.
func PortOf(p service.Port, slice int) uint16 { return 8000 + p.Port%1000 + uint16(slice) }

func (r *Random) slice(of api.Name) *service.Slice {
	s := &service.Slice{Name: r.sliceName(of), Service: of}
	number := int(s.Name.Name[len(s.Name.Name)-1] - '0')
	for _, p := range ports {
		if r.rng.IntN(5) > 0 {
			s.Ports = append(s.Ports, service.SlicePort{Name: p.Name, Proto: p.Proto, Port: PortOf(p, number)})
		}
	}
	is4 := r.rng.IntN(2) == 0
	for range r.rng.IntN(5) {
		addr, node := PodAddr(r.rng.IntN(r.Pods), is4)
		// A terminating endpoint is ready if its Service publishes all addresses.
		e := service.SliceEndpoint{Addr: addr, Node: node, Ready: r.rng.IntN(3) > 0, Terminating: r.rng.IntN(4) == 0}
		e.Serving = e.Ready || r.rng.IntN(2) == 0
		if r.rng.IntN(3) > 0 {
			e.HasWeight, e.Weight = true, []uint16{0, 1, 2, 2, 4, 6}[r.rng.IntN(6)]
		}
		for range r.rng.IntN(2) {
			e.ZoneHints = append(e.ZoneHints, []string{"a", "b", "a", "b", ""}[r.rng.IntN(5)])
		}
		for range r.rng.IntN(2) {
			e.NodeHints = append(e.NodeHints, []string{"node-1", "node-2"}[r.rng.IntN(2)])
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}
