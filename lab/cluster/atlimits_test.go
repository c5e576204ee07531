package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/test/tenants"
)

// What a tenant at the API's limits may cost others.
const (
	// maxDelay is how long a change of another's Service may take, on a machine that is busy with the API server's
	// part of it too; maxLater beside the sets that CI has no time for. How long an agent takes: go test ./internal/proxy -bench Delay.
	maxDelay = 5 * time.Second
	maxLater = 20 * time.Second
	// maxMemory is how much a process of ours may have had in memory: its limit is 512 MiB.
	maxMemory = 400 // MiB
)

// A bystander is another tenant, whose Service is asked and changed, and who asks DNS, while others do what they can.
type bystander struct {
	*load
	client *kubernetes.Clientset
	plan   fabric.Plan
}

// bystander makes it: the Service loaded is asked, the Service fresh changes.
func (l *lab) bystander() *bystander {
	l.Helper()
	plan := fabric.Plan{Family: fabric.IPv4}
	at := plan.Node(1)[0].Addr().String()
	l.input(strings.ReplaceAll(loaded+"---"+strings.NewReplacer("loaded", "fresh", "10.96.7.7", "10.96.7.8", "30707", "30708").Replace(loaded), "NODE", at), "kubectl", "apply", "-f", "-")
	_, client, err := apiclient.New(filepath.Join(l.dir(), "kubeconfig"))
	if err != nil {
		l.Fatal(err)
	}
	b := &bystander{client: client, plan: plan}
	b.load = (&undo{lab: l}).startLoad(fabric.NodeName(1), at+":8087", map[string]string{
		fabric.Client: at + ":30707", fabric.NodeName(2): "10.96.7.7:80",
	})
	return b
}

// change takes the Service's endpoint away and gives it back, and returns how long each took to arrive at a node.
func (b *bystander) change(ctx context.Context) (longest time.Duration, err error) {
	all := b.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault)
	for _, ready := range []bool{false, true} {
		slice, err := all.Get(ctx, "fresh", metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		slice.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &ready}
		if _, err := all.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			return 0, err
		}
		for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
			err := b.once(fabric.NodeName(2), "10.96.7.8:80", time.Second)
			longest = max(longest, time.Since(began))
			if (err == nil) == ready {
				break
			}
			if longest > patience {
				return longest, fmt.Errorf("the endpoint of the Service fresh is ready: %v, and after %v the answer is %w", ready, longest, err)
			}
		}
	}
	return longest, nil
}

// resolve asks DNS for a name of the cluster from a node.
func (b *bystander) resolve(ctx context.Context) error {
	r := net.Resolver{PreferGo: true, Dial: func(_ context.Context, network, _ string) (net.Conn, error) {
		var c net.Conn
		err := b.in(fabric.NodeName(2), func() (err error) {
			c, err = net.DialTimeout(network, net.JoinHostPort(b.plan.DNS()[0].String(), "53"), patience)
			return err
		})
		return c, err
	}}
	_, err := r.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
	return err
}

// A cost is what others notice of a tenant.
type cost struct {
	changes, questions int
	longest            time.Duration // that a change took
	failed             []error
}

// notice changes the Service and asks DNS until done is closed.
func (b *bystander) notice(ctx context.Context, done <-chan struct{}) (c cost) {
	for {
		took, err := b.change(ctx)
		c.longest = max(c.longest, took)
		c.changes++
		if err == nil {
			err = b.resolve(ctx)
			c.questions++
		}
		if err != nil {
			c.failed = append(c.failed, err)
		}
		select {
		case <-done:
			return c
		case <-time.After(pulse):
		}
	}
}

// atLimits makes what a Set has in a namespace of its own and takes it away, and fails the test for what others notice.
func (l *lab) atLimits(b *bystander, s tenants.Set) {
	b.u = &undo{lab: l} // messages are this subtest's
	namespace := "limits-" + s.Name
	var text strings.Builder
	if err := s.Write(&text); err != nil {
		l.Fatal(err)
	}
	done, noticed := make(chan struct{}), make(chan cost)
	ctx, cancel := context.WithTimeout(l.Context(), 4*time.Minute)
	defer cancel()
	go func() { noticed <- b.notice(ctx, done) }()
	defer func() {
		close(done)
		c := <-noticed
		l.Logf("%s: %d changes, the longest %v; %d questions to DNS; memory at most: %s", s.Name, c.changes, c.longest.Round(time.Millisecond), c.questions, l.memory())
		most := maxLater
		if s.InCI {
			most = maxDelay
		}
		if err := errors.Join(c.failed...); err != nil || c.longest > most {
			l.Errorf("another's Service changes within %v, want %v: %v", c.longest, most, err)
		}
		b.checkpoint(s.Name)
		l.noRestarts()
	}()
	l.run("kubectl", "create", "namespace", namespace)
	l.input(text.String(), "kubectl", "-n", namespace, "create", "-f", "-")
	if s.Event != "" {
		l.within(time.Minute, s.Event, "kubectl", "-n", namespace, "get", "events", "-o", "custom-columns=REASON:.reason")
	}
	l.statusWorks()
	l.run("kubectl", "delete", "namespace", namespace, "--timeout=120s")
}

// statusWorks runs the commands with which a person looks at a cluster.
func (l *lab) statusWorks() {
	for _, args := range []string{
		"status", "node 1 -- fairway status", "node 2 -- fairway dump --service default/loaded",
		"node 1 -- fairway explain default/loaded", "kubectl get services -A -o name",
	} {
		began := time.Now()
		out, err := l.try(strings.Fields(args)...)
		late := strings.Contains(out, "NOT IN SYNC") // what the tenant wants is not there yet: status says so, and ends with 1
		if took := time.Since(began); err != nil && !late || took > 20*time.Second {
			l.Errorf("%s: %v after %v: %.500s", args, err, took, out)
		} else if took > 3*time.Second || late {
			l.Logf("%s took %v: %.60s", args, took, out)
		}
	}
}

// memory says how much each program of ours had in memory at most, in MiB, and fails the test for what is too much.
func (l *lab) memory() string {
	most := map[string]int{}
	for _, pid := range l.pids() {
		argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		words := strings.Split(string(argv), "\x00")
		if err != nil || len(words) < 2 || filepath.Base(words[0]) != "fairway" {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it has ended
		}
		_, text, _ := strings.Cut(string(status), "VmHWM:")
		if fields := strings.Fields(text); len(fields) > 0 {
			kilobytes, _ := strconv.Atoi(fields[0])
			most[words[1]] = max(most[words[1]], kilobytes>>10)
		}
	}
	if most["agent"] == 0 {
		l.Errorf("no agent was found among %d processes", len(l.pids()))
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(most)) {
		all = append(all, fmt.Sprintf("%s %d MiB", name, most[name]))
		if most[name] > maxMemory {
			l.Errorf("%s had %d MiB in memory, want %d at most", name, most[name], maxMemory)
		}
	}
	return strings.Join(all, ", ")
}

// noRestarts fails the test if a container of ours was started again.
func (l *lab) noRestarts() {
	out := l.run("kubectl", "-n", "kube-system", "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); slices.ContainsFunc(fields[min(1, len(fields)):], func(n string) bool { return n != "0" }) {
			l.Errorf("restarts: %s", line)
		}
	}
}
