package peers

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/test/peers/apiserver"
	"github.com/fairway-net/fairway/test/peers/process"
)

// soon is how long an expected event may take.
const soon = time.Minute

// TestTakeover replaces a running kube-proxy by our agent, and our agent by kube-proxy again. Open flows continue under
// the other program, and no new flow is refused.
func TestTakeover(t *testing.T) {
	for _, c := range []struct{ theirs, ours string }{
		{"nftables", "nftables"}, {"iptables", "nftables"}, {"iptables", "iptables"}, {"nftables", "iptables"}, {"iptables", "userspace"},
	} {
		t.Run(c.theirs+" to "+c.ours, func(t *testing.T) { takeOver(t, c.theirs, c.ours) })
	}
}

func takeOver(t *testing.T, theirs, ours string) {
	o := &oracle{api: apiserver.New(), holds: objects{}}
	o.api.Put(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{services4, services6}},
	})
	o.api.Put(o.node(""))
	o.putStable()
	config := configured(podsKnown)
	tw := newTwin(t, o.api, "kube-proxy", binary(t, "kube-proxy"), "--master", "http://"+apiPort, "--config", config.file(t, theirs))
	n := &takenNode{t: t, tw: tw}
	n.synced(tw.proc)
	flows := openFlows(t, tw)
	load := n.load(flows)

	agent := n.agent("--config", config.file(t, ours), "--replace-kube-proxy")
	n.until("the agent to take over", agent, func() bool { return strings.Contains(agent.Output(), "took over from kube-proxy") })
	flows.hold(0)
	t.Log("our agent has taken over; kube-proxy is stopped")
	if err := tw.proc.Stop(); err != nil {
		t.Fatal(err)
	}
	n.until("the agent to serve the ports that kube-proxy had", agent, func() bool { return n.tw.get("10249/proxyMode") == ours })
	n.until("kube-proxy's rules to be gone", agent, func() bool { return n.remains() == "" })
	flows.hold(0)
	flows.fresh()

	if ours == "userspace" { // connections of this mode end with the agent
		load.end()
		return
	}
	if ours == "iptables" && theirs != ours {
		// A kube-proxy that starts in another mode takes the chains KUBE-… for its own, and removes them before it writes
		// rules. So we switch the mode first.
		ours = "nftables"
		if err := agent.Stop(); err != nil {
			t.Fatal(err)
		}
		agent = n.agent("--config", config.file(t, ours))
		n.until("the switch to mode nftables", agent, func() bool { return strings.Contains(agent.Output(), "removed the rules of another mode") })
		flows.hold(0)
	}
	if err := agent.Stop(); err != nil {
		t.Fatal(err)
	}
	if theirs == ours {
		n.release(o)
	} else {
		n.cleanUp()
	}
	if out, err := n.fairway("dump"); err == nil || !strings.Contains(out, "no mode has rules on this node") {
		t.Errorf("fairway dump says: %s", out)
	}
	flows.hold(0)
	flows.fresh()
	load.end()
}

// cleanUp gives the node back to kube-proxy by hand.
func (n *takenNode) cleanUp() {
	n.t.Helper()
	n.t.Log("kube-proxy is back; our agent is stopped")
	n.tw.start(n.t)
	n.synced(n.tw.proc)
	n.t.Log("kube-proxy has written its rules; ours are removed")
	if out, err := n.fairway("agent", "--cleanup"); err != nil {
		n.t.Errorf("fairway agent --cleanup: %v: %s", err, out)
	}
}

// release gives the node back to kube-proxy by an agent in mode none, which keeps our rules
// up to date until kube-proxy's are there, and then removes them.
func (n *takenNode) release(o *oracle) {
	n.t.Helper()
	agent := n.agent("--proxy-mode", "none", "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48",
		"--healthz-bind-address=", "--metrics-bind-address=",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s")
	n.until("the agent to say that rules of ours are here", agent, func() bool { return strings.Contains(agent.Output(), "kept up to date") })
	o.mark("")
	n.until("a change to be served in mode none", agent, func() bool {
		out, err := n.fairway("dump")
		return err == nil && strings.Contains(out, fmt.Sprint("10.96.255.1:", o.markPort()))
	})
	n.t.Log("kube-proxy is back, beside our agent in mode none")
	n.tw.start(n.t)
	n.synced(n.tw.proc)
	n.until("the agent to hand over", agent, func() bool { return strings.Contains(agent.Output(), "removed the rules of our mode") })
}

// A takenNode is the node whose Services move from one program to the other.
type takenNode struct {
	t  *testing.T
	tw *twin
}

// agent starts our agent next to the programs on the node.
func (n *takenNode) agent(args ...string) *process.Process {
	n.t.Helper()
	argv := append([]string{binary(n.t, "fairway"), "agent", "--master", "http://" + apiPort}, args...)
	p, err := process.Start(n.tw.node.Do, "fairway", argv...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = p.Stop() })
	return p
}

// fairway runs a command of ours on the node until it ends.
func (n *takenNode) fairway(args ...string) (out string, err error) {
	return n.output(binary(n.t, "fairway"), args...)
}

// output runs a program on the node until it ends.
func (n *takenNode) output(program string, args ...string) (out string, err error) {
	cmd := exec.Command(program, args...)
	err = n.tw.node.Do(func() error {
		text, err := cmd.CombinedOutput()
		out = string(text)
		return err
	})
	return out, err
}

// until waits until done returns true. It fails the test if p ends, or after soon.
func (n *takenNode) until(what string, p *process.Process, done func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(soon); !done(); time.Sleep(20 * time.Millisecond) {
		if err := p.Alive(); err != nil {
			n.t.Fatalf("wait for %s: %v", what, err)
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("waited %v for %s; of kube-proxy there is %q\n%s says:\n%s", soon, what, n.remains(), p.Name, end(p.Output()))
		}
	}
}

// synced waits until kube-proxy has written the rules of both families.
func (n *takenNode) synced(kubeProxy *process.Process) {
	n.t.Helper()
	n.until("kube-proxy's first pass", kubeProxy, func() bool {
		metrics := n.tw.get("10249/metrics")
		for _, family := range []string{"IPv4", "IPv6"} {
			name := fmt.Sprintf("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=%q} ", family)
			_, value, ok := strings.Cut(metrics, name)
			if !ok || strings.HasPrefix(value, "0\n") {
				return false
			}
		}
		return true
	})
}

// remains returns the rest of kube-proxy's rules.
func (n *takenNode) remains() string {
	var all []takeover.Remain
	err := n.tw.node.Do(func() (err error) {
		all, err = (&takeover.KubeProxy{}).Find(context.Background())
		return err
	})
	if err != nil {
		return err.Error()
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprint(all)
}

// A stream opens new flows until end is called.
type stream struct {
	n    *takenNode
	stop chan struct{}
	wg   sync.WaitGroup
}

// load opens flows to every frontend. Each must get an answer.
func (n *takenNode) load(f *flows) *stream {
	l := &stream{n: n, stop: make(chan struct{})}
	l.wg.Go(func() {
		for rounds := 0; ; rounds++ {
			select {
			case <-l.stop:
				n.t.Logf("%d rounds of new flows", rounds)
				return
			default:
				f.fresh()
			}
		}
	})
	n.t.Cleanup(l.end)
	return l
}

func (l *stream) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wg.Wait()
}
