// Package status says how the agents of a cluster are: each of its own node, and all of
// them together.
//
//	proxy loop, store, takeover ─→ Board ─→ Node ─→ socket @fairway/agent   root on the node: everything
//	                                         └────→ :10256/statusz           the network: no messages
//	API server ─ pods, pods/proxy ─→ /statusz of each agent ─→ Cluster
//
// It hides the protocol of the socket and the layout of the tables. It promises: what the
// network sees names no object, no address and no text of an error; asking costs an agent the
// same with ten Services and with fifty thousand; nothing is written to the API server.
package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/egress"
)

// A Node is what an agent says of its node.
type Node struct {
	Node    string `json:"node"`
	Version string `json:"version"`
	// Mode is the proxy mode that works; Configured is --proxy-mode, which may be auto or none.
	Mode       string    `json:"mode"`
	Configured string    `json:"configuredMode"`
	PodNetwork string    `json:"podNetwork"`
	Started    time.Time `json:"started"`
	// InSync says that the kernel has all that the API server has sent, and Since when that
	// became so; zero: it has not been yet.
	InSync    bool      `json:"inSync"`
	Since     time.Time `json:"since,omitzero"`
	Services  int       `json:"services"`
	Addresses int       `json:"addresses"` // frontends: addresses with a port
	Endpoints int       `json:"endpoints"`
	// Drift is what other programs changed in Fairway's rules, and Fairway restored.
	Drift Drift `json:"drift"`
	// OtherProxies are rules of other service proxies on the node.
	OtherProxies []string    `json:"otherProxies"`
	Degraded     []Condition `json:"degraded"`
	// Egress is with which addresses pods leave the cluster, and by which nodes.
	Egress []egress.Way `json:"egress,omitempty"`
	// Time is when the agent said all this.
	Time time.Time `json:"time"`
}

// Drift says how often the rules were restored.
type Drift struct {
	Restored int       `json:"restored"`
	Last     time.Time `json:"last,omitzero"`
}

// A Condition is a part that does not work as it should.
type Condition struct {
	Reason  string    `json:"reason"`            // one word, constant
	Message string    `json:"message,omitempty"` // what is wrong and what to do
	Since   time.Time `json:"since"`
}

// Public returns what anybody who reaches the node may know: reasons without messages, and
// of other proxies only that there are some.
func (n Node) Public() Node {
	n.Egress, n.Degraded = nil, append([]Condition{}, n.Degraded...)
	for i := range n.Degraded {
		n.Degraded[i].Message = ""
	}
	return n
}

// OK reports whether nothing needs attention.
func (n Node) OK() bool { return n.InSync && len(n.Degraded) == 0 }

// WriteTable implements output.Value.
func (n Node) WriteTable(w io.Writer, _ bool) error {
	fmt.Fprintf(w, "Node %s: %s\n", n.Node, n.headline())
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("version", "%s, running for %s", n.Version, age(n.Time, n.Started))
	row("mode", "%s", n.mode())
	row("pod network", "%s", n.PodNetwork)
	row("Services", "%d with %d addresses and %d endpoints", n.Services, n.Addresses, n.Endpoints)
	row("drift", "%s", n.drift())
	row("other proxies", "%s", orNone(strings.Join(n.OtherProxies, ", ")))
	for i, c := range n.Degraded {
		name := ""
		if i == 0 {
			name = "degraded"
		}
		row(name, "%s for %s: %s", c.Reason, age(n.Time, c.Since), c.Message)
	}
	if len(n.Degraded) == 0 {
		row("degraded", "no")
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	return egress.WriteTable(w, n.Egress)
}

// headline says the most important thing in a few words.
func (n Node) headline() string {
	switch {
	case n.Since.IsZero() && !n.InSync:
		return "NOT IN SYNC: no rules have been written yet"
	case !n.InSync:
		return "NOT IN SYNC for " + age(n.Time, n.Since)
	case len(n.Degraded) > 0:
		return "degraded (rules in sync since " + age(n.Time, n.Since) + ")"
	}
	return "ok (rules in sync since " + age(n.Time, n.Since) + ")"
}

func (n Node) mode() string {
	if n.Configured == n.Mode || n.Configured == "" {
		return n.Mode
	}
	return n.Mode + " (--proxy-mode " + n.Configured + ")"
}

func (n Node) drift() string {
	if n.Drift.Restored == 0 {
		return "none"
	}
	return fmt.Sprintf("restored %d times what another program changed, last %s ago", n.Drift.Restored, age(n.Time, n.Drift.Last))
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// age returns the time from then to now as kubectl prints it: "42s", "3m", "5h", "12d".
func age(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	d := max(now.Sub(then), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
