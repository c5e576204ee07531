package announce

import (
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Feed signals that a source must be read again. It is level-triggered: one signal may stand for many changes.
type Feed interface {
	Synced() <-chan struct{} // closed after the first complete read
	Dirty() <-chan struct{}  // receives after possible changes
}

// The objects are the administrator's configuration of announcements. They have the kinds and the fields of MetalLB's API
// (metallb.io), with its defaults filled in. They are immutable. An object with Problems announces nothing, because half
// of a configuration may be worse than nothing.

// An L2Advertisement announces the addresses of pools by ARP and NDP.
type L2Advertisement struct {
	Name string
	// IPAddressPools chooses pools by name, and IPAddressPoolSelectors by label: one match is enough. If both are empty,
	// the object is for all pools.
	IPAddressPools         []string
	IPAddressPoolSelectors []api.Selector
	NodeSelectors          []api.Selector // one must match; empty: all nodes
	ServiceSelectors       []api.Selector // one must match; empty: all Services
	Interfaces             []string       // empty: all
	PreferredNodeSelectors []PreferredNodeSelector
	Problems               []api.Problem
}

// A PreferredNodeSelector gives the matching nodes points for the choice of an owner, from 1 to 100.
type PreferredNodeSelector struct {
	Weight     int
	Preference api.Selector
}

// A BGPAdvertisement announces the addresses of pools to routers.
type BGPAdvertisement struct {
	Name string
	// AggregationLength and AggregationLengthV6 are the prefix lengths of the routes: 32 and 128 for single addresses.
	AggregationLength, AggregationLengthV6 int
	LocalPref                              uint32
	// Communities are 1234:5678, large:1:2:3 or the name of an alias of a Community.
	Communities            []string
	IPAddressPools         []string // as in an L2Advertisement
	IPAddressPoolSelectors []api.Selector
	NodeSelectors          []api.Selector
	ServiceSelectors       []api.Selector
	Peers                  []string // names of BGPPeers; empty: all
	// LinkBandwidth announces the number of the node's endpoints of a Service with externalTrafficPolicy Local, by which
	// routers share the connections.
	LinkBandwidth bool
	Problems      []api.Problem
	// Ignored are the invalid settings that do not affect the rest of the advertisement.
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
	// Created decides between BGPPeers with one address: the oldest has the session.
	Created time.Time
	MyASN   uint32
	// PeerASN is the router's ASN. If it is 0, DynamicASN accepts MyASN ("internal") or every other ASN ("external").
	PeerASN    uint32
	DynamicASN string
	LocalASN   uint32 // the ASN that the node presents; 0: MyASN
	// PeerAddress is the router's address. If it is invalid, the router is behind Interface.
	PeerAddress   netip.Addr
	Interface     string
	SourceAddress netip.Addr // zero: the kernel chooses
	PeerPort      uint16
	// HoldTime 0 means that the session never expires.
	HoldTime, KeepaliveTime time.Duration
	ConnectTime             time.Duration // between two attempts; 0: the program's default
	RouterID                netip.Addr    // zero: an address of the node
	NodeSelectors           []api.Selector
	// Password is the password of TCP MD5. PasswordSecret is a Secret of type kubernetes.io/basic-auth with the password,
	// in the namespace of the objects.
	Password, PasswordSecret string
	BFDProfile               string // empty: none
	EnableGracefulRestart    bool
	EBGPMultiHop             bool
	VRF                      string
	// DualStackAddressFamily carries both families over one session. DisableMP is deprecated.
	DisableMP, DualStackAddressFamily bool
	Problems                          []api.Problem
}

// A BFDProfile has the parameters by which BFD notices that a BGPPeer is gone.
type BFDProfile struct {
	Name                              string
	ReceiveInterval, TransmitInterval time.Duration
	DetectMultiplier                  int
	EchoInterval                      time.Duration // for EchoMode only
	EchoMode, PassiveMode             bool
	MinimumTTL                        int // of multihop sessions; 0: the default
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
