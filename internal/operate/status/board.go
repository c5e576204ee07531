package status

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// The reasons of Conditions: words that alerts and people look for.
const (
	RulesNotWritten   = "RulesNotWritten"   // the last try to write the rules failed
	RulesDiffer       = "RulesDiffer"       // the kernel holds other rules than were written
	APIReadFailed     = "APIReadFailed"     // the API server does not answer, or refuses a list
	ListDoubted       = "ListDoubted"       // the API server has forgotten most objects
	OtherProxyRules   = "OtherProxyRules"   // another service proxy's rules are on the node
	OtherModeRules    = "OtherModeRules"    // rules of another of our modes cannot be removed
	HandoverPending   = "HandoverPending"   // mode none, and no other proxy has taken over
	PortInUse         = "PortInUse"         // /healthz or /metrics does not listen
	ConntrackFull     = "ConntrackFull"     // the kernel's table of flows is nearly full
	ConntrackSettings = "ConntrackSettings" // the node's conntrack could not be set
	SettingsRefused   = "SettingsRefused"   // the ConfigMap has settings that this node cannot take
	ForwardingDropped = "ForwardingDropped" // another program drops what the node forwards
	NodeNotEligible   = "NodeNotEligible"   // the node's object is missing or about to be deleted
)

// A Board keeps what is degraded. The zero value works. Its methods may be called by any
// goroutine.
type Board struct {
	mu  sync.Mutex
	all map[string]Condition
}

// Set notes that something is degraded; an empty message: it is well again.
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

// Conditions returns what is degraded, sorted by reason.
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
