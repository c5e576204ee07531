package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// outside is the Service of type LoadBalancer of the last step.
const outside = "backend-outside"

// The requests of the last step. A request must take less time than the outage. The gap between two answers is then
// little more than the outage.
const (
	outsideRate     = 20
	outsideLasting  = 15 * time.Second
	outsidePatience = "0.3" // seconds
)

// balancer gives the back end an address for clients outside, cuts the power of the node that announces it while a
// client calls, and shows the longest gap without an answer.
func balancer(ctx context.Context, d *demo) error {
	if speakers, err := d.quiet(ctx, "kubectl", "-n", "kube-system", "get", "daemonset", "fairway-speaker", "--ignore-not-found", "-o", "name"); err != nil || speakers == "" {
		fmt.Fprintf(d.out, "   This lab announces no addresses: left out (`%s up` of a new lab does, with --load-balancer l2)\n", d.lab)
		return err
	}
	at, err := d.exposed(ctx)
	if err != nil {
		return err
	}
	owner, err := d.owner(ctx, "")
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "   %s announces %v\n", owner, at)
	if err := d.outage(ctx, at, owner); err != nil {
		return err
	}
	next, err := d.owner(ctx, owner)
	if err != nil {
		return err
	}
	d.ok("%s announces %v now", next, at)
	if _, err := d.show(ctx, "restart-node", strings.TrimPrefix(owner, "node-")); err != nil {
		return err
	}
	return d.awaitReplicas(ctx, "backend", 3)
}

// exposed recreates the Service, waits until the client gets an answer, and returns the address.
func (d *demo) exposed(ctx context.Context) (netip.Addr, error) {
	if _, err := d.quiet(ctx, "kubectl", "delete", "service", outside, "--ignore-not-found"); err != nil {
		return netip.Addr{}, err
	}
	_, err := d.kubectl(ctx, "expose", "deployment", "backend-deployment", "--name", outside, "--type", "LoadBalancer", "--port", "80", "--target-port", "3000")
	if err != nil {
		return netip.Addr{}, err
	}
	var at netip.Addr
	err = until(ctx, "an address for "+outside, func() (string, bool, error) {
		out, err := d.quiet(ctx, "kubectl", "get", "service", outside, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err == nil && out != "" {
			at, err = netip.ParseAddr(out)
		}
		return fmt.Sprintf("%q", out), at.IsValid(), err
	})
	if err != nil {
		return at, err
	}
	if _, err := d.kubectl(ctx, "get", "service", outside); err != nil {
		return at, err
	}
	if err := d.answered(ctx, at); err != nil {
		return at, err
	}
	_, err = d.show(ctx, call(at)...)
	return at, err
}

// call is one request of the client outside.
func call(at netip.Addr) []string {
	return []string{"client", "--", "curl", "-sS", "--max-time", "5", "http://" + at.String()}
}

// answered waits until the client outside gets an answer.
func (d *demo) answered(ctx context.Context, at netip.Addr) error {
	return until(ctx, "an answer at "+at.String(), func() (string, bool, error) {
		out, err := d.quiet(ctx, call(at)...)
		return out, strings.Contains(out, title), err
	})
}

// owner returns the node that announces the address. It skips not, the previous owner, whose object may still exist.
func (d *demo) owner(ctx context.Context, not string) (owner string, err error) {
	err = until(ctx, "one node to announce "+outside, func() (string, bool, error) {
		out, err := d.quiet(ctx, "kubectl", "-n", "metallb-system", "get", "servicel2statuses", "-l", "metallb.io/service-name="+outside,
			"-o", "jsonpath={.items[*].status.node}")
		nodes := slices.DeleteFunc(strings.Fields(out), func(n string) bool { return n == not })
		if len(nodes) == 1 {
			owner = nodes[0]
		}
		return fmt.Sprintf("%q", out), owner != "", err
	})
	return owner, err
}

// outage cuts the owner's power while the client calls the address.
func (d *demo) outage(ctx context.Context, at netip.Addr, owner string) error {
	n := outsideRate * int(outsideLasting.Seconds())
	results, err := d.requests(ctx, n, "client", "--", "curl", "-s", "--rate", fmt.Sprintf("%d/s", outsideRate), "--max-time", outsidePatience,
		"-H", "Connection: close", "-w", `%{http_code} %{errormsg}\n`, fmt.Sprintf("http://%v/?n=[1-%d]", at, n))
	if err != nil {
		return err
	}
	var answers []answer
	var began, done time.Time
	for a := range results {
		answers = append(answers, a)
		if len(answers) == outsideRate { // load for a second first
			began = time.Now()
			if _, err := d.show(ctx, "fault", "node", strings.TrimPrefix(owner, "node-"), "kill"); err != nil {
				return err
			}
			done = time.Now()
		}
	}
	if done.IsZero() {
		return mismatch{fmt.Sprintf("%d requests", n), fmt.Sprint(len(answers))}
	}
	sent := len(answers)
	if !slices.ContainsFunc(answers, func(a answer) bool { return a.err == "" && a.at.After(done) }) {
		if err := d.answered(ctx, at); err != nil {
			return err
		}
		answers = append(answers, answer{at: time.Now()})
	}
	gap, failed := longestGap(answers, began)
	fmt.Fprintf(d.out, "     %4d  requests, %d of them without an answer\n", sent, failed)
	d.ok("no answer for %.1f s, then from another node", gap.Seconds())
	return nil
}

// longestGap returns the longest gap between two answers that ends after cut, and the number of failed requests.
func longestGap(answers []answer, cut time.Time) (gap time.Duration, failed int) {
	var last time.Time
	for _, a := range answers {
		if a.err != "" {
			failed++
			continue
		}
		if a.at.After(cut) && !last.IsZero() {
			gap = max(gap, a.at.Sub(last))
		}
		last = a.at
	}
	return gap, failed
}
