package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"time"
)

// An Order says what one node watches, and whether it sends the probe. It is all that a node gets to know.
type Order struct {
	Run  string `json:"run"`  // names the run on this node: lower-case letters and digits, at most 16
	Node string `json:"node"` // the node's name, for its observations

	Proto uint8          `json:"proto"` // TCP or UDP
	To    netip.AddrPort `json:"to"`    // the address that the client calls
	// Endpoints are the addresses to which nodes may translate To.
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// Tag is the DSCP of the probe. 0: no tag, and Client and Port select the packets.
	Tag    uint8      `json:"tag,omitempty"`
	Client netip.Addr `json:"client,omitzero"` // the source address, before masquerading; zero: any
	Port   uint16     `json:"port,omitempty"`  // the source port, before masquerading; 0: any
	// Relayed says that a program on the node (mode userspace, a gateway) relays the probe on its own connection, which
	// has no tag. Then all new connections to Endpoints are watched, and Follow finds the one that belongs to the probe.
	Relayed bool `json:"relayed,omitempty"`

	// Send says that this node sends the probe when it is armed and its input says so.
	Send *Send `json:"send,omitempty"`
	// For is how long the node watches. 0: MaxWatch.
	For time.Duration `json:"for,omitempty"`
}

// Send describes the probe's sender.
type Send struct {
	// Pod is the address of a pod on this node, whose namespace sends. Zero: the node itself sends.
	Pod netip.Addr `json:"pod,omitzero"`
	// Outside is the address of a client outside of the cluster. The packet is injected where the node gets the client's
	// packets.
	Outside netip.Addr `json:"outside,omitzero"`
	// Inject sends one packet that the node takes for the pod's, without entering the pod: a TCP SYN, or a datagram. The
	// server accepts nothing, because the pod resets the connection. Package probe also injects if it must not enter the pod.
	Inject   bool          `json:"inject,omitempty"`
	Name     string        `json:"name,omitempty"`     // a DNS question instead of a datagram; type A or AAAA by To's family
	Size     int           `json:"size,omitempty"`     // bytes of a datagram, at most MaxSize
	Patience time.Duration `json:"patience,omitempty"` // 0: DefaultPatience
}

// The bounds of an Order.
const (
	MaxWatch        = 30 * time.Second
	MaxSize         = 9000
	MaxEndpoints    = 256
	DefaultPatience = 2 * time.Second
	maxOrder        = 64 << 10 // bytes
)

// Tags are the DSCPs of probes: RFC 2474 leaves them to local use (xxxx11), and no queue of a router expects them.
var Tags = []uint8{3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63}

var runName = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// Check reports why the order is invalid.
func (o Order) Check() error {
	switch {
	case !runName.MatchString(o.Run):
		return fmt.Errorf("run %q [a run is 1 to 16 lower-case letters and digits]", o.Run)
	case o.Proto != tcp && o.Proto != udp:
		return fmt.Errorf("protocol %d [a probe is TCP (6) or UDP (17)]", o.Proto)
	case !o.To.IsValid() || o.To.Port() == 0:
		return fmt.Errorf("address %v [a probe needs an address and a port]", o.To)
	case len(o.Endpoints) > MaxEndpoints:
		return fmt.Errorf("%d endpoints [at most %d]", len(o.Endpoints), MaxEndpoints)
	case o.Tag != 0 && !slices.Contains(Tags, o.Tag):
		return fmt.Errorf("tag %d [a tag is one of %v]", o.Tag, Tags)
	case o.Tag == 0 && !o.Client.IsValid() && o.Port == 0:
		return errors.New("no tag, no client and no port: all packets would match [give one of them]")
	case o.For < 0 || o.For > MaxWatch:
		return fmt.Errorf("watch for %v [at most %v]", o.For, MaxWatch)
	case o.Send != nil && (o.Send.Size < 0 || o.Send.Size > MaxSize):
		return fmt.Errorf("%d bytes [at most %d]", o.Send.Size, MaxSize)
	}
	for _, e := range o.Endpoints {
		if !e.IsValid() || e.Port() == 0 {
			return fmt.Errorf("endpoint %v [an endpoint needs an address and a port]", e)
		}
	}
	return nil
}

const (
	tcp = 6
	udp = 17
)

// ReadOrder reads and checks an order: one line of JSON.
func ReadOrder(r io.Reader) (o Order, err error) {
	d := json.NewDecoder(io.LimitReader(r, maxOrder))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return o, fmt.Errorf("read the order: %w", err)
	}
	return o, o.Check()
}
