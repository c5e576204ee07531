package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/bgp"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// speakerEnv makes the test binary the speaker that it describes: GoBGP's goroutines need a process in the namespace.
const speakerEnv = "FAIRWAY_NODE_TEST_SPEAKER"

// A fixedSource is a Source that does not change, and a Health that is well.
type fixedSource struct {
	Self  string
	RIB   podroutes.Dir
	Nodes []announce.Node
	Peers []*announce.BGPPeer
}

func (fixedSource) Dirty() <-chan struct{}          { return nil }
func (fixedSource) Changed() <-chan struct{}        { return nil }
func (fixedSource) Set(netip.Addr, map[uint16]bool) {}
func (fixedSource) Served(uint16) bool              { return true }
func (s fixedSource) Synced() <-chan struct{}       { c := make(chan struct{}); close(c); return c }
func (s fixedSource) BGP() announce.BGPInput {
	return announce.BGPInput{
		Input: announce.Input{Nodes: s.Nodes}, Peers: s.Peers,
		BFDProfiles: []*announce.BFDProfile{{Name: "fast", ReceiveInterval: 300 * time.Millisecond, TransmitInterval: 300 * time.Millisecond, DetectMultiplier: 3}},
	}
}

func runSpeaker(config string) {
	var s fixedSource
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	speaker, err := bgp.New(bgp.Config{
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Node: s.Self, Source: s, Health: s, RIB: s.RIB, ReflectorPort: numbers.PortReflector,
		Report: func([]announce.PeerProblem) {}, Announced: func(map[api.Name]bgp.Announcement) {}, Metrics: bgp.NewMetrics(prometheus.NewRegistry()),
	})
	if err == nil {
		err = speaker.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// speak starts a machine's speaker, which has sessions with the fabric's BIRD in both families.
func (m *machine) speak(graceful bool) (stop func(syscall.Signal)) {
	m.t.Helper()
	return m.speakAs(fixedSource{Self: m.peer.Name, RIB: m.config.RIB, Nodes: []announce.Node{{Name: m.peer.Name, Addrs: m.peer.Addrs}}, Peers: m.routers(graceful)})
}

// routers are the BGPPeers of a machine: BIRD in both families.
func (m *machine) routers(graceful bool) (all []*announce.BGPPeer) {
	for _, addr := range m.peer.Addrs {
		router := netip.MustParseAddr("192.0.2.254")
		if addr.Is4() && !netip.MustParsePrefix("192.0.2.0/24").Contains(addr) {
			router = netip.MustParseAddr("192.0.3.254")
		} else if addr.Is6() {
			p, _ := addr.Prefix(64)
			router = netip.MustParseAddr(strings.Replace(p.String(), "::/64", "::fe", 1))
		}
		peer := &announce.BGPPeer{
			Name: "router-" + router.String(), MyASN: 64501, PeerASN: 64500, PeerAddress: router, PeerPort: 179,
			HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second, ConnectTime: time.Second, EnableGracefulRestart: graceful,
		}
		if !graceful {
			peer.BFDProfile = "fast"
		}
		all = append(all, peer)
	}
	return all
}

// speakAs starts a machine's speaker.
func (m *machine) speakAs(s fixedSource) (stop func(syscall.Signal)) {
	m.t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), speakerEnv+"="+string(text)), m.log
	return m.background(cmd)
}

// background starts a program in the namespace, which ends with this process. stop sends it a signal, and waits for
// its end.
func (n *namespace) background(cmd *exec.Cmd) (stop func(syscall.Signal)) {
	n.t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = n.do(func() error { // the signal comes when the thread ends that started it
			err := cmd.Start()
			if started <- err; err == nil {
				_ = cmd.Wait()
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		n.t.Fatal(err)
	}
	stop = func(s syscall.Signal) { _ = cmd.Process.Signal(s); <-ended }
	n.t.Cleanup(func() { stop(syscall.SIGKILL) })
	return stop
}

// birdConfig is the fabric's router: it takes routes to pods from nodes, and tells them to the others.
const birdConfig = `
log stderr all;
router id 192.0.2.254;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { export where source = RTS_BGP; import none; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; import none; }; }
protocol bfd { interface "*" { interval 300 ms; multiplier 3; }; }
template bgp node {
	error wait time 1, 1; connect delay time 1; connect retry time 1; error forget time 1; hold time 9;
	BFD
}
`

// bird starts BIRD on the fabric, and returns what asks it.
func (c *cluster) bird(bfd bool) (ask func(args ...string) string) {
	c.t.Helper()
	dir, err := os.MkdirTemp("", "bird") // a socket's path must be short
	if err != nil {
		c.t.Fatal(err)
	}
	text := strings.Replace(birdConfig, "BFD", map[bool]string{true: "bfd on;", false: "graceful restart on;"}[bfd], 1)
	for i, local := range []string{"192.0.2.254", "192.0.3.254", "2001:db8::fe", "2001:db8:1::fe"} {
		family, bits := "ipv4", 24
		if strings.Contains(local, ":") {
			family, bits = "ipv6", 64
		}
		subnet, _ := netip.MustParseAddr(local).Prefix(bits)
		text += fmt.Sprintf(`protocol bgp nodes%d from node { local %s as 64500; neighbor range %s as 64501; dynamic name "node%d_"; %s { import all; export where source = RTS_BGP; next hop self; }; }
`, i, local, subnet, i, family)
	}
	file, socket := filepath.Join(dir, "bird.conf"), filepath.Join(dir, "ctl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	log := &testnet.Log{}
	cmd := exec.Command("bird", "-f", "-c", file, "-s", socket)
	cmd.Stderr = log
	stop := c.fabric.background(cmd)
	c.t.Cleanup(func() {
		stop(syscall.SIGKILL)
		_ = os.RemoveAll(dir)
		if c.t.Failed() {
			c.t.Logf("BIRD:\n%s", log)
			for _, m := range c.machines {
				c.t.Logf("%s:\n%s", m.peer.Name, m.log)
			}
		}
	})
	return func(args ...string) string {
		out, err := exec.Command("birdc", append([]string{"-s", socket}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Sprint(err, ": ", string(out)) // it may be starting
		}
		return string(out)
	}
}

// A directory is the nodes of a cluster, as the API server has them.
type directory struct {
	dirty notice
	now   chan []plan.Peer // holds one value
}

func newDirectory() *directory { return &directory{make(notice, 1), make(chan []plan.Peer, 1)} }

func (d *directory) Synced() <-chan struct{} { c := make(chan struct{}); close(c); return c }
func (d *directory) Dirty() <-chan struct{}  { return d.dirty }
func (d *directory) Peers() []plan.Peer {
	now := <-d.now
	d.now <- now
	return now
}

func (d *directory) set(all []plan.Peer) {
	select {
	case <-d.now:
	default:
	}
	d.now <- slices.Clone(all)
	d.dirty.notify()
}

// run runs the agent's part of each machine until the test ends; tell has them know the nodes as they are now.
func (c *cluster) run() (tell func()) {
	var all []*directory
	for _, m := range c.machines {
		d := newDirectory()
		d.set(c.peers())
		all = append(all, d)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- m.do(func() error { return m.network.Run(ctx, m.peer.Name, d, time.Second) }) }()
		c.t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				c.t.Error(err)
			}
		})
	}
	return func() {
		for _, d := range all {
			d.set(c.peers())
		}
	}
}

// leads waits until a machine's routes to a node's podCIDRs are what is wanted: "via" or "unreachable".
func (m *machine) leads(to *machine, want string) (after time.Duration) {
	m.t.Helper()
	began := time.Now()
	eventually(m.t, fmt.Sprintf("the routes of %s to %s are %s", m.peer.Name, to.peer.Name, want), func() bool {
		out := m.routes()
		for _, cidr := range to.peer.PodCIDRs {
			line := cidr.String() + " via "
			if want == "unreachable" {
				line = "unreachable " + cidr.String()
			}
			if !strings.Contains(out, line) {
				return false
			}
		}
		return true
	})
	return time.Since(began)
}

// TestBIRD: nodes in two subnets learn the ways to each other's pods from a router, which is BIRD, in both families. A node
// that falls silent is gone for the others, with nothing left on the router; so is its former address when it gets another one.
func TestBIRD(t *testing.T) {
	c := newCarried(t, plan.WayBGP)
	ask := c.bird(true)
	near, far := c.machines[0], c.machines[2]
	near.peer.PodCIDRs = append(near.peer.PodCIDRs, prefixes("10.244.101.0/24", "fd00:10:244:101::/64")...)
	tell := c.run()
	var stops []func(syscall.Signal)
	for _, m := range c.machines {
		stops = append(stops, m.speak(false))
	}
	others := c.machines[:2]
	for _, m := range others {
		m.leads(far, "via")
		far.leads(m, "via")
	}
	pods := []*pod{near.newPod(), others[1].newPod(), far.newPod()}
	reach(pods)
	eventually(t, "BFD is up", func() bool { return strings.Count(ask("show", "bfd", "sessions"), "Up") == 6 })

	// Another address.
	stops[2](syscall.SIGTERM)
	for _, m := range others {
		m.leads(far, "unreachable") // so that a way there is a new one
	}
	far.run("ip addr del 192.0.3.3/24 dev eth0; ip addr add 192.0.3.33/24 dev eth0; ip route replace default via 192.0.3.254")
	far.peer.Addrs[0] = netip.MustParseAddr("192.0.3.33")
	tell()
	stops[2] = far.speak(false)
	for _, m := range others {
		m.leads(far, "via")
		far.leads(m, "via")
	}
	eventually(t, "the router leads to the new address", func() bool { return strings.Contains(c.fabric.run("ip route show 10.244.3.0/24"), "192.0.3.33") })
	reach(pods)
	eventually(t, "BFD is up again", func() bool { return strings.Count(ask("show", "bfd", "sessions"), "Up") == 6 })

	// The node falls silent: BFD finds it out, long before the hold time.
	far.run("nft 'table inet silent { chain in { type filter hook prerouting priority -400; iif eth0 drop; }; chain out { type filter hook postrouting priority 400; oif eth0 drop; }; }'")
	t.Logf("unreachable after %v", near.leads(far, "unreachable"))
	if out := c.fabric.run("ip route show 10.244.3.0/24; ip -6 route show fd00:10:244:3::/64"); out != "" {
		t.Errorf("the router still has %s", out)
	}
}

// TestSpeakerRestarts: with graceful restart no packet is lost while a speaker is replaced, nor a route while it is away.
func TestSpeakerRestarts(t *testing.T) {
	c := newCarried(t, plan.WayBGP)
	ask := c.bird(false)
	near, far := c.machines[0], c.machines[2]
	c.run()
	stops := []func(syscall.Signal){near.speak(true), func(syscall.Signal) {}, far.speak(true)}
	near.leads(far, "via")
	far.leads(near, "via")
	a, b := near.newPod(), far.newPod()
	b.echo()
	k := newTalk("a connection", a, b.addrs[0])
	k.goOn("at first")
	for _, i := range []int{0, 2} {
		m := c.machines[i]
		stops[i](syscall.SIGTERM)
		k.goOn("while the speaker of " + m.peer.Name + " is away")
		began := ask("show", "status")
		m.speak(true)
		eventually(t, "the session is back", func() bool { return strings.Count(ask("show", "protocols"), "Established") == 4 })
		k.goOn("with a new speaker of " + m.peer.Name + "\n" + began)
	}
	near.leads(far, "via")
	far.leads(near, "via")
}
