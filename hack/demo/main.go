// Demo shows on a real cluster that Services work. It brings up the lab, applies examples/two-tier unchanged and
// follows packets to pods, step by step, with each command and its real output.
//
//	demo ─► bin/fairway-lab up | kubectl … | client -- … | down
//	step 1 … 11: title, commands as typed, their output, ✓ a fact that held or ✗ the expectation and the observation
//
// It prints everything that it checks. Its exit status is 0 only if every step held. Every step has a time limit. The
// demo can run again on the same lab.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// step is one fact to show. An unmet expectation is an error with the observation.
type step struct {
	title string
	bound time.Duration
	run   func(context.Context, *demo) error
}

// steps are in order: later steps rely on the results of earlier ones.
var steps = []step{
	{"A cluster of three nodes", 3 * time.Minute, cluster},
	{"The application of the article, unchanged", 90 * time.Second, application},
	{"A pod resolves the Service by its short and by its full name", 30 * time.Second, names},
	{"A pod calls the Service by name and by ClusterIP", 30 * time.Second, calls},
	{"Three back ends share 300 requests", 90 * time.Second, spread},
	{"Every node opens the NodePort to a client outside the cluster", 90 * time.Second, nodePorts},
	{"What Kubernetes knows", 30 * time.Second, objects},
	{"A pod is deleted while requests run", 90 * time.Second, deletion},
	{"What the node's kernel holds, in our terms", 30 * time.Second, dump},
	{"An Ingress with ingress-nginx' annotations leads a client outside to both tiers", 60 * time.Second, ingress},
	{"A client outside calls an address of the pool; the node that announces it loses its power", 3 * time.Minute, balancer},
}

func main() {
	lab := flag.String("lab", "bin/fairway-lab", "the lab's program")
	manifests := flag.String("manifests", "examples/two-tier", "directory of the application's manifests")
	down := flag.Bool("down", false, "take the lab down at the end, whatever the outcome")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	d := &demo{lab: *lab, manifests: *manifests, leave: !*down, out: os.Stdout}
	if err := check(d); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	err := d.all(ctx, steps)
	if *down {
		err = errors.Join(err, d.down())
	}
	if err != nil {
		os.Exit(1)
	}
}

// check finds mistakes before anything is started.
func check(d *demo) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab makes network namespaces and needs root [run `sudo make demo`]")
	}
	for _, file := range []string{d.lab, d.manifests} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("%w [run `make demo`, which builds everything first, from the root of the repository]", err)
		}
	}
	return nil
}

// all runs the steps until one fails, and prints what a person can do next.
func (d *demo) all(ctx context.Context, steps []step) error {
	began := time.Now()
	for i, s := range steps {
		fmt.Fprintf(d.out, "\n%d. %s\n", i+1, s.title)
		start := time.Now()
		bounded, cancel := context.WithTimeoutCause(ctx, s.bound, fmt.Errorf("the step took longer than %v", s.bound))
		err := s.run(bounded, d)
		if err != nil && bounded.Err() != nil {
			err = errors.Join(err, context.Cause(bounded))
		}
		cancel()
		if err != nil {
			fmt.Fprintf(d.out, "   ✗ %s\n\nStep %d of %d failed.", indent(err.Error(), "     "), i+1, len(steps))
			d.lookAround()
			return err
		}
		fmt.Fprintf(d.out, "   (%.1f s)\n", time.Since(start).Seconds())
	}
	fmt.Fprintf(d.out, "\nAll %d steps held, in %.0f s.", len(steps), time.Since(began).Seconds())
	d.lookAround()
	return nil
}

// lookAround prints commands for the lab that is left.
func (d *demo) lookAround() {
	if !d.leave {
		fmt.Fprintln(d.out)
		return
	}
	fmt.Fprintf(d.out, ` The lab is left up; look around:
   %[1]s kubectl get pods -A -o wide
   %[1]s kubectl -n kube-system logs ds/fairway-agent
   %[1]s node 1 -- nft list ruleset
   %[1]s client -- curl -s http://NODE:NODEPORT
   %[1]s down
`, d.lab)
}

// down removes the lab, also after an interruption.
func (d *demo) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := d.show(ctx, "down")
	if err != nil {
		fmt.Fprintf(d.out, "   ✗ %s\n", indent(err.Error(), "     "))
	}
	return err
}
