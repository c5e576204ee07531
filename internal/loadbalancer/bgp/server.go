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
	// maxReceived is how many prefixes of a family a router may send. GoBGP keeps them in memory. A router that sends
	// more loses its session for shunPause.
	maxReceived = 10000
	// restartTime is how long a router with graceful restart keeps this node's routes without a session.
	restartTime = 120 * time.Second
	// deferralTime is how long a restarted speaker waits for the router's routes.
	deferralTime = 15 * time.Second
	// hopLimit is the TTL of packets to routers that are more than one hop away.
	hopLimit = 255
	// endlessHold stands for a hold time that never ends, which GoBGP lacks.
	endlessHold = 65535 * time.Second
	// maxOwnASN is how often the nodes' ASN may be in the path of a route. Routes to other nodes' podCIDRs have it if
	// all nodes share one ASN.
	maxOwnASN = 8
	// importPolicy is the name of the policy that rejects all routes from routers.
	importPolicy = "ours-only"
)

// newServer starts a GoBGP server with one peer and no port. Each session has a server of its own, so that it has its
// own ASN, router ID and routes, and no route from one router reaches another. changed is called when the session's
// state changes, received when the router has changed its routes, until watching ends. A watch that does not end keeps
// the server in memory.
func newServer(watching context.Context, c announce.SessionConfig, restarting bool, log slog.Handler, changed func(state *peerState, up bool), received func()) (*server.BgpServer, error) {
	s := server.NewBgpServer(server.LoggerOption(slog.New(log), new(slog.LevelVar)))
	go s.Serve()
	ctx := context.Background() // these calls wait only for the server's own loop
	err := s.StartBgp(ctx, &gobgp.StartBgpRequest{Global: &gobgp.Global{Asn: c.LocalASN, RouterId: c.RouterID.String(), ListenPort: -1}})
	if err == nil {
		err = rejectReceived(ctx, s)
	}
	if err == nil {
		err = watchServer(watching, s, changed, received)
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

// peerState is GoBGP's state of a session.
type peerState = apiutil.PeerState

// watchServer calls changed when a session's state changes, and received when a peer has changed its routes.
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

// rejectReceived accepts only this node's own routes into the table.
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

// peer returns the router in GoBGP's form. restarting says that the process before may have left routes.
func peer(c announce.SessionConfig, restarting bool) *gobgp.Peer {
	hold := c.Hold
	if hold == 0 {
		hold = endlessHold
	}
	p := &gobgp.Peer{
		Conf:      &gobgp.PeerConf{NeighborAddress: c.Address.Addr().String(), PeerAsn: c.PeerASN, LocalAsn: c.LocalASN, AuthPassword: c.Password, AllowOwnAsn: maxOwnASN},
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
		p.TtlSecurity = &gobgp.TtlSecurity{Enabled: true} // the reflector requires it; the reflector's first packets lack it
	}
	if c.MultiHop {
		p.EbgpMultihop = &gobgp.EbgpMultihop{Enabled: true, MultihopTtl: hopLimit}
	}
	if c.GracefulRestart {
		p.GracefulRestart = &gobgp.GracefulRestart{
			Enabled: true, RestartTime: uint32(restartTime.Seconds()), DeferralTime: uint32(deferralTime.Seconds()), LocalRestarting: restarting,
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

// seconds rounds up to BGP's unit.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }
