package status

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// The reasons of Conditions. Alerts and people look for these words.
const (
	RulesNotWritten   = "RulesNotWritten"   // the last attempt to write the rules failed
	RulesDiffer       = "RulesDiffer"       // the kernel's rules differ from the written ones
	APIReadFailed     = "APIReadFailed"     // the API server does not answer, or refuses a list
	ListDoubted       = "ListDoubted"       // the API server has lost most objects
	OtherProxyRules   = "OtherProxyRules"   // another service proxy has rules on the node
	HandoverPending   = "HandoverPending"   // mode none, and no other proxy has taken over
	PortInUse         = "PortInUse"         // /healthz or /metrics cannot listen
	ConntrackFull     = "ConntrackFull"     // the conntrack table is nearly full
	ConntrackSettings = "ConntrackSettings" // the conntrack settings could not be applied
	SettingsRefused   = "SettingsRefused"   // this node refuses settings of the ConfigMap
	PodOverShare      = "PodOverShare"      // a pod takes more than its share of what all pods of the node use
	ForwardingDropped = "ForwardingDropped" // another program drops forwarded packets
	PodNetworkProblem = "PodNetworkProblem" // pods of another node are not reached, or a podCIDR is refused
	NodesSilent       = "NodesSilent"       // no node answers an edge's health checks
	NotAnnouncing     = "NotAnnouncing"     // an edge does not announce its addresses
	NodeNotEligible   = "NodeNotEligible"   // the Node object is missing or about to be deleted
)

// A Board holds the current Conditions. The zero value works. Any goroutine may call its methods.
type Board struct {
	mu  sync.Mutex
	all map[string]Condition
}

// Set records a Condition. An empty message removes it.
func (b *Board) Set(reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if message == "" {
		delete(b.all, reason)
		return
	}
	if b.all == nil {
		b.all = map[string]Condition{}
	}
	c, ok := b.all[reason]
	if !ok {
		c = Condition{Reason: reason, Since: time.Now()}
	}
	c.Message = message
	b.all[reason] = c
}

// Conditions returns the current Conditions, sorted by reason.
func (b *Board) Conditions() []Condition {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Condition, 0, len(b.all))
	for _, c := range b.all {
		out = append(out, c)
	}
	slices.SortFunc(out, func(x, y Condition) int { return strings.Compare(x.Reason, y.Reason) })
	return out
}
