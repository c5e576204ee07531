// Package status reports the state of the agents: of one node, and of all nodes.
//
//	proxy loop, store, takeover ─→ Board ─→ Node ─→ socket @fairway/agent   root on the node: everything
//	                                         └────→ :10256/statusz           the network: no messages
//	API server ─ pods, pods/proxy ─→ /statusz of each agent ─→ Cluster
//
// The answer to the network names no object, no address and no error. A question costs an agent the same with ten
// Services and with fifty thousand. Nothing is written to the API server.
package status

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/egress"
)

// A Node is an agent's report about its node.
type Node struct {
	Node    string `json:"node"`
	Version string `json:"version"`
	// Mode is the active proxy mode. Configured is --proxy-mode, which may be auto or none.
	Mode       string `json:"mode"`
	Configured string `json:"configuredMode"`
	PodNetwork string `json:"podNetwork"`
	// NetworkPolicies says whether the agent enforces them. Drained says that load balancers keep off the node.
	NetworkPolicies bool      `json:"networkPolicies"`
	Drained         bool      `json:"drained,omitempty"`
	Started         time.Time `json:"started"`
	// InSync reports whether the kernel has everything that the API server has sent. Since is the time of the last
	// change of InSync; zero means not yet.
	InSync    bool      `json:"inSync"`
	Since     time.Time `json:"since,omitzero"`
	Services  int       `json:"services"`
	Addresses int       `json:"addresses"` // frontends: addresses with a port
	Endpoints int       `json:"endpoints"`
	// Drift counts changes by other programs that Fairway undid.
	Drift Drift `json:"drift"`
	// OtherProxies lists other service proxies' rules on the node.
	OtherProxies []string    `json:"otherProxies"`
	Degraded     []Condition `json:"degraded"`
	// Egress lists the addresses that pods leave the cluster with, and the nodes.
	Egress []egress.Way `json:"egress,omitempty"`
	// Time is the time of the report.
	Time time.Time `json:"time"`
}

// Drift says how often the rules were restored.
type Drift struct {
	Restored int       `json:"restored"`
	Last     time.Time `json:"last,omitzero"`
}

// A Condition is a part that does not work.
type Condition struct {
	Reason  string    `json:"reason"`            // one constant word
	Message string    `json:"message,omitempty"` // the fault and the remedy
	Since   time.Time `json:"since"`
}

// Public returns the part that everyone who reaches the node may know: reasons without messages, and only whether other
// proxies exist.
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
	if n.PodNetwork != "" { // else it is an edge
		row("pod network", "%s", n.PodNetwork)
		row("policies", "%s", map[bool]string{true: "enforced", false: "not enforced"}[n.NetworkPolicies])
	}
	if n.Drained {
		row("drained", "yes, load balancers keep off [fairway drain %s --undo ends that]", n.Node)
	}
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
	return writeEgress(w, n.Egress)
}

// headline returns the most important fact in a few words.
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

// maxEgress is the number of Services with an egress address that the table shows.
const maxEgress = 50

// writeEgress writes how pods leave the cluster. It writes nothing if there are no egress addresses.
func writeEgress(w io.Writer, all []egress.Way) error {
	if len(all) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "EGRESS OF\tWHO\tADDRESS\tBY NODE\tPODS HERE\tALL\tPROBLEM")
	for _, x := range all[:min(len(all), maxEgress)] {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", x.Service, x.Pods, cmp.Or(x.Address, "-"), cmp.Or(x.Node, "-"), x.Here, x.Everywhere, cmp.Or(x.Problem, "-"))
	}
	if len(all) > maxEgress {
		fmt.Fprintf(tw, "and %d more\t\t\t\t\t\t\n", len(all)-maxEgress)
	}
	return tw.Flush()
}
