package conntrack

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
)

// A set says of an entry whether it is one of the Flows, in the time of two lookups.
type set struct {
	zone  uint16
	flows map[Flow]struct{} // an untranslated one has its frontend as its endpoint
	serve func(netip.Addr) bool
	// local are this machine's addresses with NodePorts; nil unless asked about.
	local map[netip.Addr]bool
}

func newSet(flows []Flow, cfg Config) (*set, error) {
	s := &set{zone: cfg.Zone, serve: cfg.NodePort, flows: make(map[Flow]struct{}, len(flows))}
	for _, f := range flows {
		if !f.Frontend.IsValid() || f.Proto == 0 {
			return nil, fmt.Errorf("%v: the frontend or the protocol is missing", f)
		}
		if !f.Endpoint.IsValid() {
			f.Endpoint = f.Frontend
			if f.Frontend.Addr().IsUnspecified() && s.local == nil {
				var err error
				if s.local, err = LocalAddrs(); err != nil {
					return nil, err
				}
				maps.DeleteFunc(s.local, func(a netip.Addr, _ bool) bool { return !cfg.NodePort(a) })
			}
		}
		s.flows[f] = struct{}{}
	}
	return s, nil
}

// LocalAddrs returns the addresses of this machine.
func LocalAddrs() (map[netip.Addr]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	local := map[netip.Addr]bool{}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			local[p.Addr()] = true
		}
	}
	return local, nil
}

func (s *set) has(e entry) bool {
	if !e.in(s.zone) {
		return false
	}
	f := Flow{Proto: e.orig.proto, Frontend: e.orig.dst, Endpoint: e.reply.src}
	if s.holds(f) {
		return true
	}
	everywhere := netip.AddrPortFrom(unspecified(e.is4()), e.orig.dst.Port())
	if f.Frontend != f.Endpoint {
		f.Frontend = everywhere
		if s.holds(f) {
			return true
		}
		f.Unserved = true
		return s.holds(f) && !s.serve(e.orig.dst.Addr())
	}
	// A flow straight to an endpoint whose port is the NodePort's is not translated
	// either, and right. So is one to another machine.
	return s.local[e.orig.dst.Addr()] && s.holds(Flow{Proto: f.Proto, Frontend: everywhere, Endpoint: everywhere})
}

func (s *set) holds(f Flow) bool {
	_, ok := s.flows[f]
	return ok
}

func unspecified(is4 bool) netip.Addr {
	if is4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
