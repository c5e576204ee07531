package plan

import (
	"encoding/base64"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Peer has the parts of a Node that the pod network needs.
type Peer struct {
	Name string // of the Node object
	// Created is the age of the Node object. Of two nodes with the same podCIDR the older one keeps the podCIDR.
	Created  time.Time
	Addrs    []netip.Addr   // InternalIPs; at most one of each family is used
	PodCIDRs []netip.Prefix // the ranges of its pods' addresses
	Key      Key            // the public key of WireGuard that its Node object has; zero: none
}

func (p Peer) claims() api.NodeClaims {
	return api.NodeClaims{Name: p.Name, Created: p.Created, Addrs: p.Addrs, PodCIDRs: p.PodCIDRs}
}

// A Key is a public or private key of WireGuard (Curve25519). The zero Key means no key.
type Key [32]byte

// String returns the text that the program wg prints; "" for the zero Key.
func (k Key) String() string {
	if k == (Key{}) {
		return ""
	}
	return base64.StdEncoding.EncodeToString(k[:])
}

// ParseKey is the inverse of String. It returns the zero Key for any other text.
func ParseKey(text string) (k Key) {
	if b, err := base64.StdEncoding.DecodeString(text); err == nil && len(b) == len(k) {
		copy(k[:], b)
	}
	return k
}
