package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A rig is a cluster under load into which faults are injected.
type rig struct {
	*lab
	*load
	*front
	full   bool // all faults at full length, not CI's short form
	change *corev1.Service
	// whole is what else must be well after a fault; nil: nothing.
	whole func() error
	// after puts away what a fault has left, when all is well; nil: nothing.
	after func()
}

// healing is how soon after a fault's end every node must carry what changed meanwhile.
const healing = 5 * time.Second

// TestFaults injects one fault after the other. FAULTS=full is what make faults sets: longer
// faults, all of them, and bounds of time. ONLY is a pattern of names.
func TestFaults(t *testing.T) {
	r := &rig{lab: newLab(t, 2, "--load-balancer", "l2"), full: os.Getenv("FAULTS") == "full"}
	r.startPods(2)
	ways := r.ways(r.echoService("echo", corev1.ServiceTypeLoadBalancer))
	r.front = r.startFront()
	r.carried(ways)
	patience := long / 2
	if r.full {
		patience = 3 * time.Second
	}
	r.load = r.startLoad(ways, patience)
	var results []*result
	defer func() { // also if a fault ends the test
		r.load.end()
		fmt.Print(r.table(results))
		for _, res := range results {
			r.judge(res)
		}
	}()
	only := regexp.MustCompile(os.Getenv("ONLY"))
	for _, f := range faults {
		if only.MatchString(f.name) && (r.full || !f.slow) {
			results = append(results, r.try(f))
		}
	}
}

// A result is what one fault did.
type result struct {
	fault
	*tally
	start, end time.Time // of the fault
	carried    time.Time // when every node carried what had changed
}

// healed is how long after the end of the fault all was well.
func (r *result) healed() time.Duration {
	well := r.carried
	if r.last.After(well) {
		well = r.last
	}
	return max(0, well.Sub(r.end))
}

// try injects a fault and waits until all is well.
func (r *rig) try(f fault) *result {
	r.Helper()
	r.change, r.whole, r.after = nil, nil, nil
	res := &result{fault: f, tally: r.load.next(), start: time.Now()}
	f.inject(r)
	res.end = time.Now()
	if r.change == nil {
		r.makeChange()
	}
	r.awaitChange()
	if r.whole != nil {
		r.await("after the fault: "+f.name, r.whole)
	}
	res.carried = time.Now()
	if r.after != nil {
		r.after()
	}
	// A fault that ends at once may end between two requests.
	r.await("load during the fault: "+f.name, func() error { return r.load.met(res.tally) })
	r.await("answers on all connections after the fault: "+f.name, func() error { return r.load.settled(res.carried) })
	if err := r.api.CoreV1().Services(namespace).Delete(context.Background(), r.change.Name, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
	return res
}

// judge fails the test for what a fault may not do.
func (r *rig) judge(res *result) {
	if res.lost > 0 && !res.loses || res.failed > 0 && !res.fails {
		r.Errorf("%s: %d connections lost, %d of %d requests failed:\n%v", res.name, res.lost, res.failed, res.requests, res.tally)
	}
	if res.failed > 0 && res.fails {
		r.Logf("%s: %d of %d requests failed:\n%v", res.name, res.failed, res.requests, res.tally)
	}
	if r.full && res.healed() > healing {
		r.Errorf("%s: healed after %v, want %v", res.name, res.healed(), healing)
	}
	if res.answers == 0 || res.requests == 0 {
		r.Errorf("%s: there was no load: %d answers, %d requests", res.name, res.answers, res.requests)
	}
}

// makeChange changes the cluster: there is one more Service. Faults during which the API can
// be written call it in their middle, so that the change is one that the agents miss. It returns
// when the API has the Service's endpoints too, which a controller that has just started writes
// late.
func (r *rig) makeChange() {
	r.Helper()
	r.change = r.echoService(fmt.Sprintf("change-%d", time.Now().UnixMilli()), corev1.ServiceTypeClusterIP)
	r.await("endpoints of the new Service", func() error {
		slices, err := r.api.DiscoveryV1().EndpointSlices(namespace).List(context.Background(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + r.change.Name})
		if err != nil {
			return err
		}
		if len(slices.Items) == 0 || len(slices.Items[0].Endpoints) == 0 {
			return errors.New("there are none")
		}
		return nil
	})
}

// awaitChange waits until every node carries the change.
func (r *rig) awaitChange() {
	r.Helper()
	to := netip.AddrPortFrom(netip.MustParseAddr(r.change.Spec.ClusterIP), portTCP)
	var all sync.WaitGroup
	errs := make([]error, len(r.nodes))
	for i, n := range r.nodes {
		all.Go(func() {
			for end := time.Now().Add(long); ; time.Sleep(10 * time.Millisecond) {
				a := n.pods[0].Ask("tcp", to, testnet.Patience)
				if a.Outcome == testnet.Answered {
					return
				}
				if time.Now().After(end) {
					errs[i] = fmt.Errorf("%s does not carry a new Service after %v: %v", n.Name, long, a)
					return
				}
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		r.Fatal(err)
	}
}

// hold lets a fault last: d, in CI's short form a tenth of it.
func (r *rig) hold(d time.Duration) {
	if !r.full {
		d /= 10
	}
	end := time.NewTimer(d)
	defer end.Stop()
	<-end.C
}

// table is what docs/reliability.md keeps.
func (r *rig) table(results []*result) string {
	var t strings.Builder
	fmt.Fprintf(&t, "%s, %s, %d CPUs, load average %s; %d long-lived connections\n\n", time.Now().Format(time.DateOnly),
		firstWords("/proc/version", 3), runtime.NumCPU(), firstWords("/proc/loadavg", 1), r.load.conns)
	fmt.Fprintln(&t, "| fault | lasted | connections lost | requests failed | healed after |")
	fmt.Fprintln(&t, "|---|---|---|---|---|")
	for _, f := range results {
		fmt.Fprintf(&t, "| %s | %.1f s | %d | %d of %d | %.1f s |\n", f.name, f.end.Sub(f.start).Seconds(), f.lost, f.failed, f.requests, f.healed().Seconds())
	}
	return t.String()
}

// firstWords returns the first words of a file.
func firstWords(file string, n int) string {
	text, _ := os.ReadFile(file)
	words := strings.Fields(string(text))
	return strings.Join(words[:min(n, len(words))], " ")
}
