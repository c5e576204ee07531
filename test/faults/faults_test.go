package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/testnet"
)

// A fault is something that breaks.
type fault struct {
	name string
	// inject breaks it, mends it and returns.
	inject func(*rig)
	// forgets: the kernel itself forgets connections, or cannot carry new ones, meanwhile.
	forgets bool
}

// faults are all of them, in the order in which they are injected.
var faults = []fault{
	{name: "agent killed (-9)", inject: agentKilled},
	{name: "API server killed", inject: apiServerKilled},
}

// A rig is a cluster under load into which faults are injected.
type rig struct {
	*lab
	*load
	full   bool // all faults at full length, not CI's short form
	change *corev1.Service
}

// healing is how soon after a fault's end every node must carry what changed meanwhile.
const healing = 5 * time.Second

// TestFaults injects one fault after the other. FAULTS=full is what make faults sets: longer
// faults, all of them, and bounds of time.
func TestFaults(t *testing.T) {
	r := &rig{lab: newLab(t, 2), full: os.Getenv("FAULTS") == "full"}
	r.startPods(2)
	ways := r.ways(r.echoService("echo", corev1.ServiceTypeNodePort))
	r.carried(ways)
	patience := long
	if r.full {
		patience = 3 * time.Second
	}
	r.load = r.startLoad(ways, patience)
	table := newTable(r.now())
	for _, f := range faults {
		table.add(f.name, r.try(f))
	}
	r.load.end()
	fmt.Print(table)
}

// A result is what one fault did.
type result struct {
	tally
	lasted time.Duration // from the injection until the fault's end
	healed time.Duration // from then until every node carries what changed, and no request fails
}

// try injects a fault and waits until all is well.
func (r *rig) try(f fault) (res result) {
	r.Helper()
	before, start := r.now(), time.Now()
	r.change = nil
	f.inject(r)
	ended := time.Now()
	if r.change == nil {
		r.makeChange()
	}
	healed := r.awaitChange()
	after := r.now()
	if after.last.After(healed) {
		healed = after.last
	}
	res = result{tally: after.since(before), lasted: ended.Sub(start), healed: healed.Sub(ended)}
	r.judge(f, res)
	if err := r.api.CoreV1().Services(namespace).Delete(context.Background(), r.change.Name, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
	return res
}

// judge fails the test for what a fault may not do.
func (r *rig) judge(f fault, res result) {
	r.Helper()
	if !f.forgets && (res.lost > 0 || res.failed > 0) {
		r.Errorf("%s: %d of %d connections lost, %d of %d requests failed:\n%v", f.name, res.lost, res.conns, res.failed, res.requests, res.tally)
	}
	if r.full && res.healed > healing {
		r.Errorf("%s: healed after %v, want %v", f.name, res.healed, healing)
	}
	if res.answers == 0 || res.requests == 0 {
		r.Errorf("%s: there was no load: %+v", f.name, res.tally)
	}
}

// makeChange changes the cluster: there is one more Service. Faults during which the API can
// be written call it in their middle, so that the change is one that the agents miss.
func (r *rig) makeChange() {
	r.change = r.echoService(fmt.Sprintf("change-%d", time.Now().UnixMilli()), corev1.ServiceTypeClusterIP)
}

// awaitChange waits until every node carries the change, and returns when the last did.
func (r *rig) awaitChange() time.Time {
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
	return time.Now()
}

// agentKilled kills an agent; the kubelet starts another.
func agentKilled(r *rig) {
	n := r.nodes[0]
	old := r.agent(n)
	r.kill(old, unix.SIGKILL)
	r.makeChange()
	r.otherAgent(n, old)
}

// apiServerKilled ends the whole control plane, and starts it again from its data.
func apiServerKilled(r *rig) {
	r.killPlane()
	r.hold(20 * time.Second)
	r.startPlane()
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

// A table is what docs/reliability.md keeps.
type table struct{ strings.Builder }

func newTable(start tally) *table {
	t := &table{}
	fmt.Fprintf(t, "%s, %s, %d CPUs, load average %s; %d long-lived connections\n\n", time.Now().Format(time.DateOnly),
		firstWords("/proc/version", 3), runtime.NumCPU(), firstWords("/proc/loadavg", 1), start.conns)
	fmt.Fprintln(t, "| fault | lasted | connections lost | requests failed | healed after |")
	fmt.Fprintln(t, "|---|---|---|---|---|")
	return t
}

func (t *table) add(name string, r result) {
	fmt.Fprintf(t, "| %s | %.1f s | %d of %d | %d of %d | %.1f s |\n", name, r.lasted.Seconds(), r.lost, r.conns, r.failed, r.requests, max(0, r.healed.Seconds()))
}

// firstWords returns the first words of a file.
func firstWords(file string, n int) string {
	text, _ := os.ReadFile(file)
	words := strings.Fields(string(text))
	return strings.Join(words[:min(n, len(words))], " ")
}
