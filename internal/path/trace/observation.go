package trace

import (
	"fmt"
	"net/netip"
	"time"
)

// A Source is the mechanism that made an Observation.
type Source string

// The sources.
const (
	FromNFTrace   Source = "nftrace"   // a rule or a policy of nf_tables judged the packet
	FromConntrack Source = "conntrack" // an entry of conntrack appeared, changed or went
	FromDrop      Source = "kfree_skb" // the kernel freed the packet, and says why
	FromState     Source = "state"     // the state of the node, read after the probe
	FromNode      Source = "node"      // the observer itself: armed, lost events, missing rights
)

// An Observation is one fact that one node saw. Source says which of the pointers is set.
type Observation struct {
	Node   string    `json:"node"`
	Time   time.Time `json:"time,omitzero"`
	Source Source    `json:"source"`
	// Reply says that the packet belongs to the answer: conntrack's reply direction.
	Reply bool `json:"reply,omitempty"`
	// Pass counts the passes of packets through this node, from 1. All observations of one packet's pass from its first
	// hook to its last have the same number. 0: not known.
	Pass   int     `json:"pass,omitempty"`
	Packet *Packet `json:"packet,omitempty"` // the headers at this point; nil: not known
	Rule   *Rule   `json:"rule,omitempty"`
	Flow   *Flow   `json:"flow,omitempty"`
	Drop   *Drop   `json:"drop,omitempty"`
	State  *State  `json:"state,omitempty"`
	Note   string  `json:"note,omitempty"` // FromNode: one line for people
}

// A Packet has the headers of a packet at one point of its way.
type Packet struct {
	Src   netip.AddrPort `json:"src"`
	Dst   netip.AddrPort `json:"dst"`
	Proto uint8          `json:"proto"` // the IP protocol's number
	Flags string         `json:"flags,omitempty"`
	Seq   uint32         `json:"seq,omitempty"` // TCP
	TTL   uint8          `json:"ttl"`           // IPv6: hop limit
	DSCP  uint8          `json:"dscp,omitempty"`
	ID    uint16         `json:"id,omitempty"` // IPv4
	Size  int            `json:"size"`         // the IP packet's length
	In    string         `json:"in,omitempty"` // interfaces
	Out   string         `json:"out,omitempty"`
	Mark  uint32         `json:"mark,omitempty"`
}

// A Rule is a step of nf_tables: a rule that matched, or the end of a chain.
type Rule struct {
	Family   string `json:"family"` // "inet", "ip", …
	Table    string `json:"table"`
	Chain    string `json:"chain"`
	Base     string `json:"base,omitempty"` // the base chain that the packet is in
	Hook     string `json:"hook,omitempty"` // of Base: "prerouting", …
	Priority int    `json:"priority"`       // of Base
	Type     string `json:"type,omitempty"` // of Base: "filter", "nat", "route"
	// Kind is "rule", "return" (the end of a chain that was jumped to) or "policy" (the end of a base chain).
	Kind    string `json:"kind"`
	Handle  uint64 `json:"handle,omitempty"` // of a rule
	Verdict string `json:"verdict"`          // "accept", "drop", "jump", "goto", "continue", "return", "queue", "stolen"
	Target  string `json:"target,omitempty"` // the chain of jump and goto
	Text    string `json:"text,omitempty"`   // the rule as nft prints it; "": it was not read
}

// Place returns "inet fairway services #12", as nft names the rule.
func (r Rule) Place() string {
	if r.Handle == 0 {
		return fmt.Sprintf("%s %s %s", r.Family, r.Table, r.Chain)
	}
	return fmt.Sprintf("%s %s %s #%d", r.Family, r.Table, r.Chain, r.Handle)
}

// Ends reports whether the packet does not leave the hook, because of this step.
func (r Rule) Ends() bool { return r.Verdict == "drop" || r.Verdict == "stolen" }

// A Flow is an entry of conntrack.
type Flow struct {
	Event string `json:"event"` // "new", "update", "destroy", or "entry" if it was only read
	ID    uint32 `json:"id"`
	Proto uint8  `json:"proto"`
	Orig  Tuple  `json:"orig"`
	Reply Tuple  `json:"reply"`
	State string `json:"state,omitempty"` // TCP: "SYN_SENT", …
	// Answered says that conntrack has seen a packet of the other direction.
	Answered bool   `json:"answered,omitempty"`
	Mark     uint32 `json:"mark,omitempty"`
}

// A Tuple is one direction of a flow.
type Tuple struct {
	Src netip.AddrPort `json:"src"`
	Dst netip.AddrPort `json:"dst"`
}

// String returns "10.0.0.1:4711 → 10.0.0.2:80".
func (t Tuple) String() string { return fmt.Sprintf("%v → %v", t.Src, t.Dst) }

// A Drop is a packet that the kernel freed before its destination.
type Drop struct {
	Reason string `json:"reason"`          // of enum skb_drop_reason: "NETFILTER_DROP", …
	Where  string `json:"where,omitempty"` // the kernel's function; "": not known
	// Pod says that it happened in the namespace of a pod of the node.
	Pod bool `json:"pod,omitempty"`
}

// State is what a node found of the things that the probe needed. Its lists are bounded.
type State struct {
	Endpoints []EndpointState `json:"endpoints,omitempty"` // on this node
	Routes    []Route         `json:"routes,omitempty"`
	// Sysctls has the parameters that decide about the probe's packets: "net.ipv4.ip_forward",
	// "net.ipv4.conf.eth1.rp_filter", and conntrack's size and limit.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Programs are the BPF programs on the interfaces that the probe used: "tcx ingress eth0: site-policy".
	Programs []string `json:"programs,omitempty"`
	// Addresses are the node's own, except of loopback.
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// EndpointState is the state of an endpoint on this node.
type EndpointState struct {
	Addr netip.Addr `json:"addr"`
	// Entered says that the pod's namespace was found and entered. Without it the next fields are not known.
	Entered   bool       `json:"entered"`
	Listeners []Listener `json:"listeners,omitempty"` // for the probe's protocol
	Overflows uint64     `json:"overflows,omitempty"` // connections that full accept queues dropped during the watch
	Link      string     `json:"link,omitempty"`      // to the pod
}

// A Listener is a socket that waits for connections or datagrams.
type Listener struct {
	Addr    netip.AddrPort `json:"addr"`
	Queue   int            `json:"queue,omitempty"`   // TCP: connections that wait for accept(2)
	Backlog int            `json:"backlog,omitempty"` // TCP: the limit of listen(2)
}

// Full reports whether the accept queue takes no further connection: the kernel accepts one more than the backlog.
func (l Listener) Full() bool { return l.Queue > l.Backlog }

// A Route is the node's decision for packets to an address, and the state of the neighbour.
type Route struct {
	To     netip.Addr `json:"to"`
	From   netip.Addr `json:"from,omitzero"` // with In: the decision for a forwarded packet
	In     string     `json:"in,omitempty"`
	Prefix string     `json:"prefix,omitempty"` // "10.244.2.0/24", "default"
	// Kind is "unicast", "local", "blackhole", "unreachable", "prohibit", "none", or "martian" if the source of a
	// forwarded packet is not accepted at its interface.
	Kind      string     `json:"kind"`
	Via       netip.Addr `json:"via,omitzero"`
	Link      string     `json:"link,omitempty"`
	MTU       int        `json:"mtu,omitempty"` // of the link
	Up        bool       `json:"up"`            // the link carries packets
	Protocol  int        `json:"protocol,omitempty"`
	Neighbour string     `json:"neighbour,omitempty"` // "reachable", "stale", "incomplete", "failed", "permanent", …
}

// Heard is what the sending socket heard.
type Heard struct {
	Outcome Outcome        `json:"outcome"`
	Local   netip.AddrPort `json:"local,omitzero"`
	// Injected says that no socket sent: the node injected the packet, and saw what went to the client.
	Injected bool          `json:"injected,omitempty"`
	Took     time.Duration `json:"took,omitempty"`
	Error    string        `json:"error,omitempty"` // the socket's words
	// ICMP is the error that came from another host: "host unreachable", "fragmentation needed"; From sent it.
	ICMP string     `json:"icmp,omitempty"`
	From netip.Addr `json:"from,omitzero"`
	MTU  int        `json:"mtu,omitempty"` // of the way, as the kernel knows it after the probe
	// Answer describes the content of an answer: a DNS server's "NOERROR, 2 addresses".
	Answer string `json:"answer,omitempty"`
}

// An Outcome is the result of a probe for its sender.
type Outcome string

// The outcomes. A refusal is an answer: a TCP reset, or ICMP port unreachable.
const (
	Answered    Outcome = "answered"
	Refused     Outcome = "refused"
	Reset       Outcome = "reset"       // accepted, then reset
	Unreachable Outcome = "unreachable" // an ICMP error, or no route on the sender
	TooBig      Outcome = "too big"     // the datagram does not fit, and must not be fragmented
	Silent      Outcome = "silent"      // nothing until the deadline
	Failed      Outcome = "failed"      // the sender could not send
)
