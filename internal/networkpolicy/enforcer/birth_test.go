package enforcer

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// births is how many pods are born by the plugin; make test-policy has 1,000.
func births(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("FAIRWAY_BIRTHS"))
	if err != nil && os.Getenv("FAIRWAY_BIRTHS") != "" {
		t.Fatal(err)
	}
	return max(n, 16)
}

// A plugin is the CNI plugin of a node, which this program is by that name.
type plugin struct {
	host       *testnet.Host
	path, conf string
}

func newPlugin(t *testing.T, node *testnet.Host, socket string) *plugin {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &plugin{host: node, path: filepath.Join(dir, cni.PluginName)}
	if err := os.Symlink(self, p.path); err != nil {
		t.Fatal(err)
	}
	p.conf = fmt.Sprintf(`{"cniVersion":"1.1.0","name":"fairway","type":"fairway-cni","mtu":1400,"policySocket":%q,"ipam":{"type":"host-local","dataDir":%q,`+
		`"ranges":[[{"subnet":"10.244.2.0/23"}],[{"subnet":"fd00:10:244:2::/64"}]]}}`, socket, filepath.Join(dir, "state"))
	return p
}

// call is one call of a container runtime.
func (p *plugin) call(verb, pod, container string, in *testnet.Namespace) (answer []byte, err error) {
	cmd := exec.Command(p.path)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+container, "CNI_NETNS="+in.Path(), "CNI_IFNAME=eth0", "CNI_PATH="+filepath.Dir(p.path),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod+";K8S_POD_UID="+pod)
	cmd.Stdin = strings.NewReader(p.conf)
	err = p.host.Do(func() (err error) { answer, err = cmd.Output(); return err })
	return answer, err
}

// A shouter sends its text from a namespace to both addresses of a sink all the time, also while there is no way yet.
type shouter struct {
	sent [2]atomic.Int64
	stop func()
}

func shout(t *testing.T, from *testnet.Namespace, to []netip.Addr, text string) *shouter {
	s, end := &shouter{}, make(chan struct{})
	var wg sync.WaitGroup
	for i, a := range to {
		var c net.PacketConn
		if err := from.Do(func() (err error) { c, err = net.ListenPacket("udp", "[::]:0"); return err }); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer c.Close()
			for {
				if _, err := c.WriteTo([]byte(text), net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9))); err == nil {
					s.sent[i].Add(1)
				}
				select {
				case <-end:
					return
				case <-time.After(50 * time.Microsecond):
				}
			}
		})
	}
	s.stop = func() { close(end); wg.Wait() }
	return s
}

// A nursery is where pods are born by the plugin, and send to a sink.
type nursery struct {
	*rig
	*plugin
	sink *testnet.Host
	mu   sync.Mutex
	came map[string]int // packets by their text
}

func newNursery(t *testing.T) *nursery {
	t.Helper()
	r := newRig(t)
	n := &nursery{rig: r, plugin: newPlugin(t, r.node, r.socket), sink: r.net.Pod(r.node, "sink", both(10)...), came: map[string]int{}}
	var reading sync.WaitGroup
	t.Cleanup(reading.Wait) // the last one
	for _, a := range n.sink.Addrs {
		var l net.PacketConn
		if err := n.sink.Do(func() (err error) { l, err = net.ListenPacket("udp", netip.AddrPortFrom(a, 9).String()); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		reading.Go(func() {
			for b := make([]byte, 100); ; {
				size, _, err := l.ReadFrom(b)
				if err != nil {
					return
				}
				n.mu.Lock()
				n.came[string(b[:size])]++
				n.mu.Unlock()
			}
		})
	}
	return n
}

// born makes a pod, lets it send until that is enough, ends it, and returns how many packets it sent. There is an agent or there
// will be one: kubelet tries again, too.
func (n *nursery) born(name, container string, enough func(*shouter) bool) int64 {
	ns := testnet.NewNamespace(n.T, name)
	s := shout(n.T, ns, n.sink.Addrs, name)
	defer s.stop()
	add := func() bool {
		_, err := n.call("ADD", name, container, ns)
		return err == nil
	}
	for _, wait := range []func() bool{add, func() bool { return enough(s) }} {
		for end := time.Now().Add(time.Minute); !wait(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				n.Errorf("%s was not made, or did not send: %d and %d packets", name, s.sent[0].Load(), s.sent[1].Load())
				return 0
			}
		}
	}
	if out, err := n.call("DEL", name, container, ns); err != nil {
		n.Errorf("DEL: %v: %s", err, out)
	}
	return s.sent[0].Load() + s.sent[1].Load()
}

// Pods to which everything is denied are made by the plugin, as a container runtime does it, and send from before they
// have a link until they have sent some packets of each family, while agents are replaced: none comes out.
func TestBirthByPlugin(t *testing.T) {
	n := newNursery(t)
	n.source.setPolicy(denyAll, &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{true, true}, Selector: selects("denied")})
	n.is("open", "open", "node-1", 1)
	const side, some = 4, 20
	sent, all := atomic.Int64{}, births(t)
	for first := 0; first < all; first += 2 * side {
		var group sync.WaitGroup
		for i := range side {
			group.Go(func() {
				for pod := first + i; pod < min(first+2*side, all); pod += side {
					name := fmt.Sprint("denied-", pod)
					if pod%3 > 0 { // the others, the agent does not know yet
						n.is(name, "denied", "node-1", 1)
					}
					sent.Add(n.born(name, fmt.Sprintf("%012d", pod), func(s *shouter) bool {
						return s.sent[0].Load() >= some && s.sent[1].Load() >= some
					}))
				}
			})
		}
		n.kill() // another agent, while pods are made
		n.start()
		group.Wait()
	}
	n.born("open", "open", func(*shouter) bool { n.mu.Lock(); defer n.mu.Unlock(); return n.came["open"] >= 2*some })
	n.mu.Lock()
	defer n.mu.Unlock()
	t.Logf("%d pods sent %d packets", all, sent.Load())
	if delete(n.came, "open"); len(n.came) > 0 {
		t.Errorf("packets of pods to which everything is denied came: %v", n.came)
	}
}
