package trace

import "net/netip"

// A Record is all that is known of one probe.
type Record struct {
	To           netip.AddrPort
	Endpoints    []netip.AddrPort
	Observations []Observation
	Heard        Heard
	Sender       string   // the node of the sender; "": outside
	Watched      []string // the nodes that were armed
	NotWatched   []string // the nodes that could be on the way and were not armed
	Relayed      bool     // as in Order
	// Ours reports whether a rule is Fairway's. nil: the tables whose names begin with "fairway" are.
	Ours func(Rule) bool
}

// A Way is what happened to the probe.
type Way struct {
	Hops  []Hop `json:"hops"`            // in the order of the packet
	Reply []Hop `json:"reply,omitempty"` // in the order of the answer
	End   End   `json:"end"`
	// Findings are facts that explain the End, the most specific first.
	Findings   []Finding `json:"findings,omitempty"`
	NotWatched []string  `json:"notWatched,omitempty"`
	Repeats    int       `json:"repeats,omitempty"` // packets that the sender sent again
}

// A Hop is the pass of the packet through one node.
type Hop struct {
	Node   string `json:"node"`
	Before Tuple  `json:"before"`
	// After has the addresses behind the node, as conntrack knows them. It equals Before if nothing was translated.
	After Tuple  `json:"after"`
	In    string `json:"in,omitempty"`
	Out   string `json:"out,omitempty"`
	TTL   uint8  `json:"ttl"` // as the packet came
	// Left says that the packet passed the node's last hook: conntrack confirmed its entry, or had it before.
	Left bool `json:"left"`
	// Known says that conntrack had the connection before: the rules of Services did not decide.
	Known bool          `json:"known,omitempty"`
	Steps []Observation `json:"steps"` // rules and policies, in order
	Flow  *Flow         `json:"flow,omitempty"`
}

// Hook returns the last hook that judged the packet.
func (h Hop) Hook() string {
	for i := len(h.Steps) - 1; i >= 0; i-- {
		if r := h.Steps[i].Rule; r != nil {
			return r.Hook
		}
	}
	return ""
}

// A Class is how a way ends.
type Class string

// The classes.
const (
	Delivered  Class = "delivered"   // answered
	RefusedBy  Class = "refused"     // by a rule, or by the endpoint
	DroppedBy  Class = "dropped"     // by a rule, or by the kernel
	LostAfter  Class = "lost"        // after a hook of Node, or between Node and Next
	ReplyLost  Class = "reply-lost"  // the endpoint answered, and the answer did not arrive
	Unanswered Class = "unanswered"  // the packet came to the endpoint, which says nothing
	NotSent    Class = "not-sent"    // no node saw a packet
	NotLooked  Class = "not-watched" // the way leads to a node that was not watched
)

// An End says where and why the way ends.
type End struct {
	Class   Class  `json:"class"`
	Node    string `json:"node,omitempty"`
	Next    string `json:"next,omitempty"` // the node to which the packet did not come
	Hook    string `json:"hook,omitempty"` // the last hook that saw the packet
	Rule    *Rule  `json:"rule,omitempty"` // the rule that ended it
	Foreign bool   `json:"foreign,omitempty"`
	Drop    *Drop  `json:"drop,omitempty"` // the kernel's reason
	Link    string `json:"link,omitempty"`
	Reply   bool   `json:"reply,omitempty"` // it was the answer that ended here
}

// A Code names a finding.
type Code string

// The codes. Facts has the words in parentheses.
const (
	ForeignRule     Code = "ForeignRule"     // another program's rule (rule, text)
	OwnRule         Code = "OwnRule"         // a rule of Fairway (rule, text, chain)
	NoListener      Code = "NoListener"      // nothing listens on the port (addr, listens)
	OtherAddress    Code = "OtherAddress"    // it listens on another address of the pod only (addr, listens)
	EndpointRefuses Code = "EndpointRefuses" // and its sockets are not known (addr)
	EndpointSilent  Code = "EndpointSilent"  // it does not answer, and its sockets do not say why (addr)
	QueueFull       Code = "QueueFull"       // the accept queue is full (addr, queue, backlog, overflows)
	NoRoute         Code = "NoRoute"         // (to, kind)
	NeighbourFailed Code = "NeighbourFailed" // (via, link)
	LinkDown        Code = "LinkDown"        // (link, to)
	ForwardingOff   Code = "ForwardingOff"   // (sysctl)
	ReversePath     Code = "ReversePath"     // (link, from, back)
	TooLarge        Code = "TooBig"          // (link, mtu)
	TCProgram       Code = "TCProgram"       // (link, programs); certain only with End.Drop
	ConntrackFull   Code = "ConntrackFull"   // (count, max)
	StaleFlow       Code = "StaleFlow"       // conntrack leads to an endpoint that is none any more (to)
	ReplyAstray     Code = "ReplyAstray"     // a node that translated the probe did not see the answer (node, from)
	NATDiffers      Code = "NATDiffers"      // it went to an address that is no endpoint (to)
	NotTranslated   Code = "NotTranslated"   // it left with the Service's address (to, link)
	NotAnAddress    Code = "NotAnAddress"    // the node has the address, and no Service has the port there (addr)
)

// A Finding is a fact that explains the end.
type Finding struct {
	Code  Code              `json:"code"`
	Node  string            `json:"node,omitempty"`
	Facts map[string]string `json:"facts,omitempty"`
}
