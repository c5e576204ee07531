package edge_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// edgeBird is the router of an edgeLab: what it announces are static routes to nodes.
const edgeBird = `
log stderr all;
router id 172.18.0.1;
protocol device { scan time 1; }
protocol direct { ipv4; interface "br0"; }
protocol static pods { ipv4; ROUTES }
protocol bgp edge {
	local 172.18.0.1 as 64500; neighbor EDGE as 64512; passive; password "secret";
	error wait time 1, 1; connect delay time 1; connect retry time 1; error forget time 1; hold time 9;
	ipv4 { import all; export filter { if proto = "pods" then accept; reject; }; };
}
`

// A router is BIRD on the fabric of an edgeLab.
type router struct {
	l   *edgeLab
	dir string
	cmd *exec.Cmd
}

func (l *edgeLab) router() *router {
	dir, err := os.MkdirTemp("", "bird") // a socket's path must be short
	l.must(err)
	l.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &router{l: l, dir: dir}
}

// announces has the router announce these routes, as BIRD writes them.
func (r *router) announces(routes ...string) {
	text := strings.NewReplacer("EDGE", r.l.edge.Addr(true).String(), "ROUTES", "route "+strings.Join(routes, "; route ")+";").Replace(edgeBird)
	r.l.must(os.WriteFile(filepath.Join(r.dir, "bird.conf"), []byte(text), 0o600))
	if r.cmd != nil {
		out, err := exec.Command("birdc", "-s", filepath.Join(r.dir, "ctl"), "configure").CombinedOutput()
		if err != nil {
			r.l.t.Fatalf("birdc: %v: %s", err, out)
		}
	}
}

func (r *router) start() {
	log := &testnet.Log{}
	cmd := exec.Command("bird", "-f", "-c", filepath.Join(r.dir, "bird.conf"), "-s", filepath.Join(r.dir, "ctl"))
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.l.must(r.l.net.Fabric.Do(cmd.Start))
	r.cmd = cmd
	r.l.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if r.l.t.Failed() {
			r.l.t.Logf("BIRD:\n%s", log)
		}
	})
}

func (r *router) stop() {
	r.l.must(r.cmd.Process.Signal(syscall.SIGTERM))
	_ = r.cmd.Wait()
}

// routesAre waits until the edge's routes to pods are these, one a line.
func (l *edgeLab) routesAre(when string, want ...string) {
	l.t.Helper()
	var have string
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		have = l.inEdge("ip", "route", "show", "proto", "70")
		if strings.Join(strings.Fields(have), " ") == strings.Join(want, " ") {
			return
		}
	}
	l.t.Fatalf("%s: routes %q, want %q", when, have, want)
}

// TestEdgeLearns: the edge takes connections straight to pods by routes that a router announces, BIRD: those inside of
// clusterCIDRs and what contains these, and no others; they follow the router, and outlive a restart of the edge.
func TestEdgeLearns(t *testing.T) {
	l := newEdgeLab(t, 1, 1, 1)
	for _, n := range l.nodes { // answers to the client's network go through the edge
		l.must(n.Do(func() error {
			return exec.Command("ip", "route", "add", "198.51.100.0/24", "via", l.edge.Addr(true).String()).Run()
		}))
	}
	r := l.router()
	one, two, three := "10.244.1.0/24 via 172.18.0.12", "10.244.2.0/24 via 172.18.0.13", "10.244.3.0/24 via 172.18.0.14"
	foreign := []string{"203.0.113.0/24 via 172.18.0.12", "10.245.0.0/16 via 172.18.0.12"}
	r.announces(append(foreign, one, two, three)...)
	r.start()
	password := filepath.Join(l.dir, "password")
	l.must(os.WriteFile(password, []byte("secret\n"), 0o600))
	path := l.config("targetType: ip", "routes: bgp", "clusterCIDRs: [10.244.0.0/16]",
		"bgp: {myASN: 64512, peers: [{peerAddress: 172.18.0.1, peerASN: 64500, holdTime: 9s, passwordFile: "+password+"}]}")
	l.start("--config", path)
	l.programmed()
	at := " dev eth0"
	l.routesAre("at first", one+at, two+at, three+at)
	if a := l.ask(podVIP); !answered(a) || a.Seen.Addr() != testnet.Outside4 {
		t.Errorf("%v: %v, want an answer of a pod that saw %v", podVIP, a, testnet.Outside4)
	}

	r.announces(one, two, "10.244.3.0/25 via 172.18.0.14", "10.244.3.128/25 via 172.18.0.14")
	l.routesAre("other ones", one+at, two+at, "10.244.3.0/25 via 172.18.0.14"+at, "10.244.3.128/25 via 172.18.0.14"+at)
	l.kill()
	asked := l.net.Outside.KeepAsking(podVIP)
	l.start("--config", path)
	l.programmed()
	l.must(l.log.Await("session is up", patient))
	r.announces(append(foreign, "0.0.0.0/0 via 172.18.0.13", one)...)
	l.routesAre("a default route", "10.244.0.0/16 via 172.18.0.13"+at, one+at)
	r.announces(one, two, three)
	l.routesAre("as at first", one+at, two+at, three+at)
	if n, failed := asked(); n == 0 || len(failed) > 0 {
		t.Errorf("of %d connections meanwhile %d failed: %v", n, len(failed), failed)
	}

	r.stop()
	l.routesAre("without the router")
	l.kill()
	if tables, routes := l.cleanup(path); tables != "" || routes != "" {
		t.Errorf("left after cleanup: %q, routes %q", tables, routes)
	}
}
