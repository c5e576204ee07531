package enforcer

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// childSocket tells the test binary to be an agent whose socket that is.
const childSocket = "FAIRWAY_POLICY_TEST_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(childSocket); socket != "" {
		beAgent(socket)
		return
	}
	if filepath.Base(os.Args[0]) == cni.PluginName {
		os.Exit(cni.Main(cni.PluginName, "test"))
	}
	testnet.Main(m)
}

// churn is how many pods of other nodes come and go with each change, in addresses below
// churnNet.
const (
	churn    = 600
	churnNet = "10.250.0.0"
)

// beAgent is an agent whose cluster changes all the time, until it is killed. In all states a
// policy denies all to pods with the label app=denied; other policies select those too, and
// grant them peers that are not there.
func beAgent(socket string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	source := newObjects()
	denied := api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"denied"}}}}
	source.setPolicy(denyAll, &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{true, true}, Selector: denied})
	for i := range kills {
		name := api.Name{Namespace: "default", Name: fmt.Sprint("born-", i)}
		if i%2 == 0 { // the others are never known
			source.setPod(&api.Pod{Name: name, UID: name.Name, Node: "node-1", Labels: map[string]string{"app": "denied"}})
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	e := New(Config{Log: log, Node: "node-1", Source: source, Table: nftables.New(), Socket: socket})
	go func() {
		for n := 0; ; n++ {
			first := netip.MustParseAddr(churnNet).As4()
			for i := range churn {
				addr := first
				addr[2], addr[3] = byte(i/250), byte(i%250)
				name := api.Name{Namespace: "default", Name: fmt.Sprint("churn-", i)}
				source.setPod(&api.Pod{Name: name, UID: fmt.Sprint(n), Node: "node-2",
					Labels: map[string]string{"app": fmt.Sprint((n + i) % 7)}, Addrs: []netip.Addr{netip.AddrFrom4(addr)}})
			}
			grants := api.Name{Namespace: "default", Name: "grants"}
			source.setPolicy(grants, &networkpolicy.Policy{Name: grants, Isolates: [2]bool{true, true}, Selector: denied,
				Rules: [2][]networkpolicy.Rule{networkpolicy.Egress: {{Peers: []networkpolicy.Peer{
					{Pods: &api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{fmt.Sprint(n % 7)}}}}},
					{Block: &networkpolicy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 30).Masked()}},
				}}}}})
			time.Sleep(time.Millisecond)
		}
	}()
	if err := e.Run(context.Background()); err != nil {
		log.Error("the agent has ended", "err", err)
	}
}

// startAgent starts an agent as a process in the node's namespace.
func startAgent(t *testing.T, node *testnet.Host, socket string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childSocket+"="+socket)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // ends with the test, and then the agent does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close() })
	if err := node.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// kills is how many agents are killed.
const kills = 12

// Agents are killed at random moments of a cluster that changes all the time, and others begin
// with what those have left in the kernel, while pods to which everything is denied send and
// send: from when their ADD was answered no packet comes out.
func TestKilled(t *testing.T) {
	net := testnet.New(t)
	r := &rig{T: t, net: net, node: net.Node("node-1"), source: newObjects(), socket: filepath.Join(t.TempDir(), "policy.sock")}
	sink, born := r.pod("sink", webAddr, nil), r.pod("source", clientAddr, nil)
	listener := listenAt(t, sink)
	var got []string
	var reading, sending sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 100)
		for {
			n, _, err := listener.ReadFrom(buf)
			if err != nil {
				return
			}
			if got = append(got, string(buf[:n])); string(buf[:n]) == "allowed" {
				return
			}
		}
	})
	pods, end := make(chan netip.Addr), make(chan struct{})
	sent := 0
	sending.Go(func() {
		var all []netip.Addr
		for {
			select {
			case a := <-pods:
				all = append(all, a)
			case <-end:
				return
			default:
			}
			for _, a := range all {
				if err := born.Do(func() error { return sendFrom(a, netip.AddrPortFrom(webAddr, 9), a.String()) }); err != nil {
					t.Error(err)
					<-end
					return
				}
				sent++
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
	rng := testnet.Random(t)
	for i := range kills {
		agent := startAgent(t, r.node, r.socket)
		addr := netip.AddrFrom4([4]byte{10, 244, 2, byte(1 + i)})
		name := fmt.Sprint("born-", i)
		r.askUntil(isolate.Request{Command: isolate.Add, Pod: "default/" + name, UID: name, Container: fmt.Sprintf("%012d", i), Addrs: []netip.Addr{addr}})
		pods <- addr
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond) // no state to wait for: any moment will do
		if err := agent.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = agent.Wait() // it says that it was killed
	}
	close(end)
	sending.Wait()
	r.eventually("the packet of a pod that nothing isolates comes", func() bool {
		if err := born.Do(func() error { return sendFrom(clientAddr, netip.AddrPortFrom(webAddr, 9), "allowed") }); err != nil {
			t.Fatal(err)
		}
		_ = listener.SetReadDeadline(time.Now().Add(time.Minute))
		reading.Wait()
		return true
	})
	_ = listener.Close()
	if t.Logf("%d packets", sent); len(got) != 1 || got[0] != "allowed" {
		t.Errorf("%d packets came, want that of the pod that nothing isolates: %q", len(got), got)
	}
}

// listenAt returns the socket to which the pods send.
func listenAt(t *testing.T, sink *testnet.Host) (l net.PacketConn) {
	t.Helper()
	err := sink.Do(func() (err error) {
		l, err = net.ListenPacket("udp", netip.AddrPortFrom(webAddr, 9).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
