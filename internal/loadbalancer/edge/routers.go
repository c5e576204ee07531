package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// routersFile is the field bgp of the file. The names are those of BGPPeers.
type routersFile struct {
	MyASN    uint32       `json:"myASN"`
	RouterID string       `json:"routerID"`
	Peers    []routerFile `json:"peers"`
}

type routerFile struct {
	PeerAddress           string  `json:"peerAddress"`
	PeerPort              *uint16 `json:"peerPort"`
	PeerASN               uint32  `json:"peerASN"`
	SourceAddress         string  `json:"sourceAddress"`
	PasswordFile          string  `json:"passwordFile"`
	HoldTime              string  `json:"holdTime"`
	EBGPMultiHop          bool    `json:"ebgpMultiHop"`
	EnableGracefulRestart bool    `json:"enableGracefulRestart"`
	BFD                   *struct {
		Interval         string `json:"interval"`
		DetectMultiplier *int   `json:"detectMultiplier"`
	} `json:"bfd"`
}

// Routers are the routers from which this machine learns routes.
type Routers struct {
	Peers    []*announce.BGPPeer
	Profiles []*announce.BFDProfile
}

// resolve fills in defaults, and checks the rest.
func (f *routersFile) resolve() (*Routers, error) {
	if f == nil {
		return nil, nil
	}
	r := &Routers{}
	var all []error
	if f.MyASN == 0 {
		all = append(all, errors.New("bgp.myASN is missing [this machine's AS number, such as 64512]"))
	}
	if len(f.Peers) == 0 || len(f.Peers) > announce.MaxSessions {
		all = append(all, fmt.Errorf("bgp.peers are %d [name 1 to %d routers]", len(f.Peers), announce.MaxSessions))
	}
	var id netip.Addr
	if f.RouterID != "" {
		all = append(all, address("bgp.routerID", f.RouterID, func(a netip.Addr) { id = a }))
		if id.IsValid() && !id.Is4() {
			all = append(all, fmt.Errorf("bgp.routerID is %v [an IPv4 address]", id))
		}
	}
	seen := map[netip.Addr]bool{}
	for _, one := range f.Peers {
		p, profile, err := one.resolve(f.MyASN)
		if all = append(all, err); seen[p.PeerAddress] {
			all = append(all, fmt.Errorf("bgp.peers has %v twice", p.PeerAddress))
		}
		seen[p.PeerAddress], p.RouterID = true, id
		if r.Peers = append(r.Peers, p); profile != nil {
			r.Profiles = append(r.Profiles, profile)
		}
	}
	return r, errors.Join(all...)
}

func (f *routerFile) resolve(own uint32) (*announce.BGPPeer, *announce.BFDProfile, error) {
	p := &announce.BGPPeer{
		Name: f.PeerAddress, MyASN: own, PeerASN: f.PeerASN, PeerPort: numbers.PortBGP, EBGPMultiHop: f.EBGPMultiHop, EnableGracefulRestart: f.EnableGracefulRestart,
		DualStackAddressFamily: true,
	}
	if f.PeerPort != nil {
		p.PeerPort = *f.PeerPort
	}
	all := []error{address("bgp.peers.peerAddress", f.PeerAddress, func(a netip.Addr) { p.PeerAddress = a })}
	if f.PeerASN == 0 || p.PeerPort == 0 {
		all = append(all, fmt.Errorf("bgp.peers %s: peerASN is missing, or peerPort is 0 [the router's AS number; leave peerPort out for 179]", f.PeerAddress))
	}
	if f.SourceAddress != "" {
		all = append(all, address("bgp.peers.sourceAddress", f.SourceAddress, func(a netip.Addr) { p.SourceAddress = a }))
	}
	if f.PasswordFile != "" {
		text, err := os.ReadFile(f.PasswordFile)
		if err != nil {
			all = append(all, fmt.Errorf("read bgp.peers.passwordFile: %w", err))
		}
		p.Password = strings.TrimRight(string(text), "\n")
	}
	var err error
	p.HoldTime, err = duration("bgp.peers.holdTime", f.HoldTime, 90*time.Second, 3*time.Second, 65535*time.Second)
	p.KeepaliveTime = p.HoldTime / 3
	all = append(all, err)
	if f.BFD == nil {
		return p, nil, errors.Join(all...)
	}
	interval, err1 := duration("bgp.peers.bfd.interval", f.BFD.Interval, 300*time.Millisecond, 10*time.Millisecond, time.Minute)
	times, err2 := number("bgp.peers.bfd.detectMultiplier", f.BFD.DetectMultiplier, 3, 2, 255)
	p.BFDProfile = p.Name
	if f.EnableGracefulRestart {
		all = append(all, fmt.Errorf("bgp.peers %s: enableGracefulRestart and bfd exclude each other [leave one out]", f.PeerAddress))
	}
	profile := &announce.BFDProfile{Name: p.Name, ReceiveInterval: interval, TransmitInterval: interval, DetectMultiplier: times}
	return p, profile, errors.Join(append(all, err1, err2)...)
}

// A RouterSource lets a BGP speaker learn routes and announce nothing. It is a bgp.Source and a bgp.Health for a machine
// without a node's proxy.
type RouterSource struct {
	Routers *Routers
	Name    string // of this machine
}

// Synced is closed, because the configuration has everything.
func (RouterSource) Synced() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Dirty never receives.
func (RouterSource) Dirty() <-chan struct{} { return nil }

// BGP returns the routers.
func (s RouterSource) BGP() announce.BGPInput {
	self := announce.Node{Name: s.Name}
	for _, a := range OwnAddrs() { // the router ID is one of them
		if a.IsGlobalUnicast() {
			self.Addrs = append(self.Addrs, a)
		}
	}
	return announce.BGPInput{Input: announce.Input{Nodes: []announce.Node{self}}, Peers: s.Routers.Peers, BFDProfiles: s.Routers.Profiles}
}

// Set has no effect, because there is no proxy to ask.
func (RouterSource) Set(netip.Addr, map[uint16]bool) {}

// Served reports that every Service is served.
func (RouterSource) Served(uint16) bool { return true }

// Changed never receives.
func (RouterSource) Changed() <-chan struct{} { return nil }
