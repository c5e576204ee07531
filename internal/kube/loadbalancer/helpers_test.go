package loadbalancer

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/api"
)

const deadline = 20 * time.Second

// TestMain lets more tests run at a time than there are processors, because most of the slow tests wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func runUntilEnd(t *testing.T, s interface{ Run(context.Context) error }) {
	t.Helper()
	runStoppable(t, s.Run)
}

// runStoppable runs until the returned function is called, or until the test ends.
func runStoppable(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stopped := false
	stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

func waitFor(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(deadline):
		t.Fatalf("%s did not happen in %v", what, deadline)
	}
}

func apiNode(name string, addrs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func addressesOf(o *corev1.Service) []string {
	var all []string
	for _, in := range o.Status.LoadBalancer.Ingress {
		all = append(all, in.IP)
	}
	return all
}

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func checkProblems(t *testing.T, ps []api.Problem) {
	t.Helper()
	for _, p := range ps {
		if p.Reason == "" || p.Message == "" {
			t.Errorf("problem %+v says nothing", p)
		}
	}
}
