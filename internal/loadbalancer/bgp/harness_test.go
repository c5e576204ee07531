package bgp

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// helperEnv makes the test binary the speaker of the node that it names. The speaker reads worlds from its standard
// input, one a line.
const helperEnv = "FAIRWAY_BGP_TEST"

func TestMain(m *testing.M) {
	if node := os.Getenv(helperEnv); node != "" {
		runHelper(node)
		return
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most of the time is waiting for routers and GoBGP's timers
	testnet.Main(m)
}

// A world is the state of a helper's API server and of its node's proxy.
type world struct {
	Nodes       []announce.Node
	Ads         []*announce.BGPAdvertisement
	Peers       []*announce.BGPPeer
	BFD         []*announce.BFDProfile
	Services    []*announce.Service
	Endpoints   map[string]announce.Endpoints // by the Service's name
	Count       int                           // the number of every Service's endpoints on the node
	Communities []*announce.Community
	Passwords   map[string]string
	Served      []uint16
}

// A worlds is a Source and a Health with the last world that was read.
type worlds struct {
	mu             sync.Mutex
	now            world
	synced         chan struct{}
	dirty, changed chan struct{}
}

func (w *worlds) read(in io.Reader) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for first := true; lines.Scan(); first = false {
		var next world
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			panic(err)
		}
		w.mu.Lock()
		w.now = next
		w.mu.Unlock()
		if first {
			close(w.synced)
		}
		w.dirty <- struct{}{}
	}
}

func (w *worlds) Synced() <-chan struct{}             { return w.synced }
func (w *worlds) Dirty() <-chan struct{}              { return w.dirty }
func (w *worlds) Changed() <-chan struct{}            { return w.changed }
func (w *worlds) Set(a netip.Addr, _ map[uint16]bool) {}
func (w *worlds) Served(port uint16) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.now.Served, port)
}

// announced writes the announced Services and their peers for the test.
func (w *worlds) announced(all map[api.Name]Announcement) {
	fmt.Fprintln(os.Stderr, "intended:", all)
}

// sessions writes the sessions' states for the test.
func (w *worlds) sessions(all []announce.Standing) {
	for _, s := range all {
		fmt.Fprintf(os.Stderr, "session with %s: up %v for %v: %s\n", s.Peer, s.Up, time.Since(s.Since) < patience, s.Reason)
	}
	if len(all) == 0 {
		fmt.Fprintln(os.Stderr, "no session")
	}
}

func (w *worlds) BGP() announce.BGPInput {
	w.mu.Lock()
	now := w.now
	w.mu.Unlock()
	r4, _ := ipam.ParseRange("192.0.2.0/24")
	r6, _ := ipam.ParseRange("2001:db8:2::/64")
	return announce.BGPInput{
		Input: announce.Input{
			Pools: []*ipam.Pool{{Name: "all", Ranges: []ipam.Range{r4, r6}}}, Nodes: now.Nodes, Services: now.Services,
			Endpoints: func(name api.Name) announce.Endpoints { return now.Endpoints[name.Name] },
		},
		Advertisements: now.Ads, Peers: now.Peers, BFDProfiles: now.BFD, Communities: now.Communities,
		LocalEndpoints: func(api.Name, bool) int { return now.Count },
		Password:       func(name string) (string, bool) { p, ok := now.Passwords[name]; return p, ok },
	}
}

func runHelper(node string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	w := &worlds{synced: make(chan struct{}), dirty: make(chan struct{}, 100), changed: make(chan struct{})}
	go w.read(os.Stdin)
	s, err := New(Config{
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)).With("self", node), Node: node, Source: w, Health: w, ProxyPort: 10256,
		Report: func([]announce.PeerProblem) {}, Announced: w.announced, Sessions: w.sessions, Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	if err == nil {
		go s.tables(ctx)
		err = s.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// tables writes, when they change, the numbers of IPv4 routes that GoBGP has received and has in its table, and whether
// the speaker is ready.
func (s *Speaker) tables(ctx context.Context) {
	for last, was := "", ""; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if ready := fmt.Sprintln("ready:", s.Ready()); ready != was {
			was = ready
			fmt.Fprint(os.Stderr, ready)
		}
		count := func(have *session, kind gobgp.TableType) (n int) {
			r := apiutil.ListPathRequest{TableType: kind, Family: wire.RF_IPv4_UC}
			if kind == gobgp.TableType_TABLE_TYPE_ADJ_IN {
				r.Name = have.config.Address.Addr().String()
			}
			_ = have.server.ListPath(r, func(wire.NLRI, []*apiutil.Path) { n++ })
			return n
		}
		s.mu.Lock()
		for _, have := range s.sessions {
			now := fmt.Sprintf("%d received, %d in the table", count(have, gobgp.TableType_TABLE_TYPE_ADJ_IN), count(have, gobgp.TableType_TABLE_TYPE_GLOBAL))
			if now != last {
				fmt.Fprintln(os.Stderr, now)
			}
			last = now
		}
		s.mu.Unlock()
	}
}

var (
	vip4 = netip.MustParseAddr("192.0.2.10")
	vip6 = netip.MustParseAddr("2001:db8:2::10")
	web  = api.Name{Namespace: "shop", Name: "web"}
)

// patience is the time that a busy machine may need for anything.
const patience = 60 * time.Second

// A rack has nodes and their router, which is the fabric, with a client behind it.
type rack struct {
	t        *testing.T
	net      *testnet.Net
	at       *testnet.Namespace // the router's namespace
	asn      int                // the nodes' AS that the router expects
	nodes    []*machine
	bird     *exec.Cmd
	birdFile string
	birdLog  *testnet.Log
}

// A machine is a node and its speaker's process.
type machine struct {
	*testnet.Host
	env   []string // more of the speaker's environment
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   *testnet.Log
	world world
}

// await waits until get returns a text with all of these, as long as a busy machine may need.
func await(t *testing.T, get func() string, all ...string) {
	t.Helper()
	var last string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // the pause between two looks
		last = get()
		if !slices.ContainsFunc(all, func(want string) bool { return !strings.Contains(last, want) }) {
			return
		}
	}
	t.Fatalf("there is no %q in:\n%s", all, last)
}

// newRack makes n nodes that have the addresses and answer there, without speakers and without a router.
func newRack(t *testing.T, n int) *rack {
	t.Parallel()
	r := &rack{t: t, net: testnet.New(t), asn: 64501, birdLog: &testnet.Log{}}
	r.at = r.net.Fabric
	if n > 1 {
		must(t, r.net.Fabric.Sysctl("ipv4/fib_multipath_hash_policy", "1")) // by port
	}
	var nodes []announce.Node
	for i := range n {
		h := r.net.Node(fmt.Sprintf("node-%d", i+1))
		r.nodes = append(r.nodes, &machine{Host: h, log: &testnet.Log{}})
		nodes = append(nodes, announce.Node{Name: h.Name, Addrs: h.Addrs})
		r.run(h.Namespace, "ip", "addr", "add", vip4.String()+"/32", "dev", "lo")
		r.run(h.Namespace, "ip", "addr", "add", vip6.String()+"/128", "dev", "lo", "nodad")
		for _, a := range []netip.Addr{vip4, vip6} {
			h.Serve("udp", netip.AddrPortFrom(a, 8080))
			h.Serve("tcp", netip.AddrPortFrom(a, 8080))
		}
	}
	for _, m := range r.nodes {
		m.world = world{
			Nodes: nodes, Ads: []*announce.BGPAdvertisement{{Name: "all", AggregationLength: 32, AggregationLengthV6: 128}},
			Peers: []*announce.BGPPeer{{
				Name: "router", MyASN: 64501, PeerASN: 64500, PeerAddress: netip.MustParseAddr("172.18.0.1"), PeerPort: 179,
				HoldTime: 9 * time.Second, KeepaliveTime: 3 * time.Second, ConnectTime: 2 * time.Second, DualStackAddressFamily: true,
			}},
			Services:  []*announce.Service{{Name: web, Addrs: []netip.Addr{vip4, vip6}}},
			Endpoints: map[string]announce.Endpoints{"web": {Any: true}},
			Served:    []uint16{10256},
		}
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Logf("BIRD:\n%s", r.birdLog)
		for _, m := range r.nodes {
			t.Logf("%s:\n%s", m.Name, m.log)
		}
	})
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a program in a namespace and returns its output.
func (r *rack) run(ns *testnet.Namespace, name string, args ...string) string {
	r.t.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command(name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		r.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ask asks BIRD.
func (r *rack) ask(args ...string) string {
	out, err := exec.Command("birdc", append([]string{"-s", filepath.Join(filepath.Dir(r.birdFile), "ctl")}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Sprint(err, ": ", string(out)) // it may be starting
	}
	return string(out)
}

// birdConfig is the router's configuration. The fabric's kernel gets the nodes' routes, over several nodes if several
// announce. BIRD does not wait after errors, because tests would have to. PEER stands for further lines about the
// nodes, REST for others.
const birdConfig = `
log stderr all;
router id 172.18.0.1;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { merge paths on; ipv4 { export where source = RTS_BGP; import none; }; }
protocol kernel { merge paths on; ipv6 { export where source = RTS_BGP; import none; }; }
REST
template bgp node {
	error wait time 1, 1; connect delay time 1; connect retry time 1; error forget time 1;
	hold time 9;
	PEER
}
`

// router starts BIRD with further lines about the nodes, and others. If the lines about the nodes name no AS, the
// router has another AS than they.
func (r *rack) router(neighbour, rest string) {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "bird") // a socket's path must be short
	must(r.t, err)
	r.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r.birdFile = filepath.Join(dir, "bird.conf")
	if !strings.Contains(neighbour, "local ") {
		neighbour = "local 172.18.0.1 as 64500; " + neighbour
	}
	if !strings.Contains(neighbour, "ipv4 {") {
		neighbour += " ipv4 { import all; export none; };"
	}
	if !strings.Contains(neighbour, "ipv6 {") {
		neighbour += " ipv6 { import all; export none; };"
	}
	text := strings.NewReplacer("PEER", neighbour, "REST", rest).Replace(birdConfig)
	for i, m := range r.nodes {
		addr := m.Addr(!strings.Contains(neighbour, "local fd00"))
		text += fmt.Sprintf("protocol bgp node%d from node { neighbor %v as %d; }\n", i+1, addr, r.asn)
	}
	must(r.t, os.WriteFile(r.birdFile, []byte(text), 0o600))
	r.run(r.at, "bird", "-p", "-c", r.birdFile)
	r.startBird()
	r.t.Cleanup(func() { r.killBird() })
}

func (r *rack) startBird() {
	r.t.Helper()
	r.bird = exec.Command("bird", "-f", "-c", r.birdFile, "-s", filepath.Join(filepath.Dir(r.birdFile), "ctl"))
	r.bird.Stderr = r.birdLog
	r.bird.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(r.t, r.at.Do(r.bird.Start))
}

// killBird kills BIRD. Its routes stay in the kernel.
func (r *rack) killBird() {
	_ = r.bird.Process.Kill()
	_ = r.bird.Wait()
}

// start starts the speaker of node i.
func (r *rack) start(i int) {
	r.t.Helper()
	m := r.nodes[i]
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(append(os.Environ(), helperEnv+"="+m.Name), m.env...)
	m.cmd.Stderr = m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	m.stdin, err = m.cmd.StdinPipe()
	must(r.t, err)
	must(r.t, m.Do(m.cmd.Start))
	cmd := m.cmd
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	r.tell(i)
}

// tell sends node i's world to its speaker.
func (r *rack) tell(i int) {
	r.t.Helper()
	line, err := json.Marshal(r.nodes[i].world)
	must(r.t, err)
	_, err = r.nodes[i].stdin.Write(append(line, '\n'))
	must(r.t, err)
}

// routes returns the nodes to which the router's kernel sends an address's packets.
func (r *rack) routes(a netip.Addr) (nodes []string) {
	family, bits := "-4", "/32"
	if a.Is6() {
		family, bits = "-6", "/128"
	}
	out := r.run(r.net.Fabric, "ip", family, "route", "show", a.String()+bits)
	for _, m := range r.nodes {
		if slices.Contains(strings.Fields(out), m.Addr(a.Is4()).String()) {
			nodes = append(nodes, m.Name)
		}
	}
	return nodes
}

// until waits until the router's kernel has these nodes for an address.
func (r *rack) until(a netip.Addr, nodes ...string) {
	r.t.Helper()
	var have []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // the pause between two looks
		if have = r.routes(a); slices.Equal(have, nodes) {
			return
		}
	}
	r.t.Fatalf("the router leads %v to %v, not to %v", a, have, nodes)
}

// answered waits until the client behind the router gets an answer.
func (r *rack) answered(a netip.Addr) string {
	r.t.Helper()
	var last testnet.Answer
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if last = r.net.Outside.Ask("tcp", netip.AddrPortFrom(a, 8080), time.Second); last.By != "" {
			return last.By
		}
	}
	r.t.Fatalf("%v does not answer: %v", a, last)
	return ""
}
