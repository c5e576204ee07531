package announce

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// MaxSessions limits the sessions of a node, because each needs 10 MB of the speaker's limited memory without any route.
const MaxSessions = 8

// defaultConnectTime is the time between two attempts to connect.
const defaultConnectTime = 10 * time.Second

// A SessionConfig is the configuration of a node's session with a router. It is comparable: if it changes, the session
// starts again.
type SessionConfig struct {
	Peer string // the BGPPeer's name
	// LocalASN is the ASN that the node presents. PeerASN 0 accepts any ASN except LocalASN.
	LocalASN, PeerASN uint32
	Address           netip.AddrPort
	Interface         string     // the interface where the router was found; empty if the BGPPeer has an address
	Source            netip.Addr // zero: the kernel chooses
	// VRF is the device of the session; empty if there is none.
	VRF                      string
	RouterID                 netip.Addr
	Hold, Keepalive, Connect time.Duration
	Password                 string // of TCP MD5; empty: none
	MultiHop                 bool
	GracefulRestart          bool
	IPv4, IPv6               bool // the address families of the session
	BFD                      BFD
	// Reflected means that the session is between a node and a route reflector.
	Reflected bool
}

// BFD has the parameters of BFD with a router. The zero value means no BFD.
type BFD struct {
	Receive, Transmit time.Duration
	Multiplier        uint8
	Passive           bool
	MinTTL            uint8 // of packets over several hops; 0 means the default
}

// Internal reports whether the router is in the node's own AS (iBGP).
func (c SessionConfig) Internal() bool { return c.PeerASN == c.LocalASN }

// carries reports whether the session carries the family of an address.
func (c SessionConfig) carries(a netip.Addr) bool {
	if a.Is4() {
		return c.IPv4
	}
	return c.IPv6
}

// A Session is a session that a node must have, with the routes that it must announce.
type Session struct {
	SessionConfig
	Routes []Route // sorted by prefix
}

// A PeerProblem is a setting of a BGPPeer that the node does not follow.
type PeerProblem struct {
	Peer string
	// NoSession means that there is no session because of the problem.
	NoSession bool
	Reason    string
}

// sessions returns the sessions of the node, without routes, sorted by the peers' names. If two BGPPeers conflict, the
// older one has the session.
func (in BGPInput) sessions(self *Node) (all []Session, problems []PeerProblem) {
	peers := slices.Clone(in.Peers)
	slices.SortFunc(peers, func(a, b *BGPPeer) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name)) })
	type router struct {
		vrf string
		at  netip.AddrPort
	}
	routers := map[router]string{}
	for _, p := range peers {
		if !self.matches(p.NodeSelectors) {
			continue
		}
		c, reason := in.session(p, self)
		if other, ok := routers[router{c.VRF, c.Address}]; ok && reason == "" {
			reason = fmt.Sprintf("BGPPeer %s has the same address and port, and is older", other)
		}
		if len(all) == MaxSessions && reason == "" {
			reason = fmt.Sprintf("a node speaks to %d routers at most", MaxSessions)
		}
		if reason != "" {
			problems = append(problems, PeerProblem{p.Name, true, reason})
			continue
		}
		missing := unsupported(p)
		var bad []string
		if c.BFD, bad = in.bfd(p); c.BFD != (BFD{}) && c.GracefulRestart {
			c.GracefulRestart = false
			bad = append(bad, "enableGracefulRestart has no effect with bfdProfile: BFD ends with the speaker, and routers then drop the routes that they kept")
		}
		for _, text := range append(missing, bad...) {
			problems = append(problems, PeerProblem{p.Name, false, text})
		}
		routers[router{c.VRF, c.Address}] = p.Name
		all = append(all, Session{SessionConfig: c})
	}
	slices.SortFunc(all, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	slices.SortStableFunc(problems, func(a, b PeerProblem) int { return strings.Compare(a.Peer, b.Peer) })
	return all, problems
}

// session returns the session with a router, or the reason why there is none.
func (in BGPInput) session(p *BGPPeer, self *Node) (c SessionConfig, reason string) {
	c = SessionConfig{
		Peer: p.Name, LocalASN: p.MyASN, PeerASN: p.PeerASN, Address: netip.AddrPortFrom(p.PeerAddress, p.PeerPort), Source: p.SourceAddress, VRF: p.VRF,
		RouterID: p.RouterID, Hold: p.HoldTime, Keepalive: p.KeepaliveTime, Connect: p.ConnectTime, Password: p.Password,
		MultiHop: p.EBGPMultiHop, GracefulRestart: p.EnableGracefulRestart,
		IPv4: p.PeerAddress.Is4() || p.DualStackAddressFamily, IPv6: p.PeerAddress.Is6() || p.DualStackAddressFamily,
	}
	switch {
	case len(p.Problems) > 0:
		return c, p.Problems[0].Message
	case p.Interface != "":
		if c, reason = in.behind(p, c); reason != "" {
			return c, reason
		}
	case p.SourceAddress.IsValid() && p.SourceAddress.Is4() != p.PeerAddress.Is4():
		return c, "sourceAddress and peerAddress are of different families"
	}
	if p.LocalASN != 0 {
		c.LocalASN = p.LocalASN
	}
	if p.DynamicASN == DynamicASNInternal {
		c.PeerASN = c.LocalASN
	}
	if c.Connect == 0 {
		c.Connect = defaultConnectTime
	}
	if !c.RouterID.IsValid() {
		c.RouterID = routerID(self)
	}
	if p.PasswordSecret != "" {
		var known bool
		if c.Password, known = in.Password(p.PasswordSecret); !known {
			return c, fmt.Sprintf("Secret %s of type kubernetes.io/basic-auth with a key \"password\" is missing", api.Cut(p.PasswordSecret, 253))
		}
	}
	return c, ""
}

// behind completes the session with the router that was found behind an interface.
func (in BGPInput) behind(p *BGPPeer, c SessionConfig) (SessionConfig, string) {
	c.Interface, c.IPv4, c.IPv6 = p.Interface, true, true
	switch {
	case p.VRF != "", p.SourceAddress.IsValid(), p.EBGPMultiHop:
		return c, "interface: not supported together with sourceAddress, vrf or ebgpMultiHop"
	case in.Neighbour == nil:
		return c, "interface is not supported [give peerAddress]"
	}
	router := in.Neighbour(p.Interface)
	if !router.IsValid() {
		return c, fmt.Sprintf("interface: no router is heard behind %s yet [does it send router advertisements there? FRR: neighbor INTERFACE interface remote-as …]", api.Cut(p.Interface, 100))
	}
	c.Address = netip.AddrPortFrom(router, p.PeerPort)
	return c, ""
}

// Interfaces returns the interfaces where the node must look for routers.
func Interfaces(in BGPInput) map[string]bool {
	all := map[string]bool{}
	self := in.self()
	for _, p := range in.Peers {
		if self != nil && p.Interface != "" && len(p.Problems) == 0 && self.matches(p.NodeSelectors) {
			all[p.Interface] = true
		}
	}
	return all
}

// bfd returns the parameters of BFD with a router, and the settings that are not followed. Without BFD the session still
// works.
func (in BGPInput) bfd(p *BGPPeer) (b BFD, problems []string) {
	if p.BFDProfile == "" {
		return b, nil
	}
	name := api.Cut(p.BFDProfile, 253)
	unwatched := fmt.Sprintf("; without BFD a router that is gone is noticed after holdTime (%v)", p.HoldTime)
	i := slices.IndexFunc(in.BFDProfiles, func(f *BFDProfile) bool { return f.Name == p.BFDProfile })
	if i < 0 {
		return b, []string{"there is no BFDProfile " + name + unwatched}
	}
	if p.VRF != "" {
		return b, []string{"bfdProfile is not supported together with vrf" + unwatched}
	}
	if p.Interface != "" {
		return b, []string{"bfdProfile is not supported together with interface" + unwatched}
	}
	f := in.BFDProfiles[i]
	if len(f.Problems) > 0 {
		return b, []string{"BFDProfile " + name + ": " + f.Problems[0].Message + unwatched}
	}
	if f.EchoMode {
		problems = append(problems, "BFDProfile "+name+": echoMode is not supported: BFD works without echoes, at the intervals of the profile")
	}
	return BFD{f.ReceiveInterval, f.TransmitInterval, uint8(f.DetectMultiplier), f.PassiveMode, uint8(f.MinimumTTL)}, problems
}

// unsupported returns the settings of a BGPPeer that are not followed. They do not prevent the session.
func unsupported(p *BGPPeer) (all []string) {
	if p.HoldTime == 0 {
		all = append(all, "holdTime 0 is not supported: the session ends after 65535 s without a sign of life")
	}
	return all
}

// routerID returns the node's IPv4 address, or else a hash of the node's name, as MetalLB does.
func routerID(self *Node) netip.Addr {
	for _, a := range self.Addrs {
		if a.Is4() {
			return a
		}
	}
	n := crc32.ChecksumIEEE([]byte(self.Name)) | 1 // never 0.0.0.0
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
