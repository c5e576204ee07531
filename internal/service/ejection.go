package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// EjectionOff ejects no endpoint.
const EjectionOff time.Duration = -1

// The limits of the first ejection of an endpoint. Each further ejection in a row takes twice as long, up to
// maxEjection.
const (
	minEjection = time.Second
	maxEjection = 5 * time.Minute
)

// ParseEjection reads how long an endpoint that fails connections gets no new ones at first: "off" or a duration.
func ParseEjection(text string) (time.Duration, error) {
	if text == "off" {
		return EjectionOff, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minEjection || d > maxEjection {
		return 0, fmt.Errorf("invalid value %q (allowed: off, or a duration from %v to 5m)", text, minEjection)
	}
	return d.Truncate(time.Second), nil
}

// ejection returns the first ejection of an endpoint of the Service's port; 0: none is ejected.
func (c *compilation) ejection(p Port) time.Duration { return c.svc.ejection(p, c.facts) }

func (s *Service) ejection(p Port, f Facts) time.Duration {
	if p.Proto != api.TCP {
		return 0
	}
	return max(cmp.Or(s.Ejection, f.Ejection), 0)
}

// eject returns s without the candidates that are ejected. At least half of the candidates stay, so the first ejected
// candidates by address are left out.
func (s selection) eject(all []candidate, p Port, svc *Service, f Facts) selection {
	if len(f.Ejected) == 0 || svc.ejection(p, f) == 0 {
		return s
	}
	n := 0
	for i := range all {
		if s.exclusion(&all[i]) == Used {
			n++
		}
	}
	var out []netip.AddrPort
	for i := range all {
		if len(out) < n/2 && s.exclusion(&all[i]) == Used && contains(f.Ejected, all[i].Addr) {
			out = append(out, all[i].Addr)
		}
	}
	s.ejected = out
	return s
}

// spare returns how many more of the chosen endpoints could be ejected.
func (s selection) spare(chosen []Endpoint) int {
	return (len(chosen)+len(s.ejected))/2 - len(s.ejected)
}

// contains reports whether a sorted list has an address.
func contains(all []netip.AddrPort, a netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(all, a, netip.AddrPort.Compare)
	return ok
}

// difference returns the addresses that only one of two sorted lists has.
func difference(a, b []netip.AddrPort) (all []netip.AddrPort) {
	for _, one := range [2][2][]netip.AddrPort{{a, b}, {b, a}} {
		for _, addr := range one[0] {
			if !contains(one[1], addr) {
				all = append(all, addr)
			}
		}
	}
	return all
}

// hasEndpointsAt reports whether the Service has an endpoint with one of the addresses, on any port.
func (e *Entry) hasEndpointsAt(all []netip.AddrPort) bool {
	return slices.ContainsFunc(e.slices, func(s *Slice) bool {
		return slices.ContainsFunc(s.Endpoints, func(p SliceEndpoint) bool {
			return slices.ContainsFunc(all, func(a netip.AddrPort) bool { return a.Addr() == p.Addr })
		})
	})
}
