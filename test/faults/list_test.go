package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A fault is something that breaks.
type fault struct {
	name string
	// inject breaks it, mends it and returns.
	inject func(*rig)
	fails  bool // new requests fail meanwhile: what carries them is gone
	loses  bool // the kernel itself forgets connections
	slow   bool // it is left out of the short form: it waits for what cannot be made shorter
}

// faults are all of them, in the order in which they are injected. Those that drop packets come
// first: in the short form what they dropped is waited for, for long, while others are injected.
var faults = []fault{
	{name: "link of a node down", inject: linkDown, fails: true, loses: true},
	{name: "nft flush ruleset", inject: flushed, fails: true, loses: true},
	{name: "conntrack -F", inject: conntrackFlushed, fails: true, loses: true},
	{name: "a foreign table drops", inject: foreignTable, fails: true},
	{name: "routes deleted, forwarding off", inject: routesDeleted, fails: true},
	{name: "agent killed (-9)", inject: agentKilled},
	{name: "agent stopped for 30 s", inject: agentStopped},
	{name: "agent without descriptors", inject: noDescriptors},
	{name: "agent without processes", inject: noProcesses},
	{name: "a second agent", inject: secondAgent},
	{name: "API server: 2 s a call", inject: func(r *rig) { r.front.slow(2 * time.Second); r.meanwhile() }},
	{name: "API server: 429", inject: func(r *rig) { r.front.overloaded(); r.meanwhile() }},
	{name: "API server: 500", inject: func(r *rig) { r.front.broken(); r.meanwhile() }},
	{name: "API server: 403, RBAC withdrawn", inject: rightsWithdrawn},
	{name: "API server: another CA", inject: otherCA},
	{name: "API server: ends each watch at once", inject: watchesEnd},
	{name: "API server: its connections go dead", inject: connectionsDead, slow: true},
	{name: "API server: 401, then a new token", inject: tokenRotated, slow: true},
	{name: "API server: all lists empty", inject: listsEmpty},
	{name: "API server killed", inject: apiServerKilled},
	{name: "containerd killed (-9)", inject: containerdKilled},
	{name: "disk full", inject: diskFull},
	{name: "disk read-only", inject: diskReadOnly},
	{name: "Node deleted and made again", inject: nodeDeleted},
	{name: "address of a node changed", inject: addressChanged, fails: true},
	{name: "speakers killed (-9)", inject: speakerKilled},
	{name: "agent at its limit of memory", inject: outOfMemory, slow: true},
}

// meanwhile changes the cluster, lets what the front does last, and ends it.
func (r *rig) meanwhile() {
	r.makeChange()
	r.hold(30 * time.Second)
	if r.front.answered() == 0 {
		r.Error("the fault met no request")
	}
	r.front.mend()
}

// agentKilled kills an agent; the kubelet starts another.
func agentKilled(r *rig) {
	n := r.nodes[0]
	old := r.agent(n)
	r.kill(old, unix.SIGKILL)
	r.makeChange()
	r.otherAgent(n, old)
}

// agentStopped stops an agent for a time.
func agentStopped(r *rig) {
	pid := r.agent(r.nodes[0])
	r.kill(pid, unix.SIGSTOP)
	r.makeChange()
	r.hold(30 * time.Second)
	r.kill(pid, unix.SIGCONT)
}

// noDescriptors takes from an agent the right to open one more descriptor.
func noDescriptors(r *rig) {
	pid := r.agent(r.nodes[0])
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		r.Fatal(err)
	}
	set := func(limit unix.Rlimit) {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
			r.Fatal(err)
		}
	}
	set(unix.Rlimit{Cur: 3, Max: was.Max})
	r.makeChange()
	r.hold(30 * time.Second)
	set(was)
	r.whole = func() error {
		if now := r.agent(r.nodes[0]); now != pid {
			return fmt.Errorf("process %d is the agent, it was %d", now, pid)
		}
		return r.healthy(r.nodes[0])
	}
}

// secondAgent starts another agent on a node, in another mode. It must not touch the rules.
func secondAgent(r *rig) {
	n := r.nodes[0]
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command(filepath.Join(filepath.Dir(r.program), "fairway"), "agent", "--kubeconfig", r.path("kubeconfig"),
			"--hostname-override", n.Name, "--proxy-mode", "iptables").CombinedOutput()
		return err
	})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "another fairway agent") {
		r.Errorf("a second agent: %v, says %s", err, out)
	}
}

// tokenRotated has the API server refuse the agents' tokens before they have others. Kubelets
// fetch others when they start.
func tokenRotated(r *rig) {
	var tokens []string
	for _, n := range r.nodes {
		tokens = append(tokens, r.token(n))
	}
	r.front.unauthorized(tokens)
	r.makeChange()
	r.hold(30 * time.Second)
	if r.front.answered() == 0 {
		r.Error("the fault met no request")
	}
	for _, n := range r.nodes {
		for _, pid := range r.processes(n, "fairway-lab", "child", "kubelet") {
			r.kill(pid, unix.SIGKILL)
		}
	}
	for i, n := range r.nodes {
		r.await("a new token on "+n.Name, func() error {
			if r.token(n) == tokens[i] {
				return errors.New("it is the old one")
			}
			return nil
		})
	}
	r.after = r.front.mend
}

// token is what the node's agent shows the API server, or would if it read it now.
func (r *rig) token(n *node) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/var/run/secrets/kubernetes.io/serviceaccount/token", r.agent(n)))
	if err != nil {
		r.Fatal(err)
	}
	return string(text)
}

// listsEmpty has the API server say that there is nothing in the cluster.
func listsEmpty(r *rig) {
	r.front.empty()
	r.makeChange()
	r.awaitAskers()
	r.hold(30 * time.Second)
	r.front.listAgain()
}

// awaitAskers waits until the fault has answered what Services need, on every node.
func (r *rig) awaitAskers() {
	r.Helper()
	for _, kind := range []string{"services", "endpointslices"} {
		r.await("requests for "+kind, func() error {
			if n := r.front.askers(kind); n < len(r.nodes) {
				return fmt.Errorf("%d agents have asked", n)
			}
			return nil
		})
	}
}

// connectionsDead lets nothing pass on the agents' connections to the API server, as if its
// machine had lost power, and another had taken over: who connects anew reaches it. Nobody
// tells an agent, which must find out and carry the change while the old connections stay dead.
func connectionsDead(r *rig) {
	r.front.watched() // on new connections: none is about to be made for another reason
	r.awaitAskers()
	nft := func(argv ...string) {
		err := r.control.Do(func() error {
			out, err := exec.Command("nft", argv...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
		if err != nil {
			r.Fatal(err)
		}
	}
	dead := strings.Join(r.front.ports(), ", ")
	nft(fmt.Sprintf(`add table inet dead
		add chain inet dead in { type filter hook input priority 0; }
		add chain inet dead out { type filter hook output priority 0; }
		add rule inet dead in tcp dport %[1]d tcp sport { %[2]s } drop
		add rule inet dead out tcp sport %[1]d tcp dport { %[2]s } drop`, frontAt.Port(), dead))
	r.makeChange()
	r.hold(noticed)
	r.after = func() { nft("delete", "table", "inet", "dead") }
}

// noticed is after how long the agents count a connection as dead.
const noticed = 15 * time.Second

// apiServerKilled ends the whole control plane, and starts it again from its data.
func apiServerKilled(r *rig) {
	r.front.close()
	r.killPlane()
	r.hold(30 * time.Second)
	r.startPlane()
	r.makeChange()
	r.front.listen(r.lab)
}

// containerdKilled ends the container runtime of a node; pods go on.
func containerdKilled(r *rig) {
	n := r.nodes[0]
	agent := r.agent(n)
	old := r.processes(n, "containerd", "--config")
	if len(old) != 1 {
		r.Fatalf("containerd's processes on %s are %v", n.Name, old)
	}
	r.kill(old[0], unix.SIGKILL)
	r.makeChange()
	r.await("containerd", func() error {
		if now := r.processes(n, "containerd", "--config"); len(now) != 1 || now[0] == old[0] {
			return fmt.Errorf("processes %v", now)
		}
		return nil
	})
	if now := r.agent(n); now != agent {
		r.Errorf("containerd's end has ended the agent too: process %d, then %d", agent, now)
	}
}

// diskFull hides the directories that an agent writes to behind full disks, as if its files
// were lost and could not be written again.
func diskFull(r *rig) {
	pid := r.agent(r.nodes[0])
	const size = 8 << 20 // the plugin fits in
	each := func(do func(dir string) error) {
		for _, dir := range writtenDirs {
			if err := inMounts(pid, func() error { return do(dir) }); err != nil {
				r.Fatalf("%s: %v", dir, err)
			}
		}
	}
	each(func(dir string) error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
			return err
		}
		return os.WriteFile(dir+"/filler", make([]byte, size), 0o600)
	})
	r.makeChange()
	r.awaitChange()
	r.hold(30 * time.Second)
	each(func(dir string) error { return os.Remove(dir + "/filler") })
	r.whole = func() error { return installed(pid) }
	r.after = func() {
		each(func(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) })
	}
}

// inMounts runs do in the mount namespace of a process.
func inMounts(pid int, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err == nil {
			defer ns.Close()
			// A thread that shares its root directory with others may not enter.
			err = unix.Unshare(unix.CLONE_FS)
		}
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// flushed has another program throw away all rules of a node.
func flushed(r *rig) {
	r.on(r.nodes[0], "nft", "flush", "ruleset")
}

// conntrackFlushed has another program delete all connections that a node's kernel knows, and with them to which
// endpoint each goes.
func conntrackFlushed(r *rig) {
	r.on(r.nodes[0], "conntrack", "-F")
}

// foreignTable has another program drop what a node forwards. The agent cannot help it, but
// it must say whose table it is.
func foreignTable(r *rig) {
	n := r.nodes[0]
	r.on(n, "nft", "add table inet foreign; add chain inet foreign guard { type filter hook forward priority 0; policy drop; }")
	r.makeChange()
	r.hold(20 * time.Second)
	r.named(status.ForwardingDropped, "foreign", n)
	r.on(n, "nft", "delete", "table", "inet", "foreign")
}

// nodeDeleted deletes a node's object and makes it again.
func nodeDeleted(r *rig) {
	ctx, nodes := context.Background(), r.api.CoreV1().Nodes()
	name := r.nodes[1].Name
	was, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
	r.makeChange()
	r.hold(20 * time.Second)
	_, err = nodes.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: was.Labels, Annotations: was.Annotations},
		Spec:       corev1.NodeSpec{PodCIDR: was.Spec.PodCIDR, PodCIDRs: was.Spec.PodCIDRs},
	}, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	// A patch: the kubelet writes too.
	patch, err := json.Marshal(map[string]any{"status": was.Status})
	if err != nil {
		r.Fatal(err)
	}
	if _, err := nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		r.Fatal(err)
	}
}

// addressChanged gives a node another address, until its kubelet sets the old one again.
func addressChanged(r *rig) {
	n := r.nodes[1]
	other := netip.MustParseAddr("192.168.49.103")
	r.on(n, "ip", "address", "add", other.String()+"/24", "dev", "eth0")
	echo, err := r.api.CoreV1().Services(namespace).Get(context.Background(), "echo", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	port := uint16(echo.Spec.Ports[0].NodePort)
	r.await("the NodePort at the new address", func() error {
		r.setAddress(n, other) // again if the kubelet was faster than the agent
		if a := r.client.Ask("tcp", netip.AddrPortFrom(other, port), testnet.Patience); a.Outcome != testnet.Answered {
			return fmt.Errorf("%v", a)
		}
		return nil
	})
	r.makeChange()
	r.setAddress(n, n.addr)
	r.whole = func() error {
		a := r.client.Ask("tcp", netip.AddrPortFrom(n.addr, port), testnet.Patience)
		if a.Outcome != testnet.Answered {
			return fmt.Errorf("the NodePort at the old address: %v", a)
		}
		return nil
	}
}

// setAddress writes a node's address into its object.
func (r *rig) setAddress(n *node, addr netip.Addr) {
	r.Helper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/status/addresses","value":[{"type":"InternalIP","address":%q},{"type":"Hostname","address":%q}]}]`, addr, n.Name)
	if _, err := r.api.CoreV1().Nodes().Patch(context.Background(), n.Name, "application/json-patch+json", []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		r.Fatal(err)
	}
}
