package cluster

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Report describes the running parts of a lab. Its JSON fields are stable.
type Report struct {
	Name       string          `json:"name"`  // empty for the lab without a name
	State      string          `json:"state"` // up, starting, broken
	Family     string          `json:"family"`
	Started    time.Time       `json:"started"`
	Kubeconfig string          `json:"kubeconfig"`
	Logs       string          `json:"logs"`
	Published  []string        `json:"published,omitempty"` // HOSTPORT:NODEPORT
	Processes  []ProcessReport `json:"processes"`
	Nodes      []NodeReport    `json:"nodes,omitempty"` // as the API server lists them

	count int // number of the lab's nodes, registered or not
}

// A ProcessReport describes one process of a lab.
type ProcessReport struct {
	Name     string `json:"name"`
	PID      int    `json:"pid"`
	State    string `json:"state"` // runs, dead, or the faults of its machine
	Resident int64  `json:"residentBytes,omitempty"`
}

// A NodeReport describes one Node.
type NodeReport struct {
	Name      string        `json:"name"`
	Ready     bool          `json:"ready"`
	Reason    string        `json:"reason,omitempty"` // why the node is not ready
	Addresses []string      `json:"addresses"`
	PodCIDRs  []string      `json:"podCIDRs"`
	Proxies   []ProxyReport `json:"proxies"`
}

// A ProxyReport describes a proxy that carries Services on its node, as the proxy itself reports.
type ProxyReport struct {
	Name string `json:"name"`
	Mode string `json:"mode"`
}

// Status describes the running parts of the lab. If a process has ended, it returns both the report and an error.
func (l Lab) Status(ctx context.Context) (*Report, error) {
	state, err := l.load()
	if err != nil {
		return nil, err
	}
	r := &Report{
		Name: l.Name, State: state.phase(), Family: fmt.Sprint(state.Options.Family), Started: state.Started,
		Kubeconfig: l.Kubeconfig(), Logs: l.logs(), Published: state.Options.Publish, count: len(state.nodes()),
	}
	for _, p := range state.Processes {
		one := ProcessReport{Name: p.Name, PID: p.PID, State: "dead"}
		if p.Alive() {
			if one.Resident, err = p.Resident(); err != nil {
				return nil, err
			}
			one.State = "runs"
			if faults := l.faults(state, p.Name); len(faults) > 0 {
				one.State = strings.Join(faults, ", ")
			}
		}
		r.Processes = append(r.Processes, one)
	}
	if dead := state.dead(); len(dead) > 0 {
		return r, fmt.Errorf("%s ended [%s starts it again, %s removes the lab]",
			strings.Join(dead, ", "), l.healCommand(dead[0]), l.Command("down"))
	}
	r.Nodes, err = l.nodeReports(ctx)
	return r, err
}

func (l Lab) nodeReports(ctx context.Context) (all []NodeReport, err error) {
	_, client, err := l.client()
	if err != nil {
		return nil, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range nodes.Items {
		r := NodeReport{Name: n.Name, Reason: unready(n), PodCIDRs: n.Spec.PodCIDRs, Proxies: l.proxies(n.Name)}
		r.Ready = r.Reason == ""
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				r.Addresses = append(r.Addresses, a.Address)
			}
		}
		all = append(all, r)
	}
	return all, nil
}

// WriteTable implements output.Value.
func (r *Report) WriteTable(out io.Writer, _ bool) error {
	fmt.Fprintf(out, "lab: %s, %s, up for %s\nexport KUBECONFIG=%s\nlogs: %s\n", count(r.count, "node"), r.Family,
		time.Since(r.Started).Round(time.Second), r.Kubeconfig, r.Logs)
	for _, p := range r.Published {
		host, node, _ := strings.Cut(p, ":")
		fmt.Fprintf(out, "127.0.0.1:%s: NodePort %s\n", host, node)
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\nPROCESS\tPID\tSTATE\tRESIDENT")
	for _, p := range r.Processes {
		resident := "-"
		if p.State != "dead" {
			resident = fmt.Sprintf("%d MB", p.Resident/1_000_000)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", p.Name, p.PID, p.State, resident)
	}
	if len(r.Nodes) > 0 {
		fmt.Fprintln(table, "\nNODE\tSTATUS\tADDRESS\tPODS\tPROXY")
	}
	for _, n := range r.Nodes {
		status := "Ready"
		if !n.Ready {
			status = "NotReady: " + n.Reason
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", n.Name, status, strings.Join(n.Addresses, ","), strings.Join(n.PodCIDRs, ","), proxyColumn(n.Proxies))
	}
	return table.Flush()
}
