package status

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/fairway-net/fairway/internal/text"
)

// A Cluster is the status of all nodes.
type Cluster struct {
	Nodes []Member `json:"nodes"` // sorted by name
	// Parts are the other parts of Fairway. There are none if nodes were named.
	Parts     []Part    `json:"parts,omitempty"`
	Time      time.Time `json:"time"`
	Namespace string    `json:"namespace"` // of the agents' pods
}

// A Member is a node of the cluster, with or without an agent.
type Member struct {
	Name string `json:"name"`
	// Pod is the agent's pod, or "" if the node has none. State is "Running", or the reason.
	Pod      string `json:"pod,omitempty"`
	State    string `json:"state"`
	Running  bool   `json:"-"`
	Restarts int    `json:"restarts"`
	// Status is the agent's answer. It is nil if the agent was not asked or did not answer; Error says why.
	Status *Node  `json:"status,omitempty"`
	Error  string `json:"error,omitempty"`
}

const (
	askTimeout = 5 * time.Second // for one agent's answer
	askAtOnce  = 16              // agents asked at the same time
)

// Gather asks each member's agent. A member that does not answer is part of the result.
func Gather(ctx context.Context, namespace string, members []Member, ask func(ctx context.Context, i int) ([]byte, error)) Cluster {
	all := Cluster{Nodes: members, Namespace: namespace}
	slots := make(chan struct{}, askAtOnce)
	var wg sync.WaitGroup
	for i := range members {
		m := &members[i]
		if !m.Running {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			var n Node
			text, err := ask(ctx, i)
			if err == nil {
				err = json.Unmarshal(text, &n)
			}
			if err != nil {
				m.Error = err.Error()
			} else {
				m.Status = &n
			}
		})
	}
	wg.Wait()
	all.Time = time.Now()
	return all
}

// OK reports whether nothing needs attention.
func (m Member) OK() bool { return m.Status != nil && m.Status.OK() }

// OK reports whether no node and no part needs attention.
func (c Cluster) OK() bool {
	for _, m := range c.Nodes {
		if !m.OK() {
			return false
		}
	}
	return len(c.Nodes) > 0 && !c.has(Attention)
}

// Unknown reports whether the state of a part could not be read.
func (c Cluster) Unknown() bool { return c.has(Unknown) }

func (c Cluster) has(l Level) bool {
	return slices.ContainsFunc(c.Parts, func(p Part) bool { return p.Level == l })
}

// WriteTable implements output.Value. Without wide, its lines fit a terminal if the names of nodes are short.
func (c Cluster) WriteTable(w io.Writer, wide bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := []string{"NODE", "AGENT", "MODE", "IN SYNC", "SERVICES", "DEGRADED"}
	if wide {
		head = append(head, "VERSION", "ENDPOINTS", "DRIFT", "OTHER PROXIES", "POD", "RESTARTS", "AGE", "ADDRESSES", "POD NETWORK")
	}
	fmt.Fprintln(tw, strings.Join(head, "\t"))
	for _, m := range c.Nodes {
		fmt.Fprintln(tw, strings.Join(m.row(c.Time, wide), "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	c.writeErrors(w)
	if len(c.Parts) > 0 {
		fmt.Fprintln(w)
		writeParts(w, c.Parts)
	}
	_, err := fmt.Fprintf(w, "\n%s\n", c.summary())
	return err
}

// writeErrors writes the texts that are too long for the table: errors of agents, and different versions.
func (c Cluster) writeErrors(w io.Writer) {
	versions := map[string][]string{}
	for _, m := range c.Nodes {
		if m.Status != nil {
			versions[m.Status.Version] = append(versions[m.Status.Version], m.Name)
		}
		if m.Error != "" {
			fmt.Fprintln(w, text.Indented(m.Name+": "+m.Error, ""))
		}
	}
	if len(versions) > 1 {
		for _, v := range slices.Sorted(maps.Keys(versions)) {
			fmt.Fprintf(w, "version %s: %s\n", v, some(versions[v]))
		}
	}
}

func (m Member) row(now time.Time, wide bool) []string {
	n := m.Status
	if n == nil {
		degraded := "-"
		if m.Error != "" {
			degraded = "no answer"
		}
		row := []string{m.Name, m.State, "-", "-", "-", degraded}
		if wide {
			row = append(row, "-", "-", "-", "-", orDash(m.Pod), strconv.Itoa(m.Restarts), "-", "-", "-")
		}
		return row
	}
	sync := age(now, n.Since)
	if !n.InSync {
		sync = strings.TrimSuffix("NO, "+sync, ", -")
	}
	var reasons []string
	for _, c := range n.Degraded {
		reasons = append(reasons, c.Reason)
	}
	mode := n.Mode
	if wide {
		mode = n.mode()
	}
	row := []string{m.Name, m.State, mode, sync, strconv.Itoa(n.Services), orDash(strings.Join(reasons, ","))}
	if wide {
		others := ""
		if len(n.OtherProxies) > 0 {
			others = "yes"
		}
		row = append(row, n.Version, strconv.Itoa(n.Endpoints), strconv.Itoa(n.Drift.Restored), orDash(others),
			orDash(m.Pod), strconv.Itoa(m.Restarts), age(now, n.Started), strconv.Itoa(n.Addresses), n.PodNetwork)
	}
	return row
}

// summary counts the nodes, and says what to do next.
func (c Cluster) summary() string {
	bad, next := 0, ""
	for _, m := range c.Nodes {
		if m.OK() {
			continue
		}
		bad++
		switch {
		case m.Pod == "" || next != "":
		case m.Status != nil:
			next = fmt.Sprintf("\nwhy: kubectl -n %s exec %s -- fairway status", c.Namespace, m.Pod)
		case m.State == "Running" || m.State == "CrashLoopBackOff" || m.State == "Error":
			next = fmt.Sprintf("\nwhy: kubectl -n %s logs %s", c.Namespace, m.Pod)
		default: // such as ImagePullBackOff: the pod has no log yet
			next = fmt.Sprintf("\nwhy: kubectl -n %s describe pod %s", c.Namespace, m.Pod)
		}
	}
	line := fmt.Sprintf("%d nodes, %d of them ok", len(c.Nodes), len(c.Nodes)-bad)
	if len(c.Nodes) == 1 {
		line = fmt.Sprintf("1 node, %d ok", 1-bad)
	}
	for _, level := range []Level{Attention, Unknown} {
		var names []string
		for _, p := range c.Parts {
			if p.Level == level {
				names = append(names, p.Name)
			}
		}
		if len(names) > 0 {
			line += fmt.Sprintf("; %s: %s", level, strings.Join(names, ", "))
		}
	}
	return line + next
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
