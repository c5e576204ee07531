package edge_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// edgeLeases are the Leases of an edgeAPI, of one namespace.
type edgeLeases struct {
	mu   sync.Mutex
	next int
	all  map[string]*coordinationv1.Lease
}

// ServeHTTP implements http.Handler: get, create, and update of what is as it was read.
func (s *edgeLeases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, name, _ := strings.Cut(r.URL.Path, "/leases/")
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}
	var in coordinationv1.Lease
	if r.Method != http.MethodGet {
		body, err := io.ReadAll(r.Body)
		if err == nil { // protobuf, as clients of the API write it
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &in)
		}
		if err != nil {
			refuse(http.StatusBadRequest, "BadRequest")
			return
		}
		name = in.Name
	}
	have := s.all[name]
	switch {
	case r.Method == http.MethodPost && have != nil:
		refuse(http.StatusConflict, "AlreadyExists")
		return
	case r.Method != http.MethodPost && have == nil:
		refuse(http.StatusNotFound, "NotFound")
		return
	case r.Method == http.MethodPut && have.ResourceVersion != in.ResourceVersion:
		refuse(http.StatusConflict, "Conflict")
		return
	case r.Method != http.MethodGet:
		s.next++
		in.ResourceVersion = fmt.Sprint(s.next)
		if s.all == nil {
			s.all = map[string]*coordinationv1.Lease{}
		}
		have = &in
		s.all[name] = have
	}
	have.APIVersion, have.Kind = "coordination.k8s.io/v1", "Lease"
	_ = json.NewEncoder(w).Encode(have)
}

// An edgeGroup is an edgeLab with several edges, which announce addresses of the nodes' network.
type edgeGroup struct {
	*edgeLab
	members []*edgeMember
	tape    *testnet.Tape
}

type edgeMember struct {
	*testnet.Host
	port string // of the bridge
	mac  string
	path string
	cmd  *exec.Cmd
	log  *testnet.Log
}

// The addresses of the Services, and where nodes send what is for clients.
var (
	groupVIPs    = []netip.AddrPort{netip.MustParseAddrPort("172.18.0.200:80"), netip.MustParseAddrPort("172.18.0.201:80"), netip.MustParseAddrPort("172.18.0.202:80")}
	groupGateway = netip.MustParseAddr("172.18.0.250")
)

// newEdgeGroup starts n edges with these lines of configuration.
func newEdgeGroup(t *testing.T, n int, lines ...string) *edgeGroup {
	g := &edgeGroup{edgeLab: newEdgeLab(t, 1, 1, 1)}
	addrs := []netip.Addr{groupGateway}
	for i, svc := range []*corev1.Service{
		edgeService("local", groupVIPs[0], 30080, localCheckPort), edgeService("cluster", groupVIPs[1], 30081, 0), edgeService("pods", groupVIPs[2], 0, 0),
	} {
		g.api.set(svc)
		addrs = append(addrs, groupVIPs[i].Addr())
	}
	key := filepath.Join(g.dir, "key")
	g.must(os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef"), 0o600))
	var who []string
	for i := range n {
		m := &edgeMember{Host: g.edge, port: "node1"}
		if i > 0 {
			m.Host, m.port = g.net.Node(fmt.Sprintf("edge-%d", i+1)), fmt.Sprintf("node%d", len(g.nodes)+i+1)
			server := &http.Server{Handler: g.api, ReadHeaderTimeout: time.Minute}
			listener := g.listen(m.Host, "127.0.0.1:6443")
			var done sync.WaitGroup
			done.Go(func() { _ = server.Serve(listener) })
			t.Cleanup(func() { _ = server.Close(); done.Wait() })
		}
		g.must(m.Do(func() error {
			eth0, err := net.InterfaceByName("eth0")
			if err == nil {
				m.mac = eth0.HardwareAddr.String()
			}
			return err
		}))
		g.members = append(g.members, m)
		who = append(who, fmt.Sprintf("edge-%d: %v", i+1, m.Addr(true)))
	}
	g.tape = testnet.Record(t, g.net.Fabric, addrs...)
	for i, m := range g.members {
		name := fmt.Sprintf("edge-%d", i+1)
		m.path = g.configured(name, append([]string{"addresses: [172.18.0.200/29]", "announce:", "  name: " + name, "  members: {" + strings.Join(who, ", ") + "}",
			"  keyFile: " + key, "  gateways: [" + groupGateway.String() + "]"}, lines...)...)
		g.launch(m)
	}
	return g
}

// launch starts a member's edge, and waits until it has written its rules.
func (g *edgeGroup) launch(m *edgeMember) {
	g.edge = m.Host
	g.start("--config", m.path)
	g.programmed()
	m.cmd, m.log = g.cmd, g.log
}

// link sets the bridge's port of a member.
func (g *edgeGroup) link(m *edgeMember, state string) {
	g.must(g.net.Fabric.Do(func() error { return exec.Command("ip", "link", "set", m.port, state).Run() }))
}

// die takes a member off the network and ends it, so that nobody hears of it.
func (g *edgeGroup) die(m *edgeMember) {
	g.link(m, "down")
	g.must(m.cmd.Process.Kill())
	_ = m.cmd.Wait()
}

// owner waits until a member but that one says that it has an address, and the address answers.
func (g *edgeGroup) owner(at netip.AddrPort, but *edgeMember) *edgeMember {
	g.t.Helper()
	var last testnet.Answer
	var mac net.HardwareAddr
	for end := time.Now().Add(patient); time.Now().Before(end); {
		last = g.net.Outside.Ask("tcp", at, time.Second)
		if mac = g.tape.Last(at.Addr()); !answered(last) {
			continue
		}
		i := slices.IndexFunc(g.members, func(m *edgeMember) bool { return m.mac == mac.String() })
		if i >= 0 && g.members[i] != but {
			return g.members[i]
		}
		time.Sleep(10 * time.Millisecond)
	}
	g.t.Fatalf("%v: no other owner: %v says that it has it, an answer: %v", at, mac, last)
	return nil
}

// outage connects to an address in turns and returns for how long after fault no connection came about.
func (g *edgeGroup) outage(at netip.AddrPort, fault func()) time.Duration {
	g.t.Helper()
	fault()
	began := time.Now()
	for end := began.Add(patient); time.Now().Before(end); {
		if tried := time.Now(); answered(g.net.Outside.Ask("tcp", at, 50*time.Millisecond)) {
			return tried.Sub(began)
		}
	}
	g.t.Fatalf("%v does not answer any more", at)
	return 0
}

// An openConn is a connection and who answered on it.
type openConn struct {
	*testnet.Conn
	by string
}

// open makes connections to an address, each of which has been answered.
func (g *edgeGroup) open(at netip.AddrPort, n int) (all []openConn) {
	g.t.Helper()
	for range n {
		c, err := g.net.Outside.Dial("tcp", at, patient)
		g.must(err)
		a := c.Ask(patient)
		if !answered(a) {
			g.t.Fatalf("%v: %v", at, a)
		}
		all = append(all, openConn{c, a.By})
	}
	return all
}

// survivors asks on all connections, closes them, and returns how many have the same other end.
func (g *edgeGroup) survivors(all []openConn) (n int) {
	var asking sync.WaitGroup
	var mu sync.Mutex
	for _, c := range all {
		asking.Go(func() {
			defer c.Close()
			if a := c.Ask(10 * time.Second); answered(a) && a.By == c.by {
				mu.Lock()
				defer mu.Unlock()
				n++
			}
		})
	}
	asking.Wait()
	return n
}

// deaths is how often an owner dies: more in `make bench-lb`.
func deaths() int {
	if os.Getenv("FAIRWAY_FAULTS") == "all" {
		return 5
	}
	return 1
}

// stop ends a member in order.
func (g *edgeGroup) stop(m *edgeMember) {
	g.must(m.cmd.Process.Signal(syscall.SIGTERM))
	_ = m.cmd.Wait()
}

// TestEdgePair: of two edges one has the addresses; it dies, and the other has them, by the vote of the
// Lease; never both. Where clients' addresses are kept and Maglev chooses, connections that are open go on.
func TestEdgePair(t *testing.T) {
	g := newEdgeGroup(t, 2, "targetType: ip", "routes: static", "clusterCIDRs: [10.244.0.0/16]", "balance: maglev")
	for _, n := range g.nodes { // answers to the client's network go to whoever has the gateway's address
		g.must(n.Do(func() error {
			return exec.Command("ip", "route", "add", "198.51.100.0/24", "via", groupGateway.String()).Run()
		}))
	}
	at := groupVIPs[2]
	g.owner(at, g.members[1]) // the first, as all addresses are one's
	asked := g.net.Outside.KeepAsking(at)
	g.stop(g.members[0])
	g.owner(at, g.members[0])
	n, failed := asked() // one that has just begun may fail: its answer comes by the other edge, which has not met it
	g.launch(g.members[0])

	var gaps []time.Duration
	var kept, opened int
	for range deaths() {
		g.owner(at, g.members[1])
		open := g.open(at, 100)
		gaps = append(gaps, g.outage(at, func() { g.die(g.members[0]) }))
		g.owner(at, g.members[0])
		kept, opened = kept+g.survivors(open), opened+len(open)
		g.link(g.members[0], "up")
		g.launch(g.members[0])
	}
	if kept != opened {
		t.Errorf("%d of %d connections outlived the death of their edge", kept, opened)
	}
	slices.Sort(gaps)
	t.Logf("of %d connections while an edge ended in order %d failed; none after a death for: %v; %d of %d open ones went on; %d changes of owner",
		n, len(failed), gaps, kept, opened, g.tape.Check(t))
}

// TestEdgeThree: three edges need no Lease. Each of the addresses has one owner; it dies, and another has it within a
// second or so. To node ports with the edge's own address connections do not go on: nodes know them from that address.
func TestEdgeThree(t *testing.T) {
	g := newEdgeGroup(t, 3, soon)
	var gaps []time.Duration
	var kept, opened int
	at := groupVIPs[0]
	for range deaths() {
		m := g.owner(at, nil)
		open := g.open(at, 20)
		gaps = append(gaps, g.outage(at, func() { g.die(m) }))
		g.owner(at, m)
		if opened += len(open); deaths() > 1 {
			kept += g.survivors(open)
		} else {
			for _, c := range open {
				c.Close()
			}
		}
		g.link(m, "up")
		g.launch(m)
	}
	slices.Sort(gaps)
	t.Logf("no connection after a death for: %v; %d of %d open ones went on; %d changes of owner", gaps, kept, opened, g.tape.Check(t))
	if _, used := g.api.leases.all["fairway-edge-vote"]; used {
		t.Error("three edges asked for the Lease")
	}
}

// cut lets a member reach neither nodes nor pods, but clients and the other members; mend undoes it.
func (g *edgeGroup) cut(m *edgeMember) (mend func()) {
	var nodes []string
	for _, n := range g.nodes {
		nodes = append(nodes, n.Addr(true).String())
	}
	run := func(text string) {
		g.t.Helper()
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		g.must(m.Do(cmd.Run))
	}
	rule := "ip daddr { 10.244.0.0/16, " + strings.Join(nodes, ", ") + " } drop"
	run("table ip cut {\nchain output {\ntype filter hook output priority 0\n" + rule + "\n}\nchain forward {\ntype filter hook forward priority 0\n" + rule + "\n}\n}\n")
	return func() { run("delete table ip cut\n") }
}

// announced waits until a member says that it has an address, to who asks anew.
func (g *edgeGroup) announced(at netip.AddrPort) {
	g.t.Helper()
	fabric := func(args ...string) string {
		var out []byte
		g.must(g.net.Fabric.Do(func() (err error) {
			out, err = exec.Command("ip", args...).CombinedOutput()
			return err
		}))
		return string(out)
	}
	fabric("neigh", "flush", "to", at.Addr().String())
	for end := time.Now().Add(patient); !strings.Contains(fabric("neigh", "show", "to", at.Addr().String()), "lladdr"); {
		if time.Now().After(end) {
			g.t.Fatalf("nobody has %v", at)
		}
		g.net.Outside.Ask("tcp", at, 100*time.Millisecond)
	}
}

// TestEdgeCutOff: an edge that reaches no node leaves its addresses to the other one, and has them again
// when it reaches one; if both reach none, one has them still.
func TestEdgeCutOff(t *testing.T) {
	for name, lines := range map[string][]string{
		"instance": {soon, "clientSource: masquerade"},
		"ip":       {soon, "targetType: ip", "routes: static", "clusterCIDRs: [10.244.0.0/16]", "clientSource: masquerade"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newEdgeGroup(t, 2, lines...)
			at := groupVIPs[0]
			owner := g.owner(at, nil)
			other := g.members[0]
			if owner == other {
				other = g.members[1]
			}
			mend := g.cut(owner)
			g.owner(at, owner)
			mendOther := g.cut(other)
			if err := other.log.Await("no node of the cluster answers", patient); err != nil {
				t.Fatal("an edge does not notice that it is cut off:", err)
			}
			g.announced(at) // neither is better off
			mendOther()
			g.owner(at, nil)
			mend()
			g.owner(at, other)
		})
	}
}
