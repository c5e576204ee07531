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

// The limits of the effects that a tenant at the API's limits may have on others.
const (
	// maxDelay limits the delay of a change of another Service. The machine is also busy with the API server's part of
	// the load. maxLater is the limit next to the sets that CI has no time for. go test ./internal/proxy -bench Delay
	// measures the agent's part.
	maxDelay = 5 * time.Second
	maxLater = 20 * time.Second
	// maxMemory is the limit of the peak memory of one of Fairway's processes. Its container's limit is 512 MiB.
	maxMemory = 400 // MiB
)

// A bystander is another tenant. It uses and changes its Service, and sends queries to DNS, while other tenants are at
// their limits.
type bystander struct {
	*load
	client *kubernetes.Clientset
	plan   fabric.Plan
}

// bystander creates the bystander. It uses the Service loaded, and changes the Service fresh.
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
		at + ":30707": fabric.Client, "10.96.7.7:80": fabric.NodeName(2),
	})
	return b
}

// change removes the Service's endpoint and adds it again. It returns the longest time until a node has a change.
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

// A cost is the effect of a tenant on others.
type cost struct {
	changes, questions int
	longest            time.Duration // of a change
	failed             []error
}

// notice changes the Service and queries DNS until done is closed.
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

// atLimits creates the objects of a Set in a new namespace and deletes them. It fails the test if others notice too
// much.
func (l *lab) atLimits(b *bystander, s tenants.Set) {
	b.u = &undo{lab: l} // messages belong to this subtest
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

// statusWorks runs the commands that show a cluster's state.
func (l *lab) statusWorks() {
	for _, args := range []string{
		"status", "node 1 -- fairway status", "node 2 -- fairway dump --service default/loaded",
		"node 1 -- fairway explain default/loaded", "kubectl get services -A -o name",
	} {
		began := time.Now()
		out, err := l.try(strings.Fields(args)...)
		late := strings.Contains(out, "NOT IN SYNC") // the tenant's objects are not programmed yet, so status exits with 1
		if took := time.Since(began); err != nil && !late || took > 20*time.Second {
			l.Errorf("%s: %v after %v: %.500s", args, err, took, out)
		} else if took > 3*time.Second || late {
			l.Logf("%s took %v: %.60s", args, took, out)
		}
	}
}

// memory returns the peak memory of each of Fairway's programs in MiB. It fails the test if a program used too much.
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
			continue // the process has ended
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

// noRestarts fails the test if one of Fairway's containers has restarted.
func (l *lab) noRestarts() {
	out := l.run("kubectl", "-n", "kube-system", "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); slices.ContainsFunc(fields[min(1, len(fields)):], func(n string) bool { return n != "0" }) {
			l.Errorf("restarts: %s", line)
		}
	}
}
