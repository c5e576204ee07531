package announce

import (
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Feed says when to read what it belongs to again. It is level-triggered: one wake-up may stand for many changes.
type Feed interface {
	Synced() <-chan struct{} // closed when everything has been read once
	Dirty() <-chan struct{}  // receives when something may have changed
}

// The objects say what the cluster's administrator wants announced. They have the kinds and
// the fields of MetalLB's API (metallb.io), with its defaults filled in. They are immutable.
// One that has Problems announces nothing: half of what was asked for may be worse than
// nothing.

// An L2Advertisement announces the addresses of pools by ARP and NDP.
type L2Advertisement struct {
	Name string
	// IPAddressPools are the pools by name, and IPAddressPoolSelectors by label: either is
	// enough. Where both are empty it is for all pools.
	IPAddressPools         []string
	IPAddressPoolSelectors []api.Selector
	NodeSelectors          []api.Selector // one must match; empty: all nodes
	ServiceSelectors       []api.Selector // one must match; empty: all Services
	Interfaces             []string       // empty: all
	PreferredNodeSelectors []PreferredNodeSelector
	Problems               []api.Problem
}

// A PreferredNodeSelector gives the nodes that it matches so many points, from 1 to 100, when
// an owner is chosen.
type PreferredNodeSelector struct {
	Weight     int
	Preference api.Selector
}

// A BGPAdvertisement announces the addresses of pools to routers.
type BGPAdvertisement struct {
	Name string
	// AggregationLength and AggregationLengthV6 are the prefix lengths that are announced:
	// 32 and 128 for single addresses.
	AggregationLength, AggregationLengthV6 int
	LocalPref                              uint32
	// Communities are 1234:5678, large:1:2:3 or the name of an alias of a Community.
	Communities            []string
	IPAddressPools         []string // as in an L2Advertisement
	IPAddressPoolSelectors []api.Selector
	NodeSelectors          []api.Selector
	ServiceSelectors       []api.Selector
	Peers                  []string // names of BGPPeers; empty: all
	// LinkBandwidth lets routers hear how many endpoints the node has, of Services with
	// externalTrafficPolicy Local, so that they can share the connections by it.
	LinkBandwidth bool
	Problems      []api.Problem
	// Ignored is what is wrong, and leaves the rest of the advertisement as it is.
	Ignored []api.Problem
}

// The values of BGPPeer.DynamicASN.
const (
	DynamicASNInternal = "internal"
	DynamicASNExternal = "external"
)

// A BGPPeer is a router that the nodes speak BGP to.
type BGPPeer struct {
	Name string
	// Created orders them: of two with one address the older has the session.
	Created time.Time
	MyASN   uint32
	// PeerASN is the router's, or DynamicASN says that any is right that is MyASN
	// ("internal") or is not ("external").
	PeerASN    uint32
	DynamicASN string
	LocalASN   uint32 // what the router is told instead of MyASN; 0: MyASN
	// PeerAddress is where the router is, or Interface the node's behind which it is.
	PeerAddress   netip.Addr
	Interface     string
	SourceAddress netip.Addr // zero: the kernel chooses
	PeerPort      uint16
	// HoldTime 0: the session never expires.
	HoldTime, KeepaliveTime time.Duration
	ConnectTime             time.Duration // between two tries; 0: the program's default
	RouterID                netip.Addr    // zero: follows from the node
	NodeSelectors           []api.Selector
	// Password is TCP MD5's, or PasswordSecret the Secret of type kubernetes.io/basic-auth
	// that has it, in the namespace of the objects.
	Password, PasswordSecret string
	BFDProfile               string // empty: none
	EnableGracefulRestart    bool
	EBGPMultiHop             bool
	VRF                      string
	// DisableMP is deprecated for DualStackAddressFamily, which carries both families
	// over one session.
	DisableMP, DualStackAddressFamily bool
	Problems                          []api.Problem
}

// A BFDProfile says how sessions of BFD to a BGPPeer find out that it is gone.
type BFDProfile struct {
	Name                              string
	ReceiveInterval, TransmitInterval time.Duration
	DetectMultiplier                  int
	EchoInterval                      time.Duration // counts with EchoMode only
	EchoMode, PassiveMode             bool
	MinimumTTL                        int // of multihop sessions; 0: not given
	Problems                          []api.Problem
}

// A Community gives BGP communities names.
type Community struct {
	Name     string
	Aliases  []CommunityAlias
	Problems []api.Problem
}

// A CommunityAlias is one name and its community: 1234:5678 or large:1:2:3.
type CommunityAlias struct{ Name, Value string }
