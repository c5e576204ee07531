package path

import (
	"time"
)

// Version is the version of the JSON form of a Path.
const Version = 1

// A Path is the way of the first packet of a connection, with the reasons. Programs read its JSON, so the fields stay.
type Path struct {
	Version    int               `json:"version"`
	From       End               `json:"from"`
	To         Target            `json:"to"`
	Mode       map[string]string `json:"mode"` // by node
	Verdict    Verdict           `json:"verdict"`
	Steps      []Step            `json:"steps"`
	Candidates []Candidate       `json:"candidates"`
	Reply      []Step            `json:"reply"`
	Findings   []Finding         `json:"findings"`
	NotLooked  []string          `json:"notLooked"` // nodes and rules that nobody looked at
	// Hops has what each node saw of the probe, in the order of the packet.
	Hops []Hop `json:"hops,omitempty"`
	// Probe describes the probe; nil: no packet was sent.
	Probe *ProbeReport `json:"probe,omitempty"`
	// NotProved says in one line why no probe, or no complete one, shows whether the prediction is true.
	NotProved string `json:"notProved,omitempty"`
	Proof     Proof  `json:"-"`
}

// A Hop is the pass of the packet through one node.
type Hop struct {
	Node      string     `json:"node"`
	Predicted *Addresses `json:"predicted"` // behind the node; null: the node is not on the predicted way
	Observed  *Addresses `json:"observed"`  // null: the node did not see the packet
	Before    *Addresses `json:"before,omitempty"`
	In        string     `json:"in,omitempty"`
	Out       string     `json:"out,omitempty"`
	TTL       int        `json:"ttl,omitempty"`
	Agree     bool       `json:"agree"`
	Rules     []Ref      `json:"rules,omitempty"` // that judged the packet, in order
}

// A ProbeReport says what the probe was, and what its sender heard.
type ProbeReport struct {
	Outcome  string  `json:"outcome"`
	Local    string  `json:"local,omitempty"` // the sender's address and port
	Injected bool    `json:"injected,omitempty"`
	Millis   float64 `json:"millis,omitempty"` // from the first hop to the answer there
	Live     bool    `json:"live,omitempty"`   // the client's own packet; nothing was sent
	Count    int     `json:"count,omitempty"`  // of several probes
	Answer   string  `json:"answer,omitempty"`
	Error    string  `json:"error,omitempty"`
}

// An End is one end of a way.
type End struct {
	Kind string `json:"kind"` // "Pod", "Node", "Outside"
	NS   string `json:"ns,omitempty"`
	Name string `json:"name,omitempty"`
	IP   string `json:"ip,omitempty"`
	Node string `json:"node,omitempty"`
}

// A Target is the destination: as it was asked for, and as packets have it.
type Target struct {
	Asked   string `json:"asked"`
	Service string `json:"service,omitempty"` // "shop/db:pg"
	Key     string `json:"key,omitempty"`     // "10.96.0.1:5432/TCP"; empty: the name does not resolve
}

// A Verdict is the end of the way.
type Verdict struct {
	Predicted State `json:"predicted"`
	Observed  State `json:"observed,omitempty"` // empty: no packet was sent
	Agree     *bool `json:"agree,omitempty"`    // nil: no packet was sent
	Step      int   `json:"step"`               // the step that decides
}

// A State is the fate of the packet at a step.
type State string

// The states.
const (
	Accepted   State = "accepted" // it goes on
	Delivered  State = "delivered"
	Refused    State = "refused"    // the client gets an answer at once: a reset, or ICMP port unreachable
	Dropped    State = "dropped"    // the client waits
	Unresolved State = "unresolved" // there is no packet: the name has no address
	// Sometimes is a verdict: some endpoints of those that are chosen from get the packet, others do not.
	Sometimes State = "sometimes"
)

// A Kind is the kind of a step.
type Kind string

// The kinds.
const (
	KindDNS        Kind = "dns"
	KindAnnounce   Kind = "announce" // which node the network leads an address to
	KindService    Kind = "service"
	KindEndpoint   Kind = "endpoint"
	KindNAT        Kind = "nat"
	KindMasquerade Kind = "masquerade"
	KindFilter     Kind = "filter"
	KindPolicy     Kind = "policy"
	KindRoute      Kind = "route"
	KindLink       Kind = "link"
	KindSocket     Kind = "socket"
	KindRelay      Kind = "relay"
	KindReply      Kind = "reply"
)

// A Step is one decision about the packet. It has one state.
type Step struct {
	N         int        `json:"n"`
	Node      string     `json:"node,omitempty"`
	Kind      Kind       `json:"kind"`
	Hook      string     `json:"hook,omitempty"`
	State     State      `json:"state"`
	Text      string     `json:"text"`
	Detail    string     `json:"detail,omitempty"`
	Before    *Addresses `json:"before,omitempty"`
	After     *Addresses `json:"after,omitempty"` // nil: they stay
	Reason    *Reason    `json:"reason,omitempty"`
	Refs      []Ref      `json:"refs,omitempty"`
	Predicted *Foreseen  `json:"predicted,omitempty"` // if it differs from State
	Observed  State      `json:"observed,omitempty"`  // empty: nobody saw the packet there
	Evidence  []Evidence `json:"evidence,omitempty"`
}

// Addresses are those in the packet's headers.
type Addresses struct {
	Src string `json:"src"`
	Dst string `json:"dst"`
}

// A Reason says why a step has its state.
type Reason struct {
	Code Code   `json:"code"`
	Text string `json:"text"`
}

// A Ref names an object: of the API, or of the kernel.
type Ref struct {
	API    string `json:"api,omitempty"` // the kind
	NS     string `json:"ns,omitempty"`
	Name   string `json:"name,omitempty"`
	Field  string `json:"field,omitempty"`
	Kernel string `json:"kernel,omitempty"` // "nft-element", "iptables-chain"
	Table  string `json:"table,omitempty"`
	Chain  string `json:"chain,omitempty"`
	Handle uint64 `json:"handle,omitempty"`
	Text   string `json:"text,omitempty"`
	Show   string `json:"show,omitempty"` // a command that shows it
}

// Foreseen is the prediction for a step that was observed otherwise.
type Foreseen struct {
	State State `json:"state"`
}

// Evidence is an observation of a step.
type Evidence struct {
	By      string    `json:"by"`
	ID      string    `json:"id,omitempty"`
	At      time.Time `json:"at,omitzero"`
	Verdict string    `json:"verdict,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Where   string    `json:"where,omitempty"`
}

// A Candidate is an endpoint of the Service, used or not.
type Candidate struct {
	Addr   string  `json:"addr"`
	Pod    string  `json:"pod,omitempty"`
	Node   string  `json:"node,omitempty"`
	Kept   bool    `json:"kept"`
	Reason string  `json:"reason,omitempty"` // why it is not kept
	Share  float64 `json:"share"`            // of new connections
	// Denied says that a policy denies packets to a kept candidate.
	Denied string `json:"denied,omitempty"`
	// Followed says that the steps behind the translation are those to this candidate.
	Followed bool `json:"followed,omitempty"`
	// Probes counts the probes that came to this endpoint, and Observed is their worst end. One probe alone is not counted.
	Probes   int   `json:"probes,omitempty"`
	Observed State `json:"observed,omitempty"`
}

// A Level is the weight of a finding.
type Level string

// The levels. Info explains something that is as it was asked for.
const (
	Fatal   Level = "fatal"
	Warning Level = "warning"
	Info    Level = "info"
)

// A Finding is a cause, in one sentence.
type Finding struct {
	Code   Code   `json:"code"`
	Level  Level  `json:"level"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`
}
