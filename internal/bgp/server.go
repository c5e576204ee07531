package bgp

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/fairway-net/fairway/internal/announce"
)

const (
	// maxReceived is how many prefixes of a family a router may send us. They are kept (GoBGP
	// does), and go to the agent, if it asks; a router that sends more loses its session for a while.
	maxReceived = 10000
	// restartTime is how long a router with graceful restart keeps our routes without us.
	restartTime = 120 * time.Second
	// deferral is how long after a restart we wait for the router's own routes.
	deferral = 15 * time.Second
	// hopLimit is the TTL towards routers that are more than one hop away.
	hopLimit = 255
	// endlessHold stands for a session that never expires: GoBGP has no such.
	endlessHold = 65535 * time.Second
	// allowOwn is how often the nodes' AS may be in the path of what a router announces: other nodes'
	// podCIDRs come so, where all nodes have one ASN.
	allowOwn = 8
	// importPolicy is the name of what rejects all that a router announces.
	importPolicy = "ours-only"
)

// newServer starts a GoBGP server with one peer. It listens nowhere. There is one for each
// session, so that each has its own ASN, router ID and routes, and nothing that one router
// says reaches another.
func newServer(c announce.SessionConfig, restarting bool, log slog.Handler, changed func(*apiutil.WatchEventMessage_PeerEvent), heard func()) (*server.BgpServer, error) {
	s := server.NewBgpServer(server.LoggerOption(slog.New(log), new(slog.LevelVar)))
	go s.Serve()
	ctx := context.Background() // these wait for the server's own loop only
	err := s.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: c.LocalASN, RouterId: c.RouterID.String(), ListenPort: -1}})
	if err == nil {
		err = rejectReceived(ctx, s)
	}
	if err == nil {
		err = watchServer(ctx, s, changed, heard)
	}
	if err == nil {
		err = s.AddPeer(ctx, &api.AddPeerRequest{Peer: peer(c, restarting)})
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("start a session with %v: %w", c.Address, err)
	}
	return s, nil
}

// watchServer has it told when a session changes, and when something is announced to us.
func watchServer(ctx context.Context, s *server.BgpServer, changed func(*apiutil.WatchEventMessage_PeerEvent), heard func()) error {
	return s.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) { changed(e) },
		OnPathUpdate: func([]*apiutil.Path, time.Time) { heard() },
	}, server.WatchPeer(), server.WatchUpdate(false, "", ""))
}

// rejectReceived lets nothing into the table but what we put there.
func rejectReceived(ctx context.Context, s *server.BgpServer) error {
	p := &api.Policy{Name: importPolicy, Statements: []*api.Statement{{
		Name:       importPolicy,
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := s.AddPolicy(ctx, &api.AddPolicyRequest{Policy: p}); err != nil {
		return err
	}
	return s.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_POLICY_DIRECTION_IMPORT,
		Policies: []*api.Policy{{Name: importPolicy}}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}})
}

// peer is the router as GoBGP wants it.
func peer(c announce.SessionConfig, restarting bool) *api.Peer {
	hold := c.Hold
	if hold == 0 {
		hold = endlessHold
	}
	p := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: c.Address.Addr().String(), PeerAsn: c.PeerASN, LocalAsn: c.LocalASN, AuthPassword: c.Password, AllowOwnAsn: allowOwn},
		Transport: &api.Transport{RemotePort: uint32(c.Address.Port())},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: seconds(hold), KeepaliveInterval: seconds(c.Keepalive), ConnectRetry: seconds(c.Connect),
			IdleHoldTimeAfterReset: seconds(retryPause),
		}},
	}
	p.Transport.BindInterface = c.VRF
	if c.Source.IsValid() {
		p.Transport.LocalAddress = c.Source.String()
	}
	if c.Reflected {
		p.TtlSecurity = &api.TtlSecurity{Enabled: true} // the reflector wants it; its own first packets do not have it
	}
	if c.MultiHop {
		p.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: hopLimit}
	}
	if c.GracefulRestart {
		p.GracefulRestart = &api.GracefulRestart{
			Enabled: true, RestartTime: uint32(restartTime.Seconds()), DeferralTime: uint32(deferral.Seconds()), LocalRestarting: restarting,
		}
	}
	for _, f := range []struct {
		carried bool
		family  wire.Family
	}{{c.IPv4, wire.RF_IPv4_UC}, {c.IPv6, wire.RF_IPv6_UC}} {
		if !f.carried {
			continue
		}
		family := apiutil.ToApiFamily(f.family.Afi(), f.family.Safi())
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			PrefixLimits:      &api.PrefixLimit{Family: family, MaxPrefixes: maxReceived},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: c.GracefulRestart}},
		})
	}
	return p
}

// seconds rounds up: BGP counts in seconds.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

// linkBandwidth is the Link Bandwidth extended community (RFC 10005) in both forms, with the same
// value: some routers know only the transitive one, others only the other one. An endpoint counts as
// 1 Mbit/s: what routers keep in 32 bits of bytes a second is enough for 34,000.
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

// path is a route as GoBGP wants it, for the router of a session.
func path(r announce.Route, c announce.SessionConfig) (*apiutil.Path, error) {
	if r.Leaving {
		r.Communities = append(slices.Clone(r.Communities), announce.GracefulShutdown)
		if r.LocalPref = 0; c.Internal() {
			r.LocalPref = 1 // 0 is the default here
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
