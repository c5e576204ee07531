package ipam

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// A Family is an address family: 4 or 6.
type Family uint8

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// A Service is what this package needs to know of a Kubernetes Service. It is immutable.
type Service struct {
	api.Name
	Created int64 // seconds since 1970: the older Service goes first
	Labels  map[string]string
	// Wanted: the Service is to have addresses: it is of type LoadBalancer, of our class and
	// not being deleted.
	Wanted bool
	// Families are those of its ClusterIPs, the primary one first. Of two, both must be
	// served unless PreferDual.
	Families   []Family
	PreferDual bool
	Ports      []Port
	// SharingKey lets it share its address with Services of the same key (empty: with none),
	// whose Backing is the same: the namespace and selector under externalTrafficPolicy Local, since
	// all of them must have their pods on the same nodes; empty under Cluster.
	SharingKey, Backing string
	// Pool and Addrs are what it asks for; empty: anything.
	Pool  string
	Addrs []netip.Addr
	// Refused says why what it asks for makes no sense; it gets nothing new then.
	Refused string
	// Assigned is what its status says, and AssignedFrom the pool that it is said to come from.
	Assigned     []netip.Addr
	AssignedFrom string
}

// A Port is a port that clients use.
type Port struct {
	Proto api.Proto
	Port  uint16
}

// compareAge orders Services, the oldest first.
func compareAge(a, b *Service) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
}

// holdsLike reports whether s may have the addresses that o has: nothing has changed on which
// that depends.
func (s *Service) holdsLike(o *Service) bool {
	return s.SharingKey == o.SharingKey && s.Backing == o.Backing && slices.Equal(s.Families, o.Families) && slices.Equal(s.Ports, o.Ports)
}

// missing returns the families that a Service with these addresses lacks.
func (s *Service) missing(have []netip.Addr) []Family {
	return slices.DeleteFunc(slices.Clone(s.Families), func(f Family) bool {
		return slices.ContainsFunc(have, func(a netip.Addr) bool { return FamilyOf(a) == f })
	})
}

// sorted returns addresses in the order of the Service's families.
func (s *Service) sorted(addrs []netip.Addr) []netip.Addr {
	out := slices.Clone(addrs)
	slices.SortFunc(out, func(a, b netip.Addr) int {
		return cmp.Compare(slices.Index(s.Families, FamilyOf(a)), slices.Index(s.Families, FamilyOf(b)))
	})
	return out
}

// sameAddrs compares two sets of addresses.
func sameAddrs(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

// A Decision is what became of a Service, if anything has changed for it.
type Decision struct {
	api.Name
	// Addrs are its addresses, the primary family's first, and Pool is where they come from:
	// by name, whether or not the pool still is there.
	Addrs []netip.Addr
	// Leaving are nodes' addresses that new clients are not to use, and that are served as long as endpoints there
	// serve. Of ShareHosts only.
	Leaving []netip.Addr
	Pool    string
	Events  []Event
}

// An Event is something that the Service's owner wants to know. Reasons are MetalLB's.
type Event struct {
	Reason, Message string
	Warning         bool
}

// The reasons of Events.
const (
	ReasonAllocated        = "IPAllocated"
	ReasonFailed           = "AllocationFailed"
	ReasonAdditionalFailed = "AdditionalAssignFailed"
	ReasonCleared          = "ClearAssignment"
	// ReasonRefused is instead of ReasonFailed where the Service has addresses, and keeps them.
	ReasonRefused = "LoadBalancerFailed"
)
