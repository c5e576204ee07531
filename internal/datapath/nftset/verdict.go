package nftset

import "github.com/fairway-net/fairway/internal/service"

// A VerdictID says what happens to a packet, written major:minor. It is the data of the
// maps of frontends and the key of the map dispatch; the rulesets explain it. Zero means
// "no element".
type VerdictID uint32

// The parts of a VerdictID that the modes which translate addresses have in common.
const (
	MasqueradeOffCluster VerdictID = 1 << 16
	MasqueradeAll        VerdictID = 2 << 16
	ForExternal          VerdictID = 4 << 16 // for external clients
	ForNodePort          VerdictID = 8 << 16
	Reject               VerdictID = 0xf000<<16 | 1
	Drop                 VerdictID = 0xf000<<16 | 2
)

// VerdictFor translates a route. For a route that forwards, the mode adds the minor.
func VerdictFor(r *service.Route, nodePort, external bool) (v VerdictID, forwards bool) {
	switch r.Action {
	case service.Reject:
		return Reject, false
	case service.Drop:
		return Drop, false
	}
	switch r.Masquerade {
	case service.MasqueradeOffCluster:
		v |= MasqueradeOffCluster
	case service.MasqueradeAll:
		v |= MasqueradeAll
	}
	if nodePort {
		v |= ForNodePort
	}
	if external {
		v |= ForExternal
	}
	return v, true
}

// Route is the inverse of VerdictFor, except for the endpoints.
func (v VerdictID) Route() *service.Route {
	switch {
	case v == Reject:
		return &service.Route{Action: service.Reject}
	case v == Drop:
		return &service.Route{Action: service.Drop}
	case v&MasqueradeAll != 0:
		return &service.Route{Masquerade: service.MasqueradeAll}
	case v&MasqueradeOffCluster != 0:
		return &service.Route{Masquerade: service.MasqueradeOffCluster}
	}
	return &service.Route{}
}
