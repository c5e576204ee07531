package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// nodePorts calls the front end on every node from outside, with fewer pods than nodes.
func nodePorts(ctx context.Context, d *demo) error {
	if err := d.scale(ctx, "frontend", 2); err != nil {
		return err
	}
	_, port, err := d.service(ctx, "frontend-service")
	if err != nil {
		return err
	}
	pods, err := d.pods(ctx, "frontend")
	if err != nil {
		return err
	}
	has := make(map[string]int)
	for _, p := range pods {
		has[p.Spec.NodeName]++
	}
	var nodes nodeList
	if err := d.get(ctx, &nodes, "nodes"); err != nil {
		return err
	}
	empty := 0
	for _, n := range nodes.Items {
		addr, err := n.address()
		if err != nil {
			return err
		}
		if has[n.Metadata.Name] == 0 {
			empty++
		}
		fmt.Fprintf(d.out, "   %s has %d of the front end's pods\n", n.Metadata.Name, has[n.Metadata.Name])
		if err := d.open(ctx, netip.AddrPortFrom(addr, port), pods); err != nil {
			return err
		}
	}
	if empty == 0 {
		return mismatch{"a node without a pod of the front end", fmt.Sprint(has)}
	}
	d.ok("all %d nodes answer, also the %d without a pod", len(nodes.Items), empty)
	return nil
}

// open gets the page once for a reader, and then often enough to meet every pod. With two pods, twenty requests miss
// one pod once in half a million runs.
func (d *demo) open(ctx context.Context, at netip.AddrPort, pods []pod) error {
	url := "http://" + at.String()
	out, err := d.show(ctx, "client", "--", "curl", "-sS", "--max-time", "5", url)
	if err != nil {
		return err
	}
	if !strings.Contains(out, title) {
		return mismatch{"the job's title", out}
	}
	const times = 20
	out, err = d.quiet(ctx, "client", "--", "curl", "-sS", "--max-time", "5", "-H", "Connection: close",
		"-H", "Accept: application/json", fmt.Sprintf("%s/?n=[1-%d]", url, times))
	if err != nil {
		return err
	}
	count := make(map[string]int)
	total := 0
	for line := range strings.Lines(out) {
		var j job
		if err := json.Unmarshal([]byte(line), &j); err != nil || j.Job != title {
			return mismatch{"a job in each line", line}
		}
		count[j.Frontend]++
		total++
	}
	if total != times || len(count) != len(pods) {
		return mismatch{fmt.Sprintf("%d answers at %v, from all %d pods", times, at, len(pods)), tally(count)}
	}
	fmt.Fprintf(d.out, "     and %d times more: %s\n", times, tally(count))
	return nil
}

// tally returns counts in words.
func tally(count map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d from %s", count[name], name))
	}
	return strings.Join(parts, ", ")
}

// objects shows the objects in the API server.
func objects(ctx context.Context, d *demo) error {
	if _, err := d.kubectl(ctx, "get", "endpoints,services"); err != nil {
		return err
	}
	for app, want := range map[string]int{"backend": 3, "frontend": 2} {
		addrs, err := d.endpoints(ctx, app+"-service")
		if err != nil {
			return err
		}
		if len(addrs) != want {
			return mismatch{fmt.Sprintf("%d endpoints of %s-service", want, app), fmt.Sprint(addrs)}
		}
	}
	d.ok("backend-service has 3 endpoints, frontend-service 2")
	return nil
}

// agents is the label of the agent's pods.
const agents = "app.kubernetes.io/name=fairway-agent"

// dump asks the agent on the client pod's node for the kernel's rules of the back end.
func dump(ctx context.Context, d *demo) error {
	var from pod
	if err := d.get(ctx, &from, "pod", client); err != nil {
		return err
	}
	var list podList
	err := d.get(ctx, &list, "pods", "-n", "kube-system", "-l", agents, "--field-selector", "spec.nodeName="+from.Spec.NodeName)
	if err != nil {
		return err
	}
	if len(list.Items) != 1 {
		return mismatch{"one agent on node " + from.Spec.NodeName, fmt.Sprintf("%d pods with the label %s", len(list.Items), agents)}
	}
	fmt.Fprintf(d.out, "   The client pod runs on %s; there:\n", from.Spec.NodeName)
	out, err := d.kubectl(ctx, "-n", "kube-system", "exec", list.Items[0].Metadata.Name, "--",
		"fairway", "dump", "--service", "default/backend-service")
	if err != nil {
		return err
	}
	at, _, err := d.service(ctx, "backend-service")
	if err != nil {
		return err
	}
	addrs, err := d.endpoints(ctx, "backend-service")
	if err != nil {
		return err
	}
	for _, a := range append(addrs, at.Addr()) {
		// The example's Service and its pods use the same port.
		if one := netip.AddrPortFrom(a, at.Port()).String(); !strings.Contains(out, one) {
			return mismatch{"the kernel to know " + one, out}
		}
	}
	d.ok("the kernel of %s sends %v to %v", from.Spec.NodeName, at, addrs)
	return nil
}
