package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status writes what runs of the lab to out. A lab that is not whole is an
// error.
func (l Lab) Status(ctx context.Context, out io.Writer) error {
	state, err := l.load()
	if err != nil {
		return err
	}
	o := state.Options
	fmt.Fprintf(out, "lab: %s, %s, up for %s\nexport KUBECONFIG=%s\nlogs: %s\n\n", count(len(state.nodes()), "node"), o.Family,
		time.Since(state.Started).Round(time.Second), l.Kubeconfig(), l.logs())
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "PROCESS\tPID\tSTATE\tRESIDENT")
	for _, r := range state.Processes {
		if !r.Alive() {
			fmt.Fprintf(table, "%s\t%d\tdead\t-\n", r.Name, r.PID)
			continue
		}
		resident, err := r.Resident()
		if err != nil {
			return err
		}
		running := "runs"
		if faults := l.faults(state, r.Name); len(faults) > 0 {
			running = strings.Join(faults, ", ")
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d MB\n", r.Name, r.PID, running, resident/1_000_000)
	}
	if dead := state.dead(); len(dead) > 0 {
		return errors.Join(table.Flush(), fmt.Errorf("%s ended [%s starts it again, %s removes the lab]",
			strings.Join(dead, ", "), l.healCommand(dead[0]), l.Command("down")))
	}
	if err := l.nodeTable(ctx, table); err != nil {
		return errors.Join(table.Flush(), err)
	}
	return table.Flush()
}

func (l Lab) nodeTable(ctx context.Context, table io.Writer) error {
	_, client, err := l.client()
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	fmt.Fprintln(table, "\nNODE\tSTATUS\tADDRESS\tPODS\tPROXY")
	for _, n := range nodes.Items {
		status := "Ready"
		if why := unready(n); why != "" {
			status = "NotReady: " + why
		}
		var addrs []string
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				addrs = append(addrs, a.Address)
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", n.Name, status, strings.Join(addrs, ","),
			strings.Join(n.Spec.PodCIDRs, ","), proxyColumn(l.proxies(n.Name)))
	}
	return nil
}
