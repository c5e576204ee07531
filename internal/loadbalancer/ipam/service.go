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

// A Service is the part of a Kubernetes Service that decides about its addresses. It is immutable.
type Service struct {
	api.Name
	Created int64 // seconds since 1970: the older Service comes first
	Labels  map[string]string
	// Wanted means that the Service must have addresses: it is of type LoadBalancer, of our class, and not deleted.
	Wanted bool
	// Families are the families of the ClusterIPs, the primary one first. The Service needs an address of both, unless
	// PreferDual.
	Families   []Family
	PreferDual bool
	Ports      []Port
	// SharingKey lets Services with the same key and Backing share an address; empty means none. Backing is the namespace
	// and the selector under externalTrafficPolicy Local, because the sharing Services must have their pods on the same
	// nodes. It is empty under Cluster.
	SharingKey, Backing string
	// Pool and Addrs are the wishes of the Service; empty means any.
	Pool  string
	Addrs []netip.Addr
	// Refused is the reason why the wishes are invalid; the Service then gets no new address.
	Refused string
	// Assigned are the addresses in the status. AssignedFrom is their pool, by the Service's annotation.
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

// holdsLike reports whether s may keep the addresses of o, because the relevant fields are equal.
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

// A Decision is the new state of a changed Service.
type Decision struct {
	api.Name
	// Addrs are the addresses, the primary family's first. Pool is the name of their pool, which may be gone.
	Addrs []netip.Addr
	// Leaving are nodes' addresses that new clients must not use. The nodes serve them while endpoints there serve. Only
	// ShareHosts sets Leaving.
	Leaving []netip.Addr
	Pool    string
	Missing string // why the Service lacks an address that it asks for; empty: it lacks none
	Events  []Event
}

// An Event is a message to the Service's owner. Reasons are MetalLB's.
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
	// ReasonRefused replaces ReasonFailed if the Service has addresses, and keeps them.
	ReasonRefused = "LoadBalancerFailed"
)
