package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
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
func newServer(c announce.SessionConfig, restarting bool, log slog.Handler, changed func(state *peerState, up bool), received func()) (*server.BgpServer, error) {
	s := server.NewBgpServer(server.LoggerOption(slog.New(log), new(slog.LevelVar)))
	go s.Serve()
	ctx := context.Background() // these wait for the server's own loop only
	err := s.StartBgp(ctx, &gobgp.StartBgpRequest{Global: &gobgp.Global{Asn: c.LocalASN, RouterId: c.RouterID.String(), ListenPort: -1}})
	if err == nil {
		err = rejectReceived(ctx, s)
	}
	if err == nil {
		err = watchServer(ctx, s, changed, received)
	}
	if err == nil {
		err = s.AddPeer(ctx, &gobgp.AddPeerRequest{Peer: peer(c, restarting)})
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("start a session with %v: %w", c.Address, err)
	}
	return s, nil
}

// peerState is what GoBGP says of a session.
type peerState = apiutil.PeerState

// watchServer calls changed when the state of a session changes, and received when something is announced to us.
func watchServer(ctx context.Context, s *server.BgpServer, changed func(state *peerState, up bool), received func()) error {
	return s.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
			if e.Type == apiutil.PEER_EVENT_STATE {
				changed(&e.Peer.State, e.Peer.State.SessionState == wire.BGP_FSM_ESTABLISHED)
			}
		},
		OnPathUpdate: func([]*apiutil.Path, time.Time) { received() },
	}, server.WatchPeer(), server.WatchUpdate(false, "", ""))
}

// rejectReceived lets nothing into the table but what we put there.
func rejectReceived(ctx context.Context, s *server.BgpServer) error {
	p := &gobgp.Policy{Name: importPolicy, Statements: []*gobgp.Statement{{
		Name:       importPolicy,
		Conditions: &gobgp.Conditions{RouteType: gobgp.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &gobgp.Actions{RouteAction: gobgp.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := s.AddPolicy(ctx, &gobgp.AddPolicyRequest{Policy: p}); err != nil {
		return err
	}
	return s.SetPolicyAssignment(ctx, &gobgp.SetPolicyAssignmentRequest{Assignment: &gobgp.PolicyAssignment{
		Name: "global", Direction: gobgp.PolicyDirection_POLICY_DIRECTION_IMPORT,
		Policies: []*gobgp.Policy{{Name: importPolicy}}, DefaultAction: gobgp.RouteAction_ROUTE_ACTION_REJECT,
	}})
}

// peer is the router as GoBGP wants it.
func peer(c announce.SessionConfig, restarting bool) *gobgp.Peer {
	hold := c.Hold
	if hold == 0 {
		hold = endlessHold
	}
	p := &gobgp.Peer{
		Conf:      &gobgp.PeerConf{NeighborAddress: c.Address.Addr().String(), PeerAsn: c.PeerASN, LocalAsn: c.LocalASN, AuthPassword: c.Password, AllowOwnAsn: allowOwn},
		Transport: &gobgp.Transport{RemotePort: uint32(c.Address.Port())},
		Timers: &gobgp.Timers{Config: &gobgp.TimersConfig{
			HoldTime: seconds(hold), KeepaliveInterval: seconds(c.Keepalive), ConnectRetry: seconds(c.Connect),
			IdleHoldTimeAfterReset: seconds(retryPause),
		}},
	}
	p.Transport.BindInterface = c.VRF
	if c.Source.IsValid() {
		p.Transport.LocalAddress = c.Source.String()
	}
	if c.Reflected {
		p.TtlSecurity = &gobgp.TtlSecurity{Enabled: true} // the reflector wants it; its own first packets do not have it
	}
	if c.MultiHop {
		p.EbgpMultihop = &gobgp.EbgpMultihop{Enabled: true, MultihopTtl: hopLimit}
	}
	if c.GracefulRestart {
		p.GracefulRestart = &gobgp.GracefulRestart{
			Enabled: true, RestartTime: uint32(restartTime.Seconds()), DeferralTime: uint32(deferral.Seconds()), LocalRestarting: restarting,
		}
	}
	for _, f := range familiesOf(c) {
		family := apiutil.ToApiFamily(f.Afi(), f.Safi())
		p.AfiSafis = append(p.AfiSafis, &gobgp.AfiSafi{
			Config:            &gobgp.AfiSafiConfig{Family: family, Enabled: true},
			PrefixLimits:      &gobgp.PrefixLimit{Family: family, MaxPrefixes: maxReceived},
			MpGracefulRestart: &gobgp.MpGracefulRestart{Config: &gobgp.MpGracefulRestartConfig{Enabled: c.GracefulRestart}},
		})
	}
	return p
}

// seconds rounds up: BGP counts in seconds.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }
