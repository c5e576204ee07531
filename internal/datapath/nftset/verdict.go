package nftset

import "github.com/fairway-net/fairway/internal/service"

// A VerdictID says what happens to a packet. nft prints it as major:minor. It is the data of the maps of frontends, and
// the key of the map dispatch. The rulesets explain its bits. 0 means "no element".
type VerdictID uint32

// The bits of a VerdictID that modes nftables and ipvs share.
const (
	MasqueradeOffCluster VerdictID = 1 << 16
	MasqueradeAll        VerdictID = 2 << 16
	ForExternal          VerdictID = 4 << 16 // the list of endpoints for external clients
	ForNodePort          VerdictID = 8 << 16
	Reject               VerdictID = 0xf000<<16 | 1
	Drop                 VerdictID = 0xf000<<16 | 2
)

// VerdictFor translates a route to a verdict. forwards says that the route has endpoints: then the mode adds the minor.
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

// Route is the inverse of VerdictFor. The route has no endpoints.
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
