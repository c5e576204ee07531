package status

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// A Cluster is the status of all nodes.
type Cluster struct {
	Nodes     []Member  `json:"nodes"` // sorted by name
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

// OK reports whether no node needs attention.
func (c Cluster) OK() bool {
	for _, m := range c.Nodes {
		if !m.OK() {
			return false
		}
	}
	return len(c.Nodes) > 0
}

// WriteTable implements output.Value.
func (c Cluster) WriteTable(w io.Writer, wide bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := []string{"NODE", "AGENT", "VERSION", "MODE", "IN SYNC", "SERVICES", "ENDPOINTS", "DRIFT", "OTHER PROXIES", "DEGRADED"}
	if wide {
		head = append(head, "POD", "RESTARTS", "AGE", "ADDRESSES", "POD NETWORK")
	}
	fmt.Fprintln(tw, strings.Join(head, "\t"))
	for _, m := range c.Nodes {
		fmt.Fprintln(tw, strings.Join(m.row(c.Time, wide), "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", c.summary())
	return err
}

func (m Member) row(now time.Time, wide bool) []string {
	n := m.Status
	if n == nil {
		row := []string{m.Name, m.State, "-", "-", "-", "-", "-", "-", "-", orDash(m.Error)}
		if wide {
			row = append(row, orDash(m.Pod), strconv.Itoa(m.Restarts), "-", "-", "-")
		}
		return row
	}
	sync := age(now, n.Since)
	if !n.InSync {
		sync = strings.TrimSuffix("NO, "+sync, ", -")
	}
	others := ""
	if len(n.OtherProxies) > 0 {
		others = "yes"
	}
	var reasons []string
	for _, c := range n.Degraded {
		reasons = append(reasons, c.Reason)
	}
	row := []string{m.Name, m.State, n.Version, n.mode(), sync, strconv.Itoa(n.Services), strconv.Itoa(n.Endpoints),
		strconv.Itoa(n.Drift.Restored), orDash(others), orDash(strings.Join(reasons, ","))}
	if wide {
		row = append(row, orDash(m.Pod), strconv.Itoa(m.Restarts), age(now, n.Started), strconv.Itoa(n.Addresses), n.PodNetwork)
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
	if len(c.Nodes) == 1 {
		return fmt.Sprintf("1 node, %d ok%s", 1-bad, next)
	}
	return fmt.Sprintf("%d nodes, %d of them ok%s", len(c.Nodes), len(c.Nodes)-bad, next)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
