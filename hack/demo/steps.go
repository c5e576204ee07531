package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// title is a text in the back end's answer.
const title = "Instructor at Learnk8s"

// job is an answer of the back end. Frontend is set in answers of the front end.
type job struct{ Job, Pod, Frontend string }

// cluster brings the lab up, or uses a running one with any options.
func cluster(ctx context.Context, d *demo) error {
	do := []string{"status"}
	if _, err := d.quiet(ctx, "status"); err != nil {
		do = []string{"up", "--gateway"}
	}
	if _, err := d.show(ctx, do...); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "nodes", "-o", "wide"); err != nil {
		return err
	}
	var nodes nodeList
	if err := d.get(ctx, &nodes, "nodes"); err != nil {
		return err
	}
	ready := 0
	for _, n := range nodes.Items {
		if n.ready() {
			ready++
		}
	}
	if ready < 3 || ready != len(nodes.Items) {
		return mismatch{"three nodes or more, all Ready", fmt.Sprintf("%d nodes, %d Ready", len(nodes.Items), ready)}
	}
	d.ok("%d nodes, all Ready", ready)
	return nil
}

// application applies the manifests and starts the client pod.
func application(ctx context.Context, d *demo) error {
	if _, err := d.kubectl(ctx, "apply", "-f", d.manifests); err != nil {
		return err
	}
	if err := d.startClient(ctx); err != nil {
		return err
	}
	if err := d.awaitReplicas(ctx, "backend", 1); err != nil {
		return err
	}
	if err := d.awaitReplicas(ctx, "frontend", 3); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "wait", "--for=condition=Ready", "pod/"+client, "--timeout=60s"); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "pods", "-o", "wide"); err != nil {
		return err
	}
	d.ok("one back end, three front ends and a client pod run")
	return nil
}

// startClient runs the client pod, or keeps the running pod of an earlier demo.
func (d *demo) startClient(ctx context.Context) error {
	phase, err := d.quiet(ctx, "kubectl", "get", "pod", client, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
	if err != nil || phase == "Running" {
		return err
	}
	if phase != "" {
		if _, err := d.kubectl(ctx, "delete", "pod", client, "--now"); err != nil {
			return err
		}
	}
	_, err = d.kubectl(ctx, "run", client, "--image=curlimages/curl", "--restart=Never", "--", "sleep", "86400")
	return err
}

// names resolves the back end's Service as a pod does.
func names(ctx context.Context, d *demo) error {
	at, _, err := d.service(ctx, "backend-service")
	if err != nil {
		return err
	}
	if _, err := d.inPod(ctx, "cat", "/etc/resolv.conf"); err != nil {
		return err
	}
	const full = "backend-service.default.svc.cluster.local"
	for _, name := range []string{"backend-service", full} {
		out, err := d.inPod(ctx, "nslookup", name)
		if err != nil {
			return err
		}
		if !answers(out, full, at.Addr()) {
			return mismatch{fmt.Sprintf("%s to be %v", name, at.Addr()), out}
		}
		d.ok("%s is %v", name, at.Addr())
	}
	return nil
}

// answers reports whether nslookup's output gives name exactly one address. Its remarks begin with two semicolons, such
// as that recursion is missing, as in every authoritative answer of CoreDNS.
func answers(out, name string, want netip.Addr) bool {
	_, rest, found := strings.Cut(out, "Name:\t"+name+"\n")
	var facts []string
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, ";;") {
			facts = append(facts, strings.Fields(line)...)
		}
	}
	return found && slices.Equal(facts, []string{"Address:", want.String()})
}

// calls asks the back end from the client pod.
func calls(ctx context.Context, d *demo) error {
	at, _, err := d.service(ctx, "backend-service")
	if err != nil {
		return err
	}
	pods, err := d.pods(ctx, "backend")
	if err != nil {
		return err
	}
	for _, host := range []string{fmt.Sprintf("backend-service:%d", at.Port()), at.String()} {
		out, err := d.inPod(ctx, "curl", "-sS", "--max-time", "5", "http://"+host)
		if err != nil {
			return err
		}
		var j job
		if err := json.Unmarshal([]byte(out), &j); err != nil || j.Job != title || !hasPod(pods, j.Pod) {
			return mismatch{fmt.Sprintf("a job from the pod of the back end at http://%s", host), out}
		}
		d.ok("%s was answered by %s", host, j.Pod)
	}
	return nil
}

func hasPod(pods []pod, name string) bool {
	return slices.ContainsFunc(pods, func(p pod) bool { return p.Metadata.Name == name })
}

// The requests of step 5, and the fewest that one of three back ends may get. 100 are expected with a standard
// deviation of 8.2, so fewer than 50 is not chance.
const (
	requests = 300
	fewest   = 50
)

// spread scales the back end up and counts the answers of each pod.
func spread(ctx context.Context, d *demo) error {
	at, _, err := d.service(ctx, "backend-service")
	if err != nil {
		return err
	}
	if err := d.scale(ctx, "backend", 3); err != nil {
		return err
	}
	pods, err := d.pods(ctx, "backend")
	if err != nil {
		return err
	}
	// Each request uses a new connection, because a Service balances connections.
	args := []string{"exec", client, "--", "curl", "-sS", "--max-time", "5", "-H", "Connection: close", fmt.Sprintf("http://%s/?n=[1-%d]", at, requests)}
	fmt.Fprintf(d.out, "   $ %s\n", typed(d.lab, append([]string{"kubectl"}, args...)))
	out, err := d.quiet(ctx, append([]string{"kubectl"}, args...)...)
	if err != nil {
		return err
	}
	count := make(map[string]int)
	for line := range strings.Lines(out) {
		var j job
		if err := json.Unmarshal([]byte(line), &j); err != nil {
			return mismatch{"a job in each line", line}
		}
		count[j.Pod]++
	}
	total := 0
	for _, p := range pods {
		n := count[p.Metadata.Name]
		fmt.Fprintf(d.out, "     %4d  %-44s %-12s %s\n", n, p.Metadata.Name, p.Spec.NodeName, strings.Repeat("█", n/5))
		if n < fewest {
			return mismatch{fmt.Sprintf("at least %d requests for each pod", fewest), fmt.Sprintf("%d for %s", n, p.Metadata.Name)}
		}
		total += n
	}
	if total != requests {
		return mismatch{fmt.Sprintf("%d answers, all of pods that exist", requests), tally(count)}
	}
	d.ok("%d requests, %d answers, from each of %d pods", requests, total, len(pods))
	return nil
}
