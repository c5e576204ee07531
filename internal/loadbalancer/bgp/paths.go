package bgp

import (
	"encoding/binary"
	"log/slog"
	"math"
	"net/netip"
	"slices"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// linkBandwidth returns the Link Bandwidth extended community (RFC 10005) in both forms with the same value: some routers
// know only the transitive form, others only the non-transitive one. An endpoint counts as 1 Mbit/s. Routers keep 32 bits
// of bytes a second, which are enough for 34,000 endpoints.
func linkBandwidth(asn uint32, endpoints int) wire.PathAttributeInterface {
	const perEndpoint, most = 125_000, 34_000
	if asn > math.MaxUint16 {
		asn = wire.AS_TRANS
	}
	bytes := float32(min(endpoints, most) * perEndpoint)
	transitive := binary.BigEndian.AppendUint16([]byte{byte(wire.EC_SUBTYPE_LINK_BANDWIDTH)}, uint16(asn))
	transitive = binary.BigEndian.AppendUint32(transitive, math.Float32bits(bytes))
	return wire.NewPathAttributeExtendedCommunities([]wire.ExtendedCommunityInterface{
		wire.NewUnknownExtended(wire.EC_TYPE_TRANSITIVE_TWO_OCTET_AS_SPECIFIC, transitive),
		wire.NewLinkBandwidthExtended(uint16(asn), bytes),
	})
}

// path returns a route in GoBGP's form for the router of a session.
func path(r announce.Route, c announce.SessionConfig) (*apiutil.Path, error) {
	if r.Leaving {
		r.Communities = append(slices.Clone(r.Communities), announce.GracefulShutdown)
		if r.LocalPref = 0; c.Internal() {
			r.LocalPref = 1 // 0 would leave the attribute out
		}
	}
	nlri, err := wire.NewIPAddrPrefix(r.Prefix)
	if err != nil {
		return nil, err
	}
	p := &apiutil.Path{Family: wire.RF_IPv4_UC, Nlri: nlri, Attrs: []wire.PathAttributeInterface{wire.NewPathAttributeOrigin(0)}}
	next := r.NextHop
	if r.Prefix.Addr().Is4() {
		if !next.IsValid() {
			next = netip.IPv4Unspecified() // the session's own address
		}
		attr, err := wire.NewPathAttributeNextHop(next)
		if err != nil {
			return nil, err
		}
		p.Attrs = append(p.Attrs, attr)
	} else {
		if !next.IsValid() {
			next = netip.IPv6Unspecified()
		}
		p.Family = wire.RF_IPv6_UC
		attr, err := wire.NewPathAttributeMpReachNLRI(p.Family, []wire.PathNLRI{{NLRI: nlri}}, next)
		if err != nil {
			return nil, err
		}
		p.Attrs = append(p.Attrs, attr)
	}
	if len(r.ASPath) > 0 {
		p.Attrs = append(p.Attrs, wire.NewPathAttributeAsPath([]wire.AsPathParamInterface{wire.NewAs4PathParam(wire.BGP_ASPATH_ATTR_TYPE_SEQ, r.ASPath)}))
	}
	if r.LocalPref != 0 {
		p.Attrs = append(p.Attrs, wire.NewPathAttributeLocalPref(r.LocalPref))
	}
	var plain []uint32
	var large []*wire.LargeCommunity
	for _, c := range r.Communities {
		if c.Large {
			large = append(large, wire.NewLargeCommunity(c.A, c.B, c.C))
		} else {
			plain = append(plain, c.Number())
		}
	}
	if len(plain) > 0 {
		p.Attrs = append(p.Attrs, wire.NewPathAttributeCommunities(plain))
	}
	if len(large) > 0 {
		p.Attrs = append(p.Attrs, wire.NewPathAttributeLargeCommunities(large))
	}
	if r.Endpoints > 0 {
		p.Attrs = append(p.Attrs, linkBandwidth(c.LocalASN, r.Endpoints))
	}
	return p, nil
}

// familiesOf returns the address families of a session.
func familiesOf(c announce.SessionConfig) (all []wire.Family) {
	if c.IPv4 {
		all = append(all, wire.RF_IPv4_UC)
	}
	if c.IPv6 {
		all = append(all, wire.RF_IPv6_UC)
	}
	return all
}

// receivedPathsOf returns the routes from a peer of a server.
func receivedPathsOf(from *server.BgpServer, c announce.SessionConfig, router netip.Addr, log *slog.Logger) (all []receivedPath) {
	for _, family := range familiesOf(c) {
		r := apiutil.ListPathRequest{TableType: gobgp.TableType_TABLE_TYPE_ADJ_IN, Name: router.String(), Family: family}
		err := from.ListPath(r, func(nlri wire.NLRI, paths []*apiutil.Path) {
			prefix, err := netip.ParsePrefix(nlri.String())
			for _, p := range paths {
				if o := receivedPathOf(p); err == nil && o.NextHop.IsValid() {
					o.Prefix, o.Router = prefix.Masked(), router
					all = append(all, o)
				}
			}
		})
		if err != nil {
			log.Warn("cannot read the router's routes", "err", err)
		}
	}
	return all
}

// receivedPathOf reads a path's attributes.
func receivedPathOf(p *apiutil.Path) receivedPath {
	o := receivedPath{pref: defaultPref}
	for _, attr := range p.Attrs {
		switch a := attr.(type) {
		case *wire.PathAttributeNextHop:
			o.NextHop = a.Value
		case *wire.PathAttributeMpReachNLRI:
			o.NextHop = a.Nexthop
		case *wire.PathAttributeLocalPref:
			o.pref = a.Value
		case *wire.PathAttributeAsPath:
			for _, segment := range a.Value {
				o.hops += segment.ASLen()
				o.path = append(o.path, segment.GetAS()...)
			}
		}
	}
	for _, attr := range p.Attrs { // RFC 8326: the route will be withdrawn
		if a, ok := attr.(*wire.PathAttributeCommunities); ok && slices.Contains(a.Value, announce.GracefulShutdown.Number()) {
			o.pref = 0
		}
	}
	return o
}
