package conntrack

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/service"
)

// A set finds the Flow that describes an entry, with at most three map accesses.
type set struct {
	zone  uint16
	flows map[flow.Key]flow.Flow // in the key of an untranslated flow, Endpoint is the frontend
	// servesNodePorts is Config.NodePort.
	servesNodePorts func(netip.Addr) bool
	// local has the addresses of this machine with NodePorts. Nil: no Flow needs them.
	local map[netip.Addr]bool
}

func newSet(flows []flow.Flow, cfg Config) (*set, error) {
	s := &set{zone: cfg.Zone, servesNodePorts: cfg.NodePort, flows: make(map[flow.Key]flow.Flow, len(flows))}
	for _, f := range flows {
		if !f.Frontend.IsValid() || f.Proto == 0 {
			return nil, fmt.Errorf("%v: the frontend or the protocol is missing", f)
		}
		key := f.Key()
		if !f.Endpoint.IsValid() {
			key.Endpoint = f.Frontend
			if f.Frontend.Addr().IsUnspecified() && s.local == nil {
				var err error
				if s.local, err = LocalAddrs(); err != nil {
					return nil, err
				}
				maps.DeleteFunc(s.local, func(a netip.Addr, _ bool) bool { return !cfg.NodePort(a) })
			}
		}
		s.flows[key] = f
	}
	return s, nil
}

// LocalAddrs returns the addresses of this machine.
func LocalAddrs() (map[netip.Addr]bool, error) {
	all, err := netns.Addrs()
	if err != nil {
		return nil, err
	}
	local := map[netip.Addr]bool{}
	for _, p := range all {
		local[p.Addr()] = true
	}
	return local, nil
}

// match returns the Flow that describes the entry.
func (s *set) match(e entry) (flow.Flow, bool) {
	if !e.in(s.zone) {
		return flow.Flow{}, false
	}
	k := flow.Key{Proto: e.orig.proto, Frontend: e.orig.dst, Endpoint: e.reply.src}
	if f, ok := s.flows[k]; ok {
		return f, true
	}
	nodePort := service.Key{Addr: e.orig.dst, Proto: e.orig.proto}.NodePort().Addr
	if k.Frontend == k.Endpoint {
		// A direct flow to an endpoint with the NodePort's number is untranslated and right. So is a flow to another
		// machine.
		f, ok := s.flows[flow.Key{Proto: k.Proto, Frontend: nodePort, Endpoint: nodePort}]
		return f, ok && s.local[e.orig.dst.Addr()]
	}
	k.Frontend = nodePort
	if f, ok := s.flows[k]; ok {
		return f, true
	}
	k.OnlyUnserved = true
	f, ok := s.flows[k]
	return f, ok && !s.servesNodePorts(e.orig.dst.Addr())
}
